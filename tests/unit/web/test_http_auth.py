"""The answers of auth servers that are kept."""

from gnsqd.cluster.auth import AuthState, parse_answer
from gnsqd.log import Level, Logger
from gnsqd.web.http_auth import MAX_STATES, AuthServers, Needs
from gnsqd.web.routes import Role

PUBLISHING = b'{"ttl": 60, "authorizations": [{"topic": "t", "channels": [".*"], "permissions": ["publish"]}]}'


def test_number_of_answers_is_bounded() -> None:
    asked: list[bytes] = []

    def authenticate(remote_ip: str, tls: bool, common_name: str, secret: bytes) -> AuthState:
        asked.append(secret)
        return parse_answer(PUBLISHING)

    servers = AuthServers(authenticate, Logger("", Level.INFO))
    tokens = [b"token%d" % number for number in range(MAX_STATES + 1)]
    for token in [*tokens[:1], *tokens]:
        assert servers.permit(Needs(Role.FULL, "publish", "t"), ("127.0.0.1", False, "", token), True)
    assert asked == tokens
    assert len(servers._states) <= MAX_STATES
