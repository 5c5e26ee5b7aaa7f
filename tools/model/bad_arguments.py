"""Commands and requests that both daemons should refuse, and in the same words.

They are made for daemons with LIMITS. `T` and `C` stand for the names of a topic and a channel.
"""

import json
import random
import struct
from typing import NamedTuple

from kit.nsq_client import sized

MAX_MSG_SIZE, MAX_BODY_SIZE, MAX_RDY, MAX_CONSUMERS = 1024, 4096, 50, 3
LIMITS = (
    f"--max-msg-size={MAX_MSG_SIZE}",
    f"--max-body-size={MAX_BODY_SIZE}",
    f"--max-rdy-count={MAX_RDY}",
    f"--max-channel-consumers={MAX_CONSUMERS}",
)

NO_ID = b"0123456789abcdef"


class BadCommand(NamedTuple):
    """`cut`: nothing follows, the client ends its side of the connection."""

    line: bytes
    body: bytes = b""
    cut: bool = False


def int32(number: int) -> bytes:
    return struct.pack(">i", number)


BAD_NAMES = [b"", b"t$", b"a:b", b"x" * 65, b"x#ephemera", b"#ephemeral", b"x" * 55 + b"#ephemeral", b"\xc3\xbc", b'"']

# Refused in every state.
ANYWHERE = [
    *map(BadCommand, [b"", b"\r", b"FOO", b"FOO bar", b"pub T", b" PUB T", b"\xff\x00"]),
    *map(BadCommand, [b"PUB", b"MPUB", b"DPUB", b"DPUB T"]),
    BadCommand(b"x" * 20000),
    *(BadCommand(verb + b" " + name, sized(b"x")) for verb in (b"PUB", b"MPUB") for name in BAD_NAMES),
    *(BadCommand(b"DPUB " + name + b" 0", sized(b"x")) for name in BAD_NAMES),
    *(
        BadCommand(b"DPUB T " + number, sized(b"x"))
        for number in (b"x", b"-1", b"1.5", b"+1", b"0x1", b"3600001", b"1_0")
    ),
    *(
        BadCommand(line, int32(size) + b"x" * max(size, 0))
        for line in (b"PUB T", b"DPUB T 0", b"DPUB T 60000")
        for size in (0, -1, -(1 << 31), MAX_MSG_SIZE + 1)
    ),
    *(BadCommand(b"MPUB T", int32(size) + b"x" * max(size, 0)) for size in (0, -1, MAX_BODY_SIZE + 1)),
    *(BadCommand(b"MPUB T", sized(int32(count) + sized(b"x"))) for count in (0, -1, 900, 1 << 30)),
    *(
        BadCommand(b"MPUB T", sized(int32(2) + sized(b"x") + int32(size) + b"x" * max(size, 0)))
        for size in (0, -1, MAX_MSG_SIZE + 1)
    ),
    *(BadCommand(b"PUB T", sized(b"four")[:size], True) for size in range(8)),
    *(BadCommand(b"DPUB T 0", sized(b"four")[:size], True) for size in range(0, 8, 3)),
    *(BadCommand(b"MPUB T", sized(int32(2) + sized(b"x") + sized(b"y"))[:size], True) for size in range(18)),
]

BAD_SETTINGS: dict[str, tuple[object, ...]] = {
    "heartbeat_interval": (999, 60001, -2, 1.5, "1000"),
    "output_buffer_size": (63, 65537, -2),
    "output_buffer_timeout": (24, 30001),
    "sample_rate": (100, -1, 1 << 31),
    "msg_timeout": (999, 900001, -1),
    "client_id": (1,),
    "feature_negotiation": (1,),
}
BAD_IDENTIFY = [
    *(b"{", b"[]", b'""', b'{"output_buffer_timeout":24,"output_buffer_size":63}'),
    b'{"feature_negotiation":true,"snappy":true,"deflate":true}',
    *(json.dumps({name: value}).encode() for name, values in BAD_SETTINGS.items() for value in values),
]

# Refused before SUB.
BEFORE = [
    *map(BadCommand, [b"RDY 1", b"RDY", b"RDY x", b"FIN " + NO_ID, b"REQ " + NO_ID + b" 0", b"TOUCH " + NO_ID, b"CLS"]),
    *map(BadCommand, [b"SUB", b"SUB T", b"AUTH x"]),
    *(BadCommand(b"SUB " + name + b" C") for name in BAD_NAMES),
    *(BadCommand(b"SUB T " + name) for name in BAD_NAMES),
    *(BadCommand(b"IDENTIFY", sized(body)) for body in BAD_IDENTIFY),
    *(BadCommand(verb, int32(size)) for verb in (b"IDENTIFY", b"AUTH") for size in (0, -1, MAX_BODY_SIZE + 1)),
    *(BadCommand(verb, sized(b"{}")[:size], True) for verb in (b"IDENTIFY", b"AUTH") for size in range(6)),
    BadCommand(b"AUTH", sized(b"secret")),
]

