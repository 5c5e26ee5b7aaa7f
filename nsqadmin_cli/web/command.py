"""`gnsqadmin web`: serves the cluster as a page."""

import re
import signal

from gnsqd.log import Level, Logger
from gnsqd.shared.errors import StartError
from nsqadmin_cli.command_base import Parsed, command, flag, option
from nsqadmin_cli.context import ClusterSettings, CommandLines
from nsqadmin_cli.errors import AdminError
from nsqadmin_cli.units import printable


def _url(text: str) -> str:
    if text and not text.startswith(("http://", "https://")):
        raise ValueError(f"{printable(repr(text), 100)} is not an address, expected http://HOST or https://HOST.")
    return text


def _base_path(text: str) -> str:
    if not re.fullmatch(r"(/[\w.~-]+)*/?", text, re.ASCII) or {".", ".."} & set(text.split("/")):
        raise ValueError(f"{printable(repr(text), 100)} is not a path such as /nsq, of A-Z a-z 0-9 . _ ~ - /")
    return text.removesuffix("/")


@command(
    examples="""
        gnsqadmin web
        gnsqadmin web --lookupd-http-address lookup.example:4161 --read-only
        gnsqadmin web --http-address 0.0.0.0:4171 --http-auth-token-file full:/etc/nsq/page-tokens
    """,
)
def web(
    settings: ClusterSettings,
    http_address: str = option(
        "Address to listen on. The page has no encryption of its own.", default="127.0.0.1:4171", metavar="ADDRESS"
    ),
    read_only: bool = flag("Refuse all changes."),
    http_auth_token_file: tuple[str, ...] = option(
        "Require one of the tokens in FILE, one per line. ROLE is read, or full for changes. May be repeated.",
        multiple=True,
        metavar="ROLE:FILE",
    ),
    grafana_url: str = option(
        "Link to this address of Grafana on every page.", Parsed("URL", _url), default="", metavar="URL"
    ),
    base_path: str = option(
        "Path below which the page is, for a proxy that passes it on unchanged.",
        Parsed("PATH", _base_path),
        default="",
        metavar="PATH",
    ),
) -> int:
    """Serve the cluster as a page for browsers, with nsqadmin's JSON API.

    It is served until Ctrl-C. The page shows topics, channels, consumers, nodes, rates, findings of doctor, nsqlookupds
    and queued messages. Changes show their losses before they are confirmed. /api/ has the paths and answers of
    nsqadmin.

    On another address than 127.0.0.1, everybody who can reach it can change the cluster, unless --read-only or
    --http-auth-token-file is given. These tokens are for the page; --token-file is for requests to nsqds.
    """
    import gevent  # help needs neither this nor what follows
    from gevent.event import Event

    from gnsqd.net.listener import Listener
    from gnsqd.supervisor import Supervisor
    from nsqadmin_cli.web.app import Application
    from nsqadmin_cli.web.process import is_loopback, url_of, warn_unless
    from nsqadmin_cli.web.security import Security
    from nsqadmin_cli.web.server import serve

    log = Logger("[gnsqadmin] ", Level.INFO)
    cluster = settings.cluster()
    try:
        listener = Listener(http_address, tcp_only=True)
        security = Security(http_auth_token_file, log, loopback=is_loopback(listener), read_only=read_only)
    except StartError as error:
        raise AdminError(str(error)) from None
    warn_unless(bool(read_only or http_auth_token_file), listener, log)
    end = Event()
    supervisor = Supervisor(log, end.set)
    supervisor.watch()
    application = Application(
        cluster, CommandLines(settings), security, log, grafana_url=grafana_url, base_path=base_path
    )
    for number in (signal.SIGINT, signal.SIGTERM):
        gevent.signal_handler(number, end.set)
    log.info("ADMIN: the page is at %s%s", url_of(listener), base_path)
    return serve(listener, application, log, supervisor, end)
