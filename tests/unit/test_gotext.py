"""Go's text forms. The expected texts were printed by Go's own packages."""

import math

import pytest

from gnsqd.gotext import (
    NumberError,
    Struct,
    decode_object,
    dumps,
    format_duration,
    format_float,
    format_value,
    parse_bool,
    parse_duration,
    parse_float,
    parse_int,
    parse_int_literal,
    quote,
)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("t$", '"t$"'),
        (b'a"b\\c', r'"a\"b\\c"'),
        (b"\a\b\f\n\r\t\v", r'"\a\b\f\n\r\t\v"'),
        (b"\x00\x01\x1f\x7f", r'"\x00\x01\x1f\x7f"'),
        (b"\xff\xe2\x82", r'"\xff\xe2\x82"'),
        ("h\u00e9\u4e16\U0001f600\ufffd", '"h\u00e9\u4e16\U0001f600\ufffd"'),
        ("\u0080\u00a0\u00ad\u2028\ue000", r'"\u0080\u00a0\u00ad\u2028\ue000"'),
        ("\U000e0001", r'"\U000e0001"'),
        ("arg\udcff", r'"arg\xff"'),
    ],
)
def test_quote_is_go_string_literal(value: str | bytes, expected: str) -> None:
    assert quote(value) == expected


INTEGERS = {
    "0": 0, "-7": -7, "+7": 7, "0x10": 16, "0X_1f": 31, "0b101": 5, "0o17": 15, "010": 8, "0_7": 7, "1_000": 1000,
    "-0x8000000000000000": -(2**63), "9223372036854775807": 2**63 - 1,
}  # fmt: skip
NO_INTEGERS = ["", "-", "abc", "1.5", "08", "1__0", "_1", "1_", "0x", " 1", "1 ", "\u0661", "0b2"]
LONG_INTEGERS = ["9223372036854775808", "-0x8000000000000001", "1" * 5000]


def test_int_literal_takes_base_prefixes_and_underscores() -> None:
    assert {text: parse_int_literal(text) for text in INTEGERS} == INTEGERS
    for text in NO_INTEGERS + LONG_INTEGERS:
        with pytest.raises(NumberError) as caught:
            parse_int_literal(text)
        assert caught.value.reason == ("invalid syntax" if text in NO_INTEGERS else "value out of range"), text


def test_plain_int_knows_no_prefix() -> None:
    assert parse_int("010") == 10
    for text, reason in (("0x10", "invalid syntax"), ("9223372036854775808", "value out of range")):
        with pytest.raises(NumberError) as caught:
            parse_int(text)
        assert str(caught.value) == f'strconv.ParseInt: parsing "{text}": {reason}'


FLOATS = {"1": 1.0, ".5": 0.5, "5.": 5.0, "1e-3": 0.001, "4_5": 45.0, "-Inf": -math.inf}


def test_float_forms() -> None:
    assert {text: parse_float(text) for text in FLOATS} == FLOATS
    for text in ("", "x", " 1", "1e999"):
        with pytest.raises(NumberError) as caught:
            parse_float(text)
        reason = "value out of range" if text == "1e999" else "invalid syntax"
        assert str(caught.value) == f'strconv.ParseFloat: parsing "{text}": {reason}'


def test_bool_forms() -> None:
    assert all(parse_bool(text) for text in ("1", "t", "T", "true", "TRUE", "True"))
    assert not any(parse_bool(text) for text in ("0", "f", "F", "false", "FALSE", "False"))
    for text in ("", "yes", "tRUE", "2"):
        with pytest.raises(ValueError, match=f'^strconv.ParseBool: parsing "{text}": invalid syntax$'):
            parse_bool(text)


DURATIONS = {
    0: "0s", 1: "1ns", 1000: "1\u00b5s", 1100: "1.1\u00b5s", 2_200_000: "2.2ms", 638_686_980: "638.68698ms",
    250_000_000: "250ms", 3_300_000_000: "3.3s", 65_000_000_000: "1m5s", 65_001_000_000: "1m5.001s",
    3_600_000_000_000: "1h0m0s", -1_500_000_000: "-1.5s", 2**63 - 1: "2562047h47m16.854775807s",
    -(2**63): "-2562047h47m16.854775808s",
}  # fmt: skip
OTHER_DURATIONS = {
    "0": 0, "-0": 0, "+5s": 5_000_000_000, "1h30m": 5_400_000_000_000, "30m1h": 5_400_000_000_000, ".5s": 500_000_000,
    "1.s": 1_000_000_000, "3us2\u03bcs": 5000, "0.9223372036854775808h": 3_320_413_933_267,
    "0.3333333333333333333h": 1_200_000_000_000, f"0.{'1' * 400}s": 111_111_111,
}  # fmt: skip


