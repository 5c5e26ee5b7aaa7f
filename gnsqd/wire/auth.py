"""AUTH and authorization: a client's secret is exchanged for its permissions (NSQD-COMPAT sections 2.4 and 8).

Expired permissions are queried again at the next protected command. A client never learns the reason for a refusal:
only the log has it.
"""

from collections.abc import Callable

from gnsqd.errors import AuthError
from gnsqd.gotext import dumps
from gnsqd.log import Logger
from gnsqd.wire.client_v2 import AuthState, ClientV2
from gnsqd.wire.errors import ClientError

# Of the client's IP ("" on a unix socket), whether it uses TLS, the common name of its certificate ("" without one),
# and its secret; AuthError. Yields.
Authenticate = Callable[[str, bool, str, bytes], AuthState]


class Gate:
    """Authorizes clients that must authenticate. Both methods may yield, and raise ClientError."""

    def __init__(self, authenticate: Authenticate, log: Logger) -> None:
        self._authenticate = authenticate
        self._log = log

    def admit(self, client: ClientV2, secret: bytes) -> bytes:
        """AUTH; the answer to it."""
        client.auth_secret = secret
        try:
            state = self._query(client)
        except AuthError as error:
            raise ClientError("E_AUTH_FAILED", "AUTH failed", error) from error
        if not state.permission_count:
            raise ClientError("E_UNAUTHORIZED", "AUTH no authorizations found")
        answer = {
            "identity": state.identity,
            "identity_url": state.identity_url,
            "permission_count": state.permission_count,
        }
        return dumps(answer).encode()

    def check(self, client: ClientV2, name: str, topic_name: str, channel_name: str = "") -> None:
        """Check that the command `name` is permitted."""
        state = client.auth_state
        if state is None:
            raise ClientError("E_AUTH_FIRST", f"AUTH required before {name}")
        if state.expired:
            try:
                state = self._query(client)
            except AuthError as error:
                raise ClientError("E_AUTH_FAILED", "AUTH failed") from error
        if not state.allows(topic_name, channel_name):
            raise ClientError("E_UNAUTHORIZED", f'AUTH failed for {name} on "{topic_name}" "{channel_name}"')

    def _query(self, client: ClientV2) -> AuthState:
        client.send_replies()  # of the batch so far; the auth server may take its time
        tls = client.tls
        common_name = "" if tls is None else tls.peer_common_name
        try:
            state = self._authenticate(client.remote_ip, tls is not None, common_name, client.auth_secret)
        except AuthError as error:
            self._log.warn("PROTOCOL(V2): [%s] AUTH failed %s", client, error)
            raise
        client.auth_state = state
        client.set_deadlines()  # the time was not the client's
        return state
