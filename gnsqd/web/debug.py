"""Serves /debug: statistics of this process at the paths of nsqd's pprof, always as text; _PAGES lists them.

A CPU profile has one line for each different stack, `frame;frame;frame samples` with the outermost frame first: the
collapsed format of flamegraph.pl, inferno and speedscope. Its first frame is the kind of greenlet. A timer of CPU time
takes the samples, SAMPLES_PER_SECOND of them on a busy core and none while the daemon waits.

Compiled modules have no frames: their time counts for the Python code that runs next.
"""

import gc
import signal
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from traceback import walk_stack
from types import FrameType
from weakref import WeakSet

from gevent import Greenlet, get_hub
from gevent.event import Event
from gevent.hub import Hub
from greenlet import getcurrent

from gnsqd.gotext import NumberError, parse_int
from gnsqd.hub.cooperative import Turns
from gnsqd.observe.memory import MemoryStats, collect
from gnsqd.web.http11 import Request
from gnsqd.web.routes import BadQuery, Content, HTTPError, parse_query

SAMPLES_PER_SECOND = 100
DEFAULT_SECONDS = 30
MAX_SECONDS = 300

_PAGES = {
    "block": "where greenlets wait, and how many of each kind",
    "cmdline": "the command line",
    "goroutine": "the greenlets by name, with their stacks",
    "heap": "figures of memory",
    "profile": f"who used the CPU: collapsed stacks for a flame graph; ?seconds=N, {DEFAULT_SECONDS} by default",
    "symbol": "there are no addresses to resolve",
    "threadcreate": "the threads, with their stacks",
}


