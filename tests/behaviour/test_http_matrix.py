"""Every endpoint and every success and error of it (NSQD-COMPAT 5), row by row.

A row is one request and the answer to it, which is judged without the real daemon too. With it, all of both answers is
compared, in the same state: status, reason, headers, body; and then what the request did, as /stats has it. What must
differ is normalised: ids, ports, times, memory and versions, and with them the length.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from kit.daemons import Instance, own_command
from kit.http_api import Answer, ask, chunked, head, message, normal, whole_answer
from kit.nsq_client import mpub_body
from kit.pairs import Pair, difference, running_pair
from kit.traffic import wait_for

LIMITS = ["--max-msg-size=10", "--max-body-size=40", "--max-req-timeout=1h"]


def answer(nsqd: Instance, request: bytes) -> Answer:
    return whole_answer(nsqd.http_address, request, normal)


def topic_state(nsqd: Instance, topic: str) -> str:
    _, _, body = nsqd.http("GET", f"/stats?format=json&include_mem=false&topic={topic.replace('#', '%23')}")
    return normal(body.decode())


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    with Instance(own_command(), tmp_path_factory.mktemp("shared") / "data", *LIMITS) as daemon:
        yield daemon


@pytest.fixture(scope="module")
def pair(peer_binary: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with running_pair(tmp_path_factory.mktemp("pair"), peer_binary("nsqd"), *LIMITS) as pair:
        yield pair


# One request to one endpoint


class Case(NamedTuple):
    """`{t}` in a request stands for a topic that no other row has. A body without headers gets its Content-Length.
    `answer` is the status and the text, or the code of the error; "" where that is not worth writing down."""

    request: str
    answer: str
    body: bytes = b""
    headers: tuple[str, ...] = ()
    before: tuple[str, ...] = ()  # requests for the state that the row is about


def rows(path: str, queries: Iterable[str], answer: str, body: bytes = b"", before: tuple[str, ...] = ()) -> list[Case]:
    return [Case(f"{path}{query}", answer, body, before=before) for query in queries]


CHUNKED = ("Transfer-Encoding: chunked",)
CUT_OFF = ("Content-Length: 9",)
CUT_CHUNKED = ("Transfer-Encoding: Chunked",)

OK = "200 OK"
INVALID_REQUEST, NO_TOPIC, INVALID_TOPIC, TOPIC_NOT_FOUND = (
    "400 INVALID_REQUEST", "400 MISSING_ARG_TOPIC", "400 INVALID_TOPIC", "404 TOPIC_NOT_FOUND"
)  # fmt: skip
INTERNAL_ERROR, BODY_TOO_BIG, MSG_TOO_BIG = "500 INTERNAL_ERROR", "413 BODY_TOO_BIG", "413 MSG_TOO_BIG"
INVALID_DEFER, BAD_BODY, BAD_MESSAGE = "400 INVALID_DEFER", "413 BAD_BODY", "413 BAD_MESSAGE"

# What is wrong with a query before anybody looks for a topic, in each form.
BAD_QUERIES = ("?topic=%zz", "?topic={t};a=b", "?%g=1", "?a=%", "?topic={t}&b=%4")
WITHOUT_TOPIC = ("", "?", "?Topic={t}", "?topics={t}", "?channel=c")
BAD_NAMES = ("?topic=", "?topic", "?topic=a$", "?topic=a%20b", "?topic={t}%0A", "?topic=%23ephemeral", "?topic=%FF",
             f"?topic={'a' * 65}", "?topic=&topic={t}", "?topic={t}=x")  # fmt: skip
GOOD_NAMES = ("?topic={t}", "?topic={t}&topic=$", "?to%70ic={t}&x=%20+y", "?&&topic={t}&=x")
EPHEMERAL = "?topic={t}%23ephemeral"

MAKE_TOPIC = ("POST /topic/create?topic={t}",)
MAKE_CHANNEL = (*MAKE_TOPIC, "POST /channel/create?topic={t}&channel=c")


def publishing_rows(path: str, body: bytes) -> list[Case]:
    return [
        *rows(path, BAD_QUERIES, INVALID_REQUEST, body),
        *rows(path, WITHOUT_TOPIC, NO_TOPIC, body),
        *rows(path, BAD_NAMES, INVALID_TOPIC, body),
        *rows(path, [*GOOD_NAMES, EPHEMERAL], OK, body),
    ]


PUB = [
    *publishing_rows("POST /pub", b"x"),
    *rows("POST /pub", ["?topic={t}", "?topic=%zz", ""], "400 MSG_EMPTY"),
    *rows("POST /pub", ["?topic={t}", f"?topic={'a' * 64}"], OK, b"x" * 10),
    *rows("POST /pub", ["?topic={t}", "?topic=%zz", ""], MSG_TOO_BIG, b"x" * 11),
    Case("POST /pub?topic={t}", MSG_TOO_BIG, b"", ("Content-Length: 300000",)),
    Case("POST /pub?topic={t}", OK, chunked(b"xx", b"y" * 8), CHUNKED),
    Case("POST /pub?topic={t}", MSG_TOO_BIG, chunked(b"xx", b"y" * 9), CHUNKED),
    Case("POST /pub?topic={t}", "400 MSG_EMPTY", chunked(), CHUNKED),
    Case("POST /pub?topic={t}", INTERNAL_ERROR, b"xyz", CUT_OFF),
    Case("POST /pub?topic={t}", INTERNAL_ERROR, b"5\r\nab", CUT_CHUNKED),
    *rows("POST /pub?topic={t}&defer=", ["0", "1", "3600000", "%2B5", "007", "1&defer=x"], OK, b"x"),
    *rows("POST /pub?topic={t}&defer=", ["", "+5", "-1", "3600001", "abc", "1.5", "0x10", "1_0"], INVALID_DEFER, b"x"),
    *rows("POST /pub?topic={t}&defer=", ["1e3", "9223372036854", "9223372036854775807"], INVALID_DEFER, b"x"),
    *rows("POST /pub?topic={t}&defer=", ["9223372036854775808", "9223372036855", "x&defer=1"], INVALID_DEFER, b"x"),
    Case("POST /pub?topic={t}&defer=3600000", OK, b"x", before=MAKE_CHANNEL),
    Case("POST /pub?defer=x", NO_TOPIC, b"x"),
    Case("POST /pub?defer=x&topic=$", INVALID_TOPIC, b"x"),
]

BINARY = "POST /mpub?topic={t}&binary=true"
MPUB = [
    *publishing_rows("POST /mpub", b"x\ny"),
    *[Case("POST /mpub?topic={t}", OK, body) for body in (
        b"", b"\n", b"\n\n\n", b"a", b"a\n", b"a\nb\nc", b"\n\na\n\nb\r\n", b"x" * 10 + b"\n", (b"x" * 9 + b"\n") * 4,
        b"a\0b\n\xff",
    )],
    *[Case("POST /mpub?topic={t}", MSG_TOO_BIG, body) for body in (b"x" * 11, b"a\n" + b"x" * 11 + b"\nb")],
    *[Case("POST /mpub?topic={t}", BODY_TOO_BIG, body) for body in (b"a" * 41, b"\n" * 41)],
    *rows("POST /mpub", ["?topic=%zz", ""], BODY_TOO_BIG, b"a" * 41),
    Case("POST /mpub?topic={t}", BODY_TOO_BIG, b"", ("Content-Length: 300000",)),
    Case("POST /mpub?topic={t}&deferred=x", OK, b"a\nb"),
    Case("POST /mpub?topic={t}", OK, chunked(b"ab\nc", b"d\ne"), CHUNKED),
    Case("POST /mpub?topic={t}", OK, chunked(*[b"x" * 9 + b"\n"] * 4), CHUNKED),
    Case("POST /mpub?topic={t}", BODY_TOO_BIG, chunked(*[b"x" * 9 + b"\n"] * 4, b"\n"), CHUNKED),
    Case("POST /mpub?topic={t}", BODY_TOO_BIG, chunked(*[b"x" * 9 + b"\n"] * 2, b"y" * 30), CHUNKED),
    Case("POST /mpub?topic={t}", MSG_TOO_BIG, chunked(b"x" * 11, b"\n" * 40), CHUNKED),
    Case("POST /mpub?topic=$", INVALID_TOPIC, chunked(*[b"x" * 9 + b"\n"] * 5), CHUNKED),
    Case("POST /mpub?topic={t}", INTERNAL_ERROR, b"xyz", CUT_OFF),
    Case("POST /mpub?topic={t}", INTERNAL_ERROR, b"1\r\nx\r\nzz\r\n", CUT_CHUNKED),
    *rows("POST /mpub?topic={t}&binary=", ["true", "1", "", "True", "no"], OK, mpub_body(b"ab", b"c")),
    *rows("POST /mpub?topic={t}&binary=", ["false", "0"], MSG_TOO_BIG, mpub_body(b"ab", b"c")),
    *rows("POST /mpub?topic={t}&binary=", ["false&binary=true", "true&binary=false"], OK, mpub_body(b"ab")),
    *[Case(BINARY, OK, body) for body in (mpub_body(b"x" * 10), mpub_body(b"ab", b"x" * 10) + b"trailing")],
    *[Case(BINARY, BAD_BODY, body) for body in (
        b"", b"\0\0\0", b"\0\0\0\0", b"\xff\xff\xff\xff", b"\0\0\0\x08"
    )],
    *[Case(BINARY, BAD_MESSAGE, body) for body in (
        b"\0\0\0\x07", b"\0\0\0\x01", b"\0\0\0\x01\0\0", b"\0\0\0\x01\xff\xff\xff\xff",
        mpub_body(b""), mpub_body(b"x" * 11), mpub_body(b"ab")[:-1], mpub_body(b"ab", b""),
    )],
    Case(BINARY, BODY_TOO_BIG, b"x" * 41),
    Case(BINARY, OK, chunked(mpub_body(b"ab")[:5], mpub_body(b"ab")[5:]), CHUNKED),
    Case(BINARY, BAD_MESSAGE, mpub_body(b"ab")[:9], CUT_OFF),
    Case(BINARY, BAD_BODY, b"\0\0\0", CUT_OFF),
]  # fmt: skip

FILL_TOPIC = (*MAKE_TOPIC, "POST /topic/pause?topic={t}", "POST /pub?topic={t}")
FILL_CHANNEL = (*MAKE_CHANNEL, "POST /pub?topic={t}")
DONE = "200 "


def action_rows() -> Iterator[Case]:
    """Yields the rows of /topic/* and /channel/*: each has the same cases, though not the same answers."""
    for action in ("create", "delete", "empty", "pause", "unpause"):
        creates, again = action == "create", (DONE if action != "delete" else TOPIC_NOT_FOUND)
        missing = DONE if creates else TOPIC_NOT_FOUND
        path = f"POST /topic/{action}"
        yield from rows(path, BAD_QUERIES, INVALID_REQUEST)
        yield from rows(path, WITHOUT_TOPIC, NO_TOPIC)
        yield from rows(path, BAD_NAMES, INVALID_TOPIC if action in ("create", "empty") else TOPIC_NOT_FOUND)
        yield from rows(path, [*GOOD_NAMES, EPHEMERAL], missing)
        yield from rows(path, GOOD_NAMES, DONE, before=MAKE_TOPIC)
        yield Case(f"{path}{EPHEMERAL}", missing, before=MAKE_TOPIC)
        yield Case(f"{path}?topic={{t}}", DONE, before=FILL_TOPIC)
        yield Case(f"{path}?topic={{t}}", DONE, before=FILL_CHANNEL)
        yield Case(f"{path}?topic={{t}}", again, before=(*MAKE_TOPIC, f"{path}?topic={{t}}"))
        yield Case(path, NO_TOPIC, b"topic={t}", before=MAKE_TOPIC)
        yield Case(f"{path}?topic={{t}}", DONE if creates else INVALID_REQUEST, b"xyz", CUT_OFF, before=MAKE_TOPIC)

        path = f"POST /channel/{action}"
        invalid, no_channel = "400 INVALID_ARG_CHANNEL", "404 CHANNEL_NOT_FOUND"
        missing, again = DONE if creates else no_channel, DONE if action != "delete" else no_channel
        yield from rows(path, BAD_QUERIES, INVALID_REQUEST)
        yield from rows(path, WITHOUT_TOPIC, NO_TOPIC)
        yield from rows(path, [*BAD_NAMES, "?topic=a$&channel=c", "?topic=%FF&channel=$"], "400 INVALID_ARG_TOPIC")
        yield from rows(path, [f"{query}&channel=c" for query in GOOD_NAMES], TOPIC_NOT_FOUND)
        for before in ((), MAKE_CHANNEL):
            yield from rows(path, ["?topic={t}", "?topic={t}&Channel=c"], "400 MISSING_ARG_CHANNEL", before=before)
            for name in ("", "a$", "a%20b", "%23ephemeral", "c" * 65, "%FF", "&channel=c"):
                yield Case(f"{path}?topic={{t}}&channel={name}", invalid, before=before)
            for name in ("c", "c&channel=$"):
                yield Case(f"{path}?topic={{t}}&channel={name}", DONE if before else TOPIC_NOT_FOUND, before=before)
            for name in ("d", "c%23ephemeral", "c" * 64):
                yield Case(f"{path}?topic={{t}}&channel={name}", missing if before else TOPIC_NOT_FOUND, before=before)
        yield Case(f"{path}?topic={{t}}&channel=c", DONE, before=FILL_CHANNEL)
        yield Case(f"{path}?topic={{t}}&channel=c", again, before=(*MAKE_CHANNEL, f"{path}?topic={{t}}&channel=c"))
        yield Case(path, NO_TOPIC, b"topic={t}&channel=c", before=MAKE_CHANNEL)
        yield Case(f"{path}?topic={{t}}&channel=c", INVALID_REQUEST, b"xyz", CUT_OFF, before=MAKE_CHANNEL)


ABOUT = [
    *rows("GET /ping", ["", "?a=%zz", "?a;b"], OK),
    *rows("GET /info", ["", "?a=%zz"], ""),
    *rows("GET /stats", ["?a=%zz", "?a;b", "?format=json&topic=%zz"], INVALID_REQUEST),
    *rows("GET /stats", ["?topic={t}", "?format=json&topic={t}"], "", before=MAKE_CHANNEL),
    Case("GET /stats?topic={t}&format=json", "", headers=("Accept-Encoding: gzip, deflate",)),
    Case("GET /stats?topic={t}", "", headers=("Accept: application/json",)),
    Case("GET /stats?topic={t}", "", b"body"),
    Case("GET /ping", OK, headers=("Connection: close",)),
    Case("GET /nope", "404 NOT_FOUND", headers=("Connection: close",)),
]

TABLES = pytest.mark.parametrize(
    "table", [ABOUT, PUB, MPUB, list(action_rows())], ids=["about the daemon", "pub", "mpub", "topic and channel"]
)
_numbers = itertools.count()


def ask_row(nsqd: Instance, row: Case, topic: str) -> Answer:
    for line in row.before:
        method, target = line.replace("{t}", topic).split(" ")
        assert nsqd.http(method, target, b"x")[0] == 200, line
    if row.before == FILL_CHANNEL:  # emptying either part would leave what is on its way between them
        wait_for(nsqd, topic, "c", depth=1)
    body = row.body.replace(b"{t}", topic.encode())
    request = head(row.request.replace("{t}", topic), *(row.headers or [f"Content-Length: {len(body)}"])) + body
    return answer(nsqd, request)


@TABLES
def test_every_row_has_its_answer(shared: Instance, table: list[Case]) -> None:
    for row in table:
        found = ask_row(shared, row, f"topic{next(_numbers)}")
        status, _, text = row.answer.partition(" ")
        if row.answer:
            assert (found.status, found.body) == (int(status), text if status == "200" else message(text)), row


@pytest.mark.peer
@TABLES
def test_every_row_is_answered_alike_and_does_the_same(pair: Pair, table: list[Case]) -> None:
    assert [difference for row in table if (difference := compare(pair, row))] == []


@pytest.mark.peer
def test_delay_that_is_small_only_modulo_a_power_of_two_is_refused_other_than_by_nsqd(pair: Pair) -> None:
    for milliseconds in ("-9223372036854775808", "18446744073710"):
        for nsqd, expected in zip(pair, [(400, message("INVALID_DEFER")), (200, "OK")], strict=True):
            assert ask(nsqd, f"POST /pub?topic=overflow&defer={milliseconds}", b"x") == expected
            assert ask(nsqd, "POST /topic/delete?topic=overflow") == (200, "")


def compare(pair: Pair, row: Case) -> object:
    topic = f"topic{next(_numbers)}"
    ours, real = (ask_row(nsqd, row, topic) for nsqd in pair)
    if row.headers in (CUT_OFF, CUT_CHUNKED):  # no connection goes on after that: it does not matter who says so
        for found in (ours, real):
            found.headers.pop("Connection", "")
    if ours != real:
        return row, ours, real
    return difference(lambda nsqd: topic_state(nsqd, topic), pair, row)


# Paths and methods


ENDPOINTS = [
    "/ping", "/info", "/stats", "/pub", "/mpub",
    *(f"/{thing}/{action}" for thing in ("topic", "channel")
      for action in ("create", "delete", "empty", "pause", "unpause")),
]  # fmt: skip
METHODS = ["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "TRACE"]
ELSEWHERE = [
    "/", "/nope", "/put", "/mput", "/create_topic", "/delete_topic", "/empty_channel", "/topic", "/topic/",
    "/topic/nope", "/channel/create/c", "/pingx", "/ping/x", "/favicon.ico",
]  # fmt: skip


def spellings(path: str) -> list[str]:
    """Returns paths that are almost `path`, and redirected to it where that has the method."""
    escaped = f"{path[:2]}%{path[2:3].encode().hex()}{path[3:]}"
    dotted = f"/.{path}", f"/x/..{path}", f"{path}/.", f"{path}/x/.."
    return [f"{path}/", f"{path}//", path.replace("/", "//"), path.upper(), path.title(), escaped, *dotted]


@pytest.mark.peer
@pytest.mark.parametrize("method", METHODS)
def test_every_path_and_method_is_answered_alike(pair: Pair, method: str) -> None:
    targets = [f"{path}{query}" for path in (*ENDPOINTS, *ELSEWHERE) for query in ("", "?topic=$&a=%20<b>&c")]
    targets += [
        f"{spelling}{query}" for path in ENDPOINTS for spelling in spellings(path) for query in ("", "?a=%20<b>\"'&c")
    ]
    requests = {target: head(f"{method} {target}") for target in targets}
    ours, real = ({target: answer(nsqd, request) for target, request in requests.items()} for nsqd in pair)
    assert {target: found for target, found in ours.items() if found != real[target]} == {
        target: found for target, found in real.items() if found != ours[target]
    }


@pytest.mark.peer
def test_long_answers_arrive_whole(pair: Pair) -> None:
    for nsqd, number in itertools.product(pair, range(60)):
        nsqd.http("POST", f"/topic/create?topic=long{number}")
    for query in ("", "?format=json"):
        ours, real = (answer(nsqd, head(f"GET /stats{query}")) for nsqd in pair)
        assert len(ours.body) > 4096
        assert ours == real