def test_duration_forms() -> None:
    assert {number: format_duration(number) for number in DURATIONS} == DURATIONS
    forms = {text: number for number, text in DURATIONS.items()} | OTHER_DURATIONS
    assert {text: parse_duration(text) for text in forms} == forms


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 'time: invalid duration ""'),
        ("60", 'time: missing unit in duration "60"'),
        ("1s60", 'time: missing unit in duration "1s60"'),
        ("s", 'time: invalid duration "s"'),
        (".s", 'time: invalid duration ".s"'),
        ("- 1s", 'time: invalid duration "- 1s"'),
        ("1d", 'time: unknown unit "d" in duration "1d"'),
        ("1 s", 'time: unknown unit " s" in duration "1 s"'),
        ('1\u00e9"', r'time: unknown unit "\xc3\xa9\"" in duration "1\xc3\xa9\""'),
        ("9223372036854775808ns", 'time: invalid duration "9223372036854775808ns"'),
        ("-2562047h47m16.854775809s", 'time: invalid duration "-2562047h47m16.854775809s"'),
        ("9999999999h", 'time: invalid duration "9999999999h"'),
    ],
)
def test_duration_errors(text: str, expected: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_duration(text)
    assert str(caught.value) == expected


def test_float_text() -> None:
    texts = {
        1.5: "1.5", 1.0: "1", -0.0: "-0", 0.0001: "0.0001", 0.00001: "1e-05", 999999.5: "999999.5",
        1462851.0: "1.462851e+06", 1e100: "1e+100", math.inf: "+Inf", math.nan: "NaN",
    }  # fmt: skip
    assert {value: format_float(value) for value in texts} == texts


def test_config_values_print_as_go_values() -> None:
    assert format_value([1, 0.5, True, "x", {"b": 2, "a": []}]) == "[1 0.5 true x map[a:[] b:2]]"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"b": [1, None, True, False], "a": {}, "c": []}, '{"b":[1,null,true,false],"a":{},"c":[]}'),
        ("<a>&\u2028\u2029", r'"\u003ca\u003e\u0026\u2028\u2029"'),
        ({"<": ()}, r'{"\u003c":[]}'),
        ('\b\f\n\r\t\x00\x1f\x7f"\\/h\u00e9', '"\\b\\f\\n\\r\\t\\u0000\\u001f\x7f\\"\\\\/h\u00e9"'),
        ("a\udcff\udc80b\ufffd", r'"a\ufffd\ufffdb' + '\ufffd"'),
        (
            [1.0, 0.99, 1e-5, 1e-6, 1e-7, 1e20, 1e21, 123456789.5],
            "[1,0.99,0.00001,0.000001,1e-7,100000000000000000000,1e+21,123456789.5]",
        ),
        ([-0.0, 1.2345678901234567e20], "[-0,123456789012345670000]"),
        (2**64, "18446744073709551616"),
    ],
)
def test_dumps_is_go_json(value: object, expected: str) -> None:
    assert dumps(value) == expected


def test_dumps_refuses_what_json_has_not() -> None:
    with pytest.raises(ValueError, match=r"^json: unsupported value: \+Inf$"):
        dumps([math.inf])
    with pytest.raises(TypeError):
        dumps({"a": b"bytes"})


CHANNEL = Struct("nsqd.Channel", {"name": "string", "paused": "bool"})
STRUCT = Struct(
    "nsqd.Data",
    {
        "client_id": "string",
        "heartbeat_interval": "int",
        "sample_rate": "int32",
        "tls_v1": "bool",
        "topics": Struct("nsqd.Topic", {"name": "string", "channels": CHANNEL}),
        "tags": "[]string",
    },
)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"{}", {}),
        (b" \t\r\n{ } \n", {}),
        (b"null", {}),
        (
            b'{"client_id":"a","tls_v1":true,"heartbeat_interval":-1}',
            {"client_id": "a", "tls_v1": True, "heartbeat_interval": -1},
        ),
        (b'{"CLIENT_ID":"a","Tls_V1":false}', {"client_id": "a", "tls_v1": False}),
        (b'{"client\\u005fid":"a","tl\xc5\xbf_v1":true}', {"client_id": "a", "tls_v1": True}),
        (b'{"client_id":"a","CLIENT_ID":"b"}', {"client_id": "b"}),
        (b'{"CLIENT_ID":"b","client_id":"a","client_id":null}', {"client_id": "a"}),
        (b'{"unknown":{"client_id":[1,{}]},"x":1.5e3}', {}),
        (b'{"client_id":null,"topics":null}', {}),
        (
            b'{"heartbeat_interval":9223372036854775807,"sample_rate":-2147483648}',
            {"heartbeat_interval": 2**63 - 1, "sample_rate": -(2**31)},
        ),
        (b'{"heartbeat_interval":-0}', {"heartbeat_interval": 0}),
        (b'{"client_id":"a\xff\xe2\x82\\ud800\\ud83d\\ude00"}', {"client_id": "a\ufffd\ufffd\ufffd\ufffd\U0001f600"}),
        (b'{"topics":[]}', {"topics": []}),
        (b'{"topics":[],"tags":["a"],"topics":null,"tags":null}', {}),
        (b'{"tags":["a",null]}', {"tags": ["a", ""]}),
        (
            b'{"topics":[{"name":"t","channels":[{"Name":"c","paused":true,"x":1},null]},{"channels":null}]}',
            {"topics": [{"name": "t", "channels": [{"name": "c", "paused": True}, {}]}, {}]},
        ),
    ],
)
def test_decode_object_follows_go(data: bytes, expected: dict[str, object]) -> None:
    assert decode_object(data, STRUCT) == expected