class Debug:
    """The endpoints of one daemon. Owns the record of its greenlets, from `start` to `stop`; `crashes` counts failed
    ones by kind. `held()` counts what the daemon holds, and may yield."""

    def __init__(
        self, held: Callable[[], Mapping[str, object]], memory: MemoryStats, crashes: Mapping[str, int]
    ) -> None:
        self.memory = memory
        self.crashes = crashes
        self._held = held
        self._greenlets: WeakSet[Greenlet[..., object]] = WeakSet()
        self._profiling = False
        self._stopped = Event()

    def start(self) -> None:
        """Records greenlets from now on."""
        Greenlet.add_spawn_callback(self._greenlets.add)

    def stop(self) -> None:
        """Ends a running profile, which is answered with the samples so far."""
        self._stopped.set()
        Greenlet.remove_spawn_callback(self._greenlets.add)

    def greenlet_count(self) -> int:
        return len(self._greenlets)

    def index(self, request: Request) -> Content:
        rows = [
            f"<tr><td><a href='/debug/pprof/{name}'>{name}</a></td><td>{what}</td></tr>\n"
            for name, what in _PAGES.items()
        ]
        title = "<title>/debug/pprof/</title>"
        page = f"<html>\n<head>{title}</head>\n<body>\n<table>\n{''.join(rows)}</table>\n</body>\n</html>\n"
        return Content(page.encode(), "text/html; charset=utf-8")

    def cmdline(self, request: Request) -> str:
        return "\0".join(sys.orig_argv)

    def symbol(self, request: Request) -> str:
        return "num_symbols: 0\n"

    def goroutine(self, request: Request) -> str:
        names: dict[tuple[str, ...], list[str]] = defaultdict(list)
        for name, frames in self._stacks():
            names[frames].append(name)
        groups = sorted((sorted(alike), frames) for frames, alike in names.items())
        return _page("goroutine", sum(len(alike) for alike, _ in groups), groups)

    def block(self, request: Request) -> str:
        places: Counter[tuple[str, str]] = Counter()
        for name, frames in self._stacks():
            places[_kind(name), next((frame for frame in frames if frame.startswith("gnsqd.")), "")] += 1
        lines = [f"{count}\t{kind}\t{place}\n" for (kind, place), count in places.most_common()]
        return "".join(["--- contention:\n", *lines])

    def threadcreate(self, request: Request) -> str:
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        tops = sys._current_frames()
        groups = sorted(([names.get(ident, f"thread {ident}")], _stack(top)) for ident, top in tops.items())
        return _page("threadcreate", len(groups), groups)

    def heap(self, request: Request) -> str:
        figures: dict[str, object] = {}
        with suppress(FileNotFoundError), open("/proc/self/status", encoding="utf-8", errors="replace") as status:
            for line in status:
                name, _, value = line.partition(":")
                if name.startswith("Vm") or name in ("RssAnon", "Threads"):
                    figures[name] = value.strip()
        figures |= self.memory.row()
        for generation, stats in enumerate(gc.get_stats()):
            figures[f"gc_generation_{generation}"] = ", ".join(f"{stats[name]} {name}" for name in stats)
        figures |= {"greenlets": self.greenlet_count(), **self._held()}
        return "heap profile:\n" + "".join(f"{name} = {value}\n" for name, value in figures.items())

    def profile(self, request: Request) -> Content:
        seconds = 0
        with suppress(NumberError):
            seconds = parse_int(_parameter(request, "seconds"))
        seconds = seconds if seconds > 0 else DEFAULT_SECONDS
        if seconds > MAX_SECONDS:
            raise HTTPError(400, f"profile duration exceeds {MAX_SECONDS} seconds\n")
        if self._profiling:
            raise HTTPError(500, "Could not enable CPU profiling: cpu profiling already in use\n")
        self._profiling = True
        try:
            with _sampling() as samples:
                self._stopped.wait(seconds)
        finally:
            self._profiling = False
        lines = [f"{stack} {count}\n" for stack, count in sorted(samples.items())]
        return Content("".join(lines).encode(), "text/plain; charset=utf-8")

    def set_block_rate(self, request: Request) -> None:
        """Checks the rate only: `block` looks at all greenlets, and takes no samples."""
        rate = _parameter(request, "rate")
        try:
            parse_int(rate)
        except NumberError as error:
            raise HTTPError(400, f"invalid block rate : {NumberError('Atoi', rate, error.reason)}") from error

    def free_memory(self, request: Request) -> None:
        collect()
        get_hub().threadpool.apply(_trim)

    def _stacks(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Yields name and stack, innermost frame first, of each greenlet, and to other greenlets in between."""
        hub = get_hub()
        yield "main", _stack(hub.parent.gr_frame)
        yield "hub", _stack(hub.gr_frame)
        for greenlet in Turns().over(list(self._greenlets)):
            if not greenlet.dead:
                yield greenlet.name, _stack(sys._getframe() if greenlet is getcurrent() else greenlet.gr_frame)


def _kind(name: str) -> str:
    """Returns the kind of a greenlet: `messagePump` of `messagePump:topic`."""
    return name.partition(":")[0]


def _page(title: str, total: int, groups: Sequence[tuple[Sequence[str], Sequence[str]]]) -> str:
    """Formats names, and their common stack."""
    parts = [f"{title} profile: total {total}\n"]
    parts += ["\n".join(["", *names, *(f"\t{frame}" for frame in frames), ""]) for names, frames in groups]
    return "".join(parts)


def _function(frame: FrameType) -> str:
    return f"{frame.f_globals.get('__name__')}.{frame.f_code.co_qualname}"


def _stack(frame: FrameType | None) -> tuple[str, ...]:
    """Returns function, file and line of a frame and its callers."""
    frames = () if frame is None else walk_stack(frame)
    return tuple(f"{_function(frame)} {frame.f_code.co_filename}:{line}" for frame, line in frames)


@contextmanager
def _sampling() -> Iterator[Counter[str]]:
    """Counts collapsed stacks while the context lasts. Only the main thread may call it."""
    samples: Counter[str] = Counter()

    def sample(number: int, frame: FrameType | None) -> None:
        current = getcurrent()
        frames = [] if frame is None else [_function(caller) for caller, _ in walk_stack(frame)]
        if isinstance(current, Greenlet):
            frames.append(_kind(current.name))
        else:
            frames.append("hub" if isinstance(current, Hub) else "main")
        samples[";".join(reversed(frames))] += 1

    signal.signal(signal.SIGPROF, sample)
    signal.setitimer(signal.ITIMER_PROF, 1 / SAMPLES_PER_SECOND, 1 / SAMPLES_PER_SECOND)
    try:
        yield samples
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        # One may still be on its way: without a handler it would end the process, ignored it would be complained of.
        signal.signal(signal.SIGPROF, lambda number, frame: None)


def _trim() -> None:
    """Returns free memory to the system, if the C library can."""
    with suppress(AttributeError):
        import ctypes  # imported late, as few need it

        ctypes.CDLL(None).malloc_trim(0)


def _parameter(request: Request, name: str) -> str:
    """Returns a parameter of a form in the body, else of the query; like Go, skips what cannot be parsed."""
    sources = [request.query]
    media_type = request.headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if media_type == b"application/x-www-form-urlencoded" and not (request.broken or request.too_big):
        sources.insert(0, request.body.decode("utf-8", "replace"))
    for part in "&".join(sources).split("&"):
        with suppress(BadQuery):
            parameters = parse_query(part)
            if name in parameters:
                return parameters[name]
    return ""
