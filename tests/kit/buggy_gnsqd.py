"""gnsqd with defects, which a test brings about while it runs.

As a program: runs gnsqd's `__main__` with the arguments given, and looks into a control file. As a module: `Bugs` is
the test's end of that file.

The file holds a line. `throw KIND` raises `Injected` where a greenlet of that kind waits; `start KIND` in the next one
that starts, in place of what it would do, KIND being the beginning of the name; `fsync FILE` in the next fsync of a
file whose path has that in it; `resolve HOST` where the address of that host is asked for next.
"""

import os
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any
from weakref import WeakSet

import gevent
import gevent.socket

VARIABLE = "GNSQD_BUGS"  # path of the control file
_POLL_SECONDS = 0.01


class Injected(Exception):
    """A defect."""


class Bugs:
    """The defects of the daemons started by `command`, which is made of the Python that runs gnsqd."""

    def __init__(self, control: Path, python: list[str]) -> None:
        self._control = control
        self._control.write_text("")
        self.command = ["env", f"{VARIABLE}={self._control}", *python, "-P", __file__]

    def bring_about(self, what: str) -> None:
        temporary = self._control.with_suffix(".tmp")
        temporary.write_text(what)
        temporary.rename(self._control)

    def done(self) -> bool:
        return not self._control.read_text()


def _run() -> None:
    from gnsqd.supervisor import Supervisor

    control = os.environ[VARIABLE]
    greenlets: WeakSet[gevent.Greenlet[..., object]] = WeakSet()
    gevent.Greenlet.add_spawn_callback(greenlets.add)

    def fault() -> tuple[str, str]:
        with open(control, encoding="utf-8") as file:
            verb, _, kind = file.read().partition(" ")
        return verb, kind

    def take() -> None:
        with open(control, "w", encoding="utf-8"):
            pass

    def throw() -> None:
        while True:
            gevent.sleep(_POLL_SECONDS)
            verb, kind = fault()
            if verb == "throw":
                for greenlet in list(greenlets):
                    if not greenlet.dead and greenlet.name.startswith(kind):
                        take()
                        greenlet.kill(Injected(kind), block=False)
                        break

    fsync = os.fsync
    getaddrinfo = gevent.socket.getaddrinfo

    def injecting(spawn: Callable[..., Any]) -> Callable[..., Any]:
        def start(self: Supervisor, name: str, body: Callable[[], None]) -> Any:
            def begin() -> None:
                verb, kind = fault()
                if verb == "start" and name.startswith(kind):
                    take()
                    raise Injected(kind)
                body()

            return spawn(self, name, begin)

        return start

    def sync(descriptor: int) -> None:
        verb, part = fault()
        if verb == "fsync" and part in os.readlink(f"/proc/self/fd/{descriptor}"):
            take()
            raise Injected("fsync")
        fsync(descriptor)

    def resolve(host: str, *arguments: Any, **options: Any) -> Any:
        if fault() == ("resolve", host):
            take()
            raise Injected(host)
        return getaddrinfo(host, *arguments, **options)

    modules: Any = Supervisor
    modules.spawn = injecting(Supervisor.spawn)
    modules.spawn_for_client = injecting(Supervisor.spawn_for_client)
    functions: Any = os
    functions.fsync = sync
    functions = gevent.socket
    functions.getaddrinfo = resolve
    thrower = gevent.Greenlet(throw)
    thrower.start()
    runpy.run_module("gnsqd", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _run()
