"""The process that serves the page of a daemon; see `process`."""

import json
import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import gevent
import gevent.socket
from gevent.event import Event

from gnsqd.log import Level, Logger, new_logger
from gnsqd.net.addresses import join_host_port
from gnsqd.net.listener import Listener
from gnsqd.shared.errors import StartError
from gnsqd.supervisor import Supervisor
from gnsqd.web.http_auth import Tokens
from gnsqd.web.routes import Role
from nsqadmin_cli.context import ClusterContext, ClusterSettings, CommandLines, make_cluster
from nsqadmin_cli.errors import AdminError
from nsqadmin_cli.http_client import Address, read_token
from nsqadmin_cli.web.app import Application
from nsqadmin_cli.web.process import is_loopback
from nsqadmin_cli.web.security import Security
from nsqadmin_cli.web.server import serve

_NICE = 10  # so that a daemon that is busy is served first


def main() -> int:
    """Serves until the daemon is gone, or nobody looks; returns the exit code."""
    with suppress(OSError):
        os.nice(_NICE)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    messages = gevent.socket.socket(fileno=0).makefile("r")
    settings = json.loads(messages.readline() or "{}")
    if not settings:
        return 0  # the daemon is gone
    log = new_logger(settings["log_format"], settings["log_prefix"], Level(settings["log_level"]))
    end = Event()

    def control_loop() -> None:
        for line in messages:
            log.set_level(Level(json.loads(line)["log_level"]))
        end.set()

    listener = Listener(settings["descriptor"])
    supervisor = Supervisor(log, end.set)
    supervisor.watch()
    gevent.signal_handler(signal.SIGTERM, end.set)
    supervisor.spawn("controlLoop", control_loop)
    try:
        security = Security(settings["token_files"], log, loopback=is_loopback(listener))
    except StartError as error:
        log.error("ADMIN: %s", error)
        return 1
    return serve(listener, _application(settings, security, log), log, supervisor, end, settings["idle_seconds"])


def _application(settings: dict[str, Any], security: Security, log: Logger) -> Application:
    """Makes the application. Tokens are sent to this nsqd alone, at its own address, as anybody may register with
    nsqlookupd: a read token, if there is one, for statistics, and the user's own for all else."""
    if settings["nsqlookupd"]:
        context = ClusterContext(lookupd_http_address=(settings["nsqlookupd"],))
    else:
        context = ClusterContext(nsqd_http_address=(settings["nsqd"],))
    commands = CommandLines(ClusterSettings(context))
    token_file = _token_file(settings["token_files"], log)
    # The certificate is that of the daemon.
    cluster = make_cluster(ClusterContext(**context.settings(), tls_insecure=True, token_file=token_file))
    with suppress(ValueError, IndexError):  # no HTTP address
        host, port = settings["listed"]
        own = Address.parse(join_host_port(host or cluster.lookupds[0].address.host or "localhost", port))
        cluster.http.reach(own, Address.parse(settings["nsqd"]))
    return Application(cluster, commands, security, log, own_tokens=bool(settings["token_files"]))


def _token_file(sources: Sequence[str], log: Logger) -> str:
    """Returns the first file, those of the role read before others, that begins with a token with a role for the
    daemon, as `NodeClient` sends the first token of a file; "" without any."""
    for source in sorted(sources, reverse=True):
        path = source.partition(":")[2]
        with suppress(AdminError, StartError):
            if Tokens([source], log).role(f"Bearer {read_token(path)}".encode()) >= Role.READ:
                return path
    if sources:
        log.error("ADMIN: no file begins with a token that may read statistics")
    return ""


if __name__ == "__main__":
    os._exit(main())  # at once: the daemon waits
