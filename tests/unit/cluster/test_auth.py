"""Auth servers that lie, secrets that are none of the log's business, and queries that the daemon's exit ends."""

import json

import pytest
import re2
from gevent import Greenlet, sleep, spawn
from gevent.event import Event

from gnsqd.cluster.auth import MAX_ALLOWED, MAX_REGEX_SIZE, MAX_SECRET_SIZE, Auth, AuthState, parse_answer
from gnsqd.cluster.http_client import GoHTTPClient
from gnsqd.shared.errors import AuthError, HTTPClientError
from kit.auth_server import EVERYTHING
from kit.daemons import DEADLINE


def answer(*authorizations: object, ttl: int = 1) -> bytes:
    return json.dumps({"ttl": ttl, "authorizations": authorizations}).encode()


class FakeHTTP(GoHTTPClient):
    """Notes URLs, and answers once it is `let`."""

    def __init__(self, error: str = "") -> None:
        self.urls: list[str] = []
        self.let = Event()
        self._error = error

    def request(self, url: str, data: bytes | None = None) -> bytes:
        self.urls.append(url)
        if self._error:
            raise HTTPClientError(self._error)
        assert self.let.wait(DEADLINE)
        return answer()  # a short one: whoever checks a long one may yield, and still be asking


def query(auth: Auth, secret: bytes = b"secret") -> AuthState:
    return auth.query("127.0.0.1", False, "", secret)


# Regexes from outside


@pytest.mark.parametrize("regex", ["x" * (MAX_REGEX_SIZE + 1), "x{1000}" * 500, r"\pL{1000}", "((a{30}){30}){30}" * 9])
def test_regex_that_is_too_large_is_refused(regex: str) -> None:
    with pytest.raises(ValueError, match=r"^unable to compile channel .* (expression too large|invalid repeat count)"):
        parse_answer(answer({"topic": "t", "channels": [regex]}))


def test_long_regex_is_taken() -> None:
    names = "|".join(f"topic{number:04}" for number in range(400))
    assert len(names) < MAX_REGEX_SIZE
    state = parse_answer(answer(EVERYTHING | {"topic": f"^({names})$"}))
    assert state.allows("topic0399", "")
    assert not state.allows("topic0400", "")


def test_others_have_their_turns_while_an_answer_is_checked_and_matched() -> None:
    def turns_beside(work: Greenlet) -> int:
        turns = 0
        while not work.dead:
            turns += 1
            sleep()
        return turns

    hostile = [f"(?:{number}?){{900}}x" for number in range(100)]
    state: list[AuthState] = []
    assert turns_beside(spawn(lambda: state.append(parse_answer(answer(EVERYTHING | {"channels": hostile}))))) > 20
    matching = spawn(lambda: state[0].allows("t", "channel"))
    assert turns_beside(matching) > 20
    assert matching.get() is False


def test_what_was_allowed_once_is_not_matched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    state = parse_answer(answer({"topic": "^t$", "channels": ["^$"], "permissions": ["publish"]}))
    assert state.allows("t", "")
    monkeypatch.setattr(re2, "compile", None)
    assert state.allows("t", "")
    with pytest.raises(TypeError):
        state.allows("u", "")


def test_number_of_names_that_are_not_matched_again_is_bounded() -> None:
    state = parse_answer(answer(EVERYTHING))
    names = [f"t{number}" for number in range(10 * MAX_ALLOWED)]
    assert all(state.allows(name, "") for name in names)
    assert 0 < sum(state.knows(name, "") for name in names) <= MAX_ALLOWED


# What is sent and logged


def test_secret_that_no_server_takes_is_not_sent() -> None:
    http = FakeHTTP()
    http.let.set()
    auth = Auth(["a:1"], http)
    query(auth, b"x" * MAX_SECRET_SIZE)
    with pytest.raises(AuthError, match=f"^secret too big {MAX_SECRET_SIZE + 1} > {MAX_SECRET_SIZE}$"):
        query(auth, b"x" * (MAX_SECRET_SIZE + 1))
    assert len(http.urls) == 1


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (
            'Get "http://me:pass@a:1/auth?common_name=&remote_ip=&secret=a+%40b&tls=true": EOF',
            'Get "http://me:***@a:1/auth?common_name=&remote_ip=&secret=***&tls=true": EOF',
        ),
        ('Get "/?secret=s": stopped', 'Get "/?secret=***": stopped'),
        ("dial tcp [::1]:80: no", "dial tcp [::1]:80: no"),
        ("a\n[nsqd] forged\x1b", r"a\n[nsqd] forged\x1b"),
        ("x" * 5000, "x" * (1000 - len("failed to auth against http://you:***@a:1/ - "))),
    ],
)
def test_failure_is_reported_without_secrets_and_not_at_length(error: str, shown: str) -> None:
    with pytest.raises(AuthError) as caught:
        query(Auth(["http://you:pass@a:1/"], FakeHTTP(error=error)))
    text = f"failed to auth against http://you:***@a:1/ - {shown}"
    assert str(caught.value) == (text if error.isprintable() else f'"{text}"')


# Exit


def test_stop_does_not_hit_who_just_got_an_answer() -> None:
    http = FakeHTTP()
    auth, elsewhere = Auth(["a:1"], http), Event()

    def client() -> bool:
        query(auth)
        return bool(elsewhere.wait(DEADLINE))

    asking = spawn(client)
    sleep()
    http.let.set()
    auth.stop()
    sleep()
    elsewhere.set()
    assert asking.get(timeout=DEADLINE)