INT = "struct field Data.heartbeat_interval of type int"
OTHER_TYPES = [
    (b"5", "number", "value of type nsqd.Data"),
    (b"[]", "array", "value of type nsqd.Data"),
    (b'"x"', "string", "value of type nsqd.Data"),
    (b"true", "bool", "value of type nsqd.Data"),
    (b'{"heartbeat_interval":1.0}', "number 1.0", INT),
    (b'{"heartbeat_interval":1e3}', "number 1e3", INT),
    (b'{"heartbeat_interval":"5"}', "string", INT),
    (b'{"heartbeat_interval":true}', "bool", INT),
    (b'{"heartbeat_interval":9223372036854775808}', "number 9223372036854775808", INT),
    (b'{"sample_rate":2147483648}', "number 2147483648", "struct field Data.sample_rate of type int32"),
    (b'{"tls_v1":1}', "number", "struct field Data.tls_v1 of type bool"),
    (b'{"client_id":{}}', "object", "struct field Data.client_id of type string"),
    (b'{"client_id":5,"client_id":"a"}', "number", "struct field Data.client_id of type string"),
    (
        b'{"topics":[{"channels":[{"paused":"yes"}]}]}',
        "string",
        "struct field Channel.topics.channels.paused of type bool",
    ),
    (b'{"topics":[{"name":5}]}', "number", "struct field Topic.topics.name of type string"),
    (b'{"topics":[[]]}', "array", "struct field Data.topics of type nsqd.Topic"),
    (b'{"topics":{}}', "object", "struct field Data.topics of type []nsqd.Topic"),
    (b'{"topics":[{"channels":{}}]}', "object", "struct field Topic.topics.channels of type []nsqd.Channel"),
    (b'{"tags":{}}', "object", "struct field Data.tags of type []string"),
    (b'{"tags":[5]}', "number", "struct field Data.tags of type string"),
]


def refusal(data: bytes) -> str:
    with pytest.raises(ValueError) as caught:
        decode_object(data, STRUCT)
    return str(caught.value)


@pytest.mark.parametrize(("data", "found", "target"), OTHER_TYPES)
def test_decode_object_refuses_other_types(data: bytes, found: str, target: str) -> None:
    assert refusal(data) == f"json: cannot unmarshal {found} into Go {target}"


def test_decode_object_names_the_end_of_truncated_json() -> None:
    for data in (b"", b" ", b"{", b'{"a"', b'{"a":', b'{"a":1,', b'{"a":"x', b'{"a":"\\u00e9', b"[1", b'[{"a":1}'):
        assert refusal(data) == "unexpected end of JSON input", data


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"{}x", "'x' after top-level value"),
        (b"{} {}", "'{' after top-level value"),
        (b"{'a':1}", r"'\'' looking for beginning of object key string"),
        (b'{"a":1,}', "'}' looking for beginning of object key string"),
        (b'{"a" []}', "'[' after object key"),
        (b'{"a":01}', "'1' after object key:value pair"),
        (b'{"a":1\xff}', "'\u00ff' after object key:value pair"),
        (b'{"a":[1,{}] "b":2}', "'\"' after object key:value pair"),
        (b'{"a":["]" 2]}', "'2' after array element"),
        (b'{"a":[1,]}', "']' looking for beginning of value"),
        (b'{"a":+1}', "'+' looking for beginning of value"),
        (b'{"a":NaN}', "'N' looking for beginning of value"),
        (b"\xef\xbb\xbf{}", "'\u00ef' looking for beginning of value"),
        (b"\xff", "'\u00ff' looking for beginning of value"),
        (b"\x00", r"'\x00' looking for beginning of value"),
        (b'{"a":-Infinity}', "'I' in numeric literal"),
        (b'{"a":-}', "'}' in numeric literal"),
        (b'{"a":-', "' ' in numeric literal"),
        (b'{"a":tru', "' ' in literal true (expecting 'e')"),
        (b'{"a":tfalse}', "'f' in literal true (expecting 'r')"),
        (b'{"a":falsy}', "'y' in literal false (expecting 'e')"),
        (b"[nil]", "'i' in literal null (expecting 'u')"),
        (b'{"a":"\n"}', r"'\n' in string literal"),
        (b'{"a":"\\x"}', "'x' in string escape code"),
        (b'{"a":"\\u12"}', r"""'"' in \u hexadecimal character escape"""),
        (b'{"a":"\\u12', r"' ' in \u hexadecimal character escape"),
    ],
)
def test_decode_object_says_where_json_ends_to_be_json(data: bytes, expected: str) -> None:
    assert refusal(data) == f"invalid character {expected}"


def test_decode_object_refuses_what_has_no_end() -> None:
    assert refusal(b'{"a":1.}').startswith("invalid character '.' ")
    assert refusal(b"[" * 100_000) == "exceeded max depth"
