"""The page's HTTP server, gevent's: bound at once, and loaded when somebody first connects.

So a gnsqd whose page nobody looks at is neither slower to start nor larger.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from socket import socket
from traceback import format_exception
from typing import TYPE_CHECKING, Any

import gevent.socket
from gevent import Greenlet, GreenletExit, get_hub, killall
from gevent.lock import BoundedSemaphore

from gnsqd.log import Logger
from gnsqd.net.addresses import join_host_port, split_host_port
from gnsqd.net.listener import Listener

if TYPE_CHECKING:
    from gevent.pywsgi import WSGIServer

MOST_CONNECTIONS = 128
_IDLE_SECONDS = 60.0  # until a connection that sends nothing, or takes nothing, is closed
_CLOSE_SECONDS = 1.0
_ANYWHERE = ("", "0.0.0.0", "::")

WSGIApplication = Callable[[dict[str, Any], Callable[..., object]], Iterable[bytes]]
Load = Callable[[bool], WSGIApplication]
Spawn = Callable[[str, Callable[[], None]], "Greenlet[..., None]"]


class PageServer:
    """Listens when it is made; StartError. `load(loopback)` makes the application, where `loopback` is whether only
    this machine can connect; what it imports is imported before, in a thread. `spawn` starts the greenlet of a
    connection."""

    def __init__(self, address: str, load: Load, log: Logger, spawn: Spawn) -> None:
        self._listener = Listener(address, tcp_only=True)
        self._load = load
        self._log = log
        self._spawn = spawn
        self._loading = BoundedSemaphore()
        self._greenlets: set[Greenlet[..., None]] = set()
        self._server: WSGIServer | None = None
        self._host, _ = split_host_port(self._listener.address)

    @property
    def url(self) -> str:
        """Where it is from this machine."""
        return f"http://{reachable(self._listener.address)}"

    @property
    def loopback(self) -> bool:
        """Whether only this machine can connect."""
        return self._host == "::1" or self._host.startswith("127.")

    def warn_unless(self, protected: bool) -> None:
        """Log a warning if other machines can connect, and the page is not protected by tokens or read-only."""
        if not (protected or self.loopback):
            self._log.warn("ADMIN: everybody who reaches %s can change the cluster", self.url)

    def serve(self) -> None:
        """Accept until `close`. Yields."""
        self._listener.serve("ADMIN", self._log, self._accept, MOST_CONNECTIONS)

    def close(self) -> None:
        """Stop accepting, and end all connections. Yields."""
        self._listener.close()
        killall(list(self._greenlets), timeout=_CLOSE_SECONDS)

    def _accept(self, sock: socket, remote_address: str) -> "Greenlet[..., None]":
        greenlet = self._spawn(f"admin:{remote_address}", partial(self._handle, sock, remote_address))
        self._greenlets.add(greenlet)
        greenlet.rawlink(self._greenlets.discard)
        return greenlet

    def _handle(self, sock: socket, remote_address: str) -> None:
        """Answer the requests of one connection. A client that has gone is not an error."""
        connection = gevent.socket.socket(sock.family, sock.type, sock.proto, fileno=sock.detach())
        try:
            connection.settimeout(_IDLE_SECONDS)
            self._wsgi_server().handle(connection, split_host_port(remote_address))
        except OSError:
            pass
        finally:
            connection.close()

    def _wsgi_server(self) -> "WSGIServer":
        """What speaks HTTP; made at the first connection."""
        with self._loading:
            if self._server is None:
                # Loading takes some tenths of a second, and the daemon's greenlets go on meanwhile.
                get_hub().threadpool.apply(import_module, ("nsqadmin_web.app",))
                self._server = _make_server(self._load(self.loopback), self._log)
        return self._server


def reachable(address: str) -> str:
    """The address of a listener, as this machine can connect to it."""
    try:
        host, port = split_host_port(address)
    except ValueError:
        return address  # the path of a unix socket
    return f"127.0.0.1:{port}" if host in _ANYWHERE else address


def _make_server(application: WSGIApplication, log: Logger) -> "WSGIServer":
    """gevent's, for connections that were accepted; it does not listen itself."""
    from gevent.pywsgi import WSGIHandler, WSGIServer

    class Handler(WSGIHandler):  # type: ignore[misc]
        # Also the text of a time-out.
        ignored_socket_errors = (*WSGIHandler.ignored_socket_errors, "timed out")

        def get_environ(self) -> dict[str, Any]:
            environ: dict[str, Any] = super().get_environ()
            return environ | {"REQUEST_URI": self.path}

        def _handle_client_error(self, error: Exception) -> Any:
            return None if isinstance(error, OSError) else super()._handle_client_error(error)

        def _log_error(self, kind: type[BaseException], error: BaseException, traceback: object) -> None:
            # gevent would report it to the hub, where it ends the daemon.
            if not issubclass(kind, GreenletExit):
                log.error("ADMIN: a defect", stack="".join(format_exception(error)))

        def log_error(self, message: str, *args: object) -> None:
            log.warn("ADMIN: %s", message % args if args else message)

    environ = {"SERVER_NAME": "gnsqadmin", "SERVER_PORT": ""}
    return WSGIServer(("127.0.0.1", 0), application, log=None, handler_class=Handler, environ=environ)


def for_daemon(
    address: str,
    http_address: str,
    listed: tuple[str, int],
    lookupd_http_address: str,
    token_files: Sequence[str],
    read_only: bool,
    log: Logger,
    spawn: Spawn,
) -> PageServer:
    """The page of nsqlookupd in this process, else of this nsqd alone; StartError. `listed` is host and port of this
    nsqd's HTTP as nsqlookupd lists them, without a host that of nsqlookupd itself.

    The page requires a token of `token_files`, which are those of --http-auth-token-file. Tokens are sent to this nsqd
    alone, at its own address, as anybody may register with nsqlookupd: a read token, if there is one, for statistics,
    and the user's own for all else."""

    def load(loopback: bool) -> WSGIApplication:
        from nsqadmin_cli.context import ClusterSettings, Commands, Context, make_cluster
        from nsqadmin_cli.errors import AdminError
        from nsqadmin_cli.http_client import Address
        from nsqadmin_web.app import Application
        from nsqadmin_web.security import Security

        if lookupd_http_address:
            context = Context(lookupd_http_address=(reachable(lookupd_http_address),))
        else:
            context = Context(nsqd_http_address=(reachable(http_address),))
        commands = Commands(ClusterSettings(context))
        token_file = max(token_files, default="").partition(":")[2]  # read: comes after full:
        try:
            # The certificate is that of this process.
            cluster = make_cluster(Context(**context.settings(), tls_insecure=True, token_file=token_file))
        except AdminError as error:
            log.error("ADMIN: %s", error)
            cluster = make_cluster(context)
        with suppress(ValueError, IndexError):  # no HTTP address
            host = listed[0] or cluster.lookupds[0].address.host or "localhost"
            own = Address.parse(join_host_port(host, listed[1]))
            cluster.http.reach(own, Address.parse(reachable(http_address)))
        security = Security(token_files, log, loopback=loopback, read_only=read_only)
        return Application(cluster, commands, security, log, own_tokens=bool(token_files))

    server = PageServer(address, load, log, spawn)
    server.warn_unless(bool(read_only or token_files))
    return server
