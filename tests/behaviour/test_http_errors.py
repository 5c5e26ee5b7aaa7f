"""Each error that a row of ROUTES names is what the endpoint answers when a request has that mistake alone."""

from collections.abc import Sequence
from pathlib import Path
from urllib.parse import parse_qsl, urlencode

from gnsqd.lookupd.api import LOOKUPD_ROUTES
from gnsqd.web.routes import ROUTES, Route
from kit.daemons import Address, address_of
from kit.http_api import ask, head, message, whole_answer
from kit.lookupds import RunningLookupd, own_lookupd_command
from kit.traffic import DaemonFactory

LIMITS = ("--max-topics=4", "--max-channels=2", "--max-msg-size=10", "--max-body-size=40", "--max-channel-depth=1")
STATE = (
    *("topic/create?topic=t", "channel/create?topic=t&channel=c", "channel/create?topic=t&channel=c%23ephemeral"),
    *("topic/create?topic=plain", "channel/create?topic=plain&channel=c", "topic/retention?topic=t&bytes=1000"),
    *("topic/create?topic=e%23ephemeral", "channel/create?topic=e%23ephemeral&channel=c", "pub?topic=full"),
)
VALID = {"topic": "t", "channel": "c", "to": "first", "bytes": "1", "limit": "1", "rate": "1", "node": "n:1"}
# What is wrong in the query, and the errors that it causes, or that it causes in one request.
MISTAKES = {
    "topic=$": ["INVALID_TOPIC", "INVALID_ARG_TOPIC"],
    "topic=new": ["TOO_MANY_TOPICS", "TOO_MANY_REGISTRATIONS", "TOPIC_NOT_FOUND"],
    "topic=full": ["FULL"],
    "topic=e%23ephemeral&from=first": ["NO_JOURNAL"],
    "topic=plain&from=first": ["NO_RETENTION"],
    "channel=$": ["INVALID_ARG_CHANNEL"],
    "channel=new": ["TOO_MANY_CHANNELS", "CHANNEL_NOT_FOUND"],
    "channel=c%23ephemeral&from=first": ["CHANNEL_EPHEMERAL"],
    "from=first": ["CHANNEL_EXISTS"],
    "from=0000000000000000": ["POST /channel/create MESSAGE_NOT_FOUND"],
    "to=0000000000000000&id=0000000000000000": ["MESSAGE_NOT_FOUND"],
    "at=0000000000000000": ["GET /topic/range MESSAGE_NOT_FOUND"],
    "from=0000000000000000&to=next": ["GET /topic/messages MESSAGE_NOT_FOUND"],
    "epoch=x": ["LOG_CHANGED"],
    "to=-1h&until=-2h": ["UNTIL_BEFORE_TO"],
    "limit=0": ["INVALID_LIMIT"],
    "defer=x": ["INVALID_DEFER"],
    "binary=true": ["BAD_BODY", "BAD_MESSAGE"],
}
WRONG = {error: change for change, errors in MISTAKES.items() for error in errors}
BODIES = {"MSG_EMPTY": b"", "MSG_TOO_BIG": b"x" * 11, "BODY_TOO_BIG": b"x" * 41, "BAD_MESSAGE": b"\0\0\0\1\0\0"}
CODINGS = {"UNSUPPORTED_ENCODING": "br", "INVALID_ENCODING": "gzip"}
# No request comes to a daemon that is exiting; test_ranges has messages that are not there.
ELSEWHERE = ("EXITING", "MESSAGES_GONE", "MESSAGES_DAMAGED")
TEXTS = {"FULL": "FULL: topic full would hold more than 1 messages (--max-channel-depth)"}


def answer(address: Address, route: Route, status: str, code: str) -> tuple[int, str]:
    """Status and body of the answer to a request with the mistake that `code` is about."""
    where = f"{route.method} {route.path}"
    name = code.removeprefix("MISSING_ARG_").removeprefix("INVALID_ARG_").lower()
    wrong = WRONG.get(f"{where} {code}") or WRONG.get(code) or (f"{name}=x" if "_ARG_" in code else "")
    query = VALID | ({"to": "1"} if route.path == "/channel/advance" else {}) | dict(parse_qsl(wrong))
    if code.startswith("MISSING"):
        del query[name]
    line = f"{where}?{urlencode(query)}"
    line = line.replace(":opt", "nosuch" if code == "INVALID_OPTION" else "log_level")
    body = b"" if (status, code) == ("413", "INVALID_VALUE") else BODIES.get(code, b"x")
    coding = f"Content-Encoding: {CODINGS.get(code, 'identity')}"
    found = whole_answer(address, head(line, coding, f"Content-Length: {len(body)}") + body, str)
    return found.status, found.body


def unlike_the_table(address: Address, routes: Sequence[Route], *, draining: bool = False) -> list[object]:
    found: list[object] = []
    for route in routes:
        for status, code in (error.split() for error in route.errors.split(", ") if error):
            if code in ELSEWHERE or draining != (code == "DRAINING"):
                continue
            got = answer(address, route, status, code)
            text = message(TEXTS.get(code, code))
            if got != (int(status), text) and (got[0], got[1].partition(",")[0]) != (int(status), text[:-1]):
                found.append((route.method, route.path, status, code, got))
    return found


def test_every_error_in_the_table_is_answered(gnsqd_factory: DaemonFactory) -> None:
    gnsqd = gnsqd_factory("--durability=process", *LIMITS)
    for request in STATE:
        assert ask(gnsqd, f"POST /{request}", b"x")[0] == 200, request
    assert unlike_the_table(gnsqd.http_address, ROUTES) == []
    assert ask(gnsqd, "POST /drain")[0] == 200
    assert unlike_the_table(gnsqd.http_address, ROUTES, draining=True) == []


def test_every_error_in_the_table_of_nsqlookupd_is_answered(tmp_path: Path) -> None:
    with RunningLookupd(own_lookupd_command(), tmp_path / "lookupd", "--max-registrations=2") as lookupd:
        address = address_of(lookupd.http_address)
        assert whole_answer(address, head("POST /channel/create?topic=t&channel=c"), str).status == 200
        assert unlike_the_table(address, LOOKUPD_ROUTES) == []
