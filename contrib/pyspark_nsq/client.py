"""The connection to one nsqd, on a blocking thread of a task, by the options of the data source."""

import socket
import ssl
import time
from functools import partial
from typing import NoReturn, Self

from gnsqd.shared.client import Client, Upgrade, reason, tls_context
from pyspark_nsq.errors import ConnectionLost, NotAgreed, Refused
from pyspark_nsq.option_values import Address
from pyspark_nsq.options import Settings


class SourceClient(Client):
    """Owns the connection. Every method may raise ConnectionLost and Refused, after which it is of no more use."""

    secret_option = "the option 'nsq.auth.secret'"

    @classmethod
    def connect(cls, address: Address, settings: Settings) -> Self:
        """Connects, with IDENTIFY, TLS and AUTH, within `settings.connect_timeout`. May also raise NotAgreed."""
        name = name_of(address)
        deadline = time.monotonic() + settings.connect_timeout
        try:
            sock = socket.create_connection(address, settings.connect_timeout)
        except (OSError, UnicodeError) as error:
            raise ConnectionLost(f"cannot connect to nsqd {name}: {reason(error)}") from None
        client = cls(sock, name, settings.read_timeout)
        identity: dict[str, object] = {"user_agent": settings.user_agent}
        if settings.client_id:
            identity["client_id"] = settings.client_id
        if settings.msg_timeout_ms is not None:
            identity["msg_timeout"] = settings.msg_timeout_ms
        tls = Upgrade(partial(tls_of, settings), settings.tls_server_name or address[0]) if settings.tls else None
        try:
            client.negotiate(identity, deadline, tls=tls, secret=settings.auth_secret)
        except BaseException:
            client.close()
            raise
        return client

    def _lost(self, what: str) -> NoReturn:
        raise ConnectionLost(f"nsqd {self.name} {what}") from None

    def _not_agreed(self, what: str) -> NoReturn:
        raise NotAgreed(f"nsqd {self.name}: {what}") from None

    def _refused(self, code: str, reason: str) -> NoReturn:
        raise Refused(code, reason, self.name)


def name_of(address: Address) -> str:
    """Returns `host:port`, with brackets around an IPv6 address."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def tls_of(settings: Settings) -> ssl.SSLContext:
    """Makes the TLS of connections to nsqds. Raises NotAgreed if the files are not there, or not certificates."""
    try:
        return tls_context(settings.tls_ca, settings.tls_certificate, settings.tls_key, settings.tls_verify)
    except OSError as error:
        raise NotAgreed(str(error)) from None