# Refused after SUB.
AFTER = [
    BadCommand(b"SUB T C"),
    BadCommand(b"IDENTIFY", sized(b"{}")),
    BadCommand(b"AUTH", sized(b"secret")),
    *map(
        BadCommand, [b"FIN", b"TOUCH", b"REQ", b"FIN short", b"TOUCH " + NO_ID + b"0", b"REQ " + NO_ID, b"REQ short 0"]
    ),
    *(BadCommand(b"REQ " + NO_ID + b" " + number) for number in (b"x", b"-1", b"1.5", b"+1", b"0x1")),
    *map(BadCommand, [b"FIN " + NO_ID, b"TOUCH " + NO_ID, b"REQ " + NO_ID + b" 0", b"FIN  " + NO_ID]),
]
# And before CLS.
READY = [BadCommand(b"RDY " + number) for number in (b"x", b"-1", b"1.5", b"+1", b"0x1", b"51", b"9223372036854775807")]

NAMES = ["", "t$", "a:b", "x" * 65, "%C3%BC", "nobody", "%zz", "x;y"]
ACTS = ["pub", "mpub", "topic/create", "topic/empty", "topic/delete", "topic/pause", "topic/unpause"]
QUERIES = [
    *("", "topic=T", "channel=C", "topic=&channel=C", "topic=T&channel=", "topic=t$&channel=C", "topic=T&channel=c:d"),
    *("topic=nobody&channel=C", "topic=T&channel=%zz"),
]
BATCHES = [b"", b"\0", int32(0), int32(-1), int32(2) + sized(b"x"), int32(1) + int32(0), int32(1) + int32(2000)]
READINGS = ["pub?topic=T", "mpub", "topic/create?topic=T", "channel/delete", "nope", "put", "ping"]
KEYS = ["max_rdy_count", "max_msg_size", "node_id", "mem_queue_size", "x", ""]

REQUESTS: list[tuple[str, bytes | None]] = [
    ("POST /pub", b"x"),
    ("POST /mpub", b"x"),
    *(
        (f"POST /{act}?topic={name}", b"x")
        for act in ACTS
        for name in NAMES
        if name != "nobody" or act not in ("pub", "mpub", "topic/create")
    ),
    *(
        (f"POST /channel/{act}?{query}", b"")
        for act in ("create", "delete", "empty", "pause", "unpause")
        for query in (*QUERIES, *["topic=T&channel=nobody"] * (act != "create"))
    ),
    ("POST /pub?topic=T", b""),
    ("POST /pub?topic=T", b"x" * (MAX_MSG_SIZE + 1)),
    *((f"POST /pub?topic=T&defer={value}", b"x") for value in ("x", "-1", "3600001", "", "1.5")),
    *(("POST /mpub?topic=T", body) for body in (b"", b"\n\n", b"x" * (MAX_MSG_SIZE + 1), b"x\n" * 3000)),
    *(("POST /mpub?topic=T&binary=true", body) for body in BATCHES),
    *((f"GET /{path}", None) for path in READINGS),
    *((f"{method} /stats", b"") for method in ("POST", "PUT", "DELETE")),
    ("GET /stats?format=json&topic=%zz", None),
    *((f"GET /config/{key}", None) for key in KEYS),
    *((f"PUT /config/{key}", body) for key, body in (("log_level", b"bad"), ("log_level", b""), ("x", b"1"))),
    ("POST /topic/create/?topic=T", b""),
]


def command(chance: random.Random, topic: str, channel: str, subscribed: bool, closing: bool) -> BadCommand:
    rows = [ANYWHERE, BEFORE] if not subscribed else [ANYWHERE, AFTER] if closing else [ANYWHERE, AFTER, READY]
    line, body, cut = chance.choice(chance.choice(rows))
    words = {b"T": topic.encode(), b"C": channel.encode()}
    return BadCommand(b" ".join(words.get(word, word) for word in line.split(b" ")), body, cut)


def request(chance: random.Random, topic: str, channel: str) -> tuple[str, bytes | None]:
    what, body = chance.choice(REQUESTS)
    quoted = {"topic=T": f"topic={topic}", "channel=C": f"channel={channel}"}
    for text, value in quoted.items():
        what = what.replace(text, value.replace("#", "%23"))
    return what, body
