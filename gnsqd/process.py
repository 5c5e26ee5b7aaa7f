"""The common part of the commands `gnsqd` and `gnsqlookupd`: flags and config file, signals, exit codes.

Exit codes: 0 for a clean exit, `--version` and `--help`; 1 if the daemon cannot start or go on; 2 for a bad command
line and after SIGQUIT. Everything but `--version` goes to stderr (NSQD-COMPAT 1.1, 9).

`check-config FILE` starts nothing. It prints what keeps a daemon with this config file from starting, or is ignored, on
stdout, and exits with 1 if there is anything.
"""

import atexit
import contextlib
import gc
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn, TextIO, TypeVar

from gnsqd.configuration import BadValue, FlagError, HelpRequested, load_file, parse_flags, unknown_keys, usage
from gnsqd.log import Level, Logger, escape, new_logger
from gnsqd.observe import memory
from gnsqd.options import LookupdOptions, Option, Options, choice_checks, refuse
from gnsqd.shared.errors import StartError
from gnsqd.shared.version import version_string

if TYPE_CHECKING:
    from gnsqd.check_config import Resolve
    from gnsqd.supervisor import DaemonProcess

AnyOptions = TypeVar("AnyOptions", Options, LookupdOptions)

_MOST_DESCRIPTORS = 10240  # that macOS gives a process whose hard limit is none


def run(
    program: str,
    table: Sequence[Option],
    arguments: Sequence[str],
    resolve: Callable[[Mapping[str, Any], Mapping[str, Any]], AnyOptions],
    start: Callable[[AnyOptions, Logger], int],
) -> int:
    """Calls `start` with the options, which `resolve` makes of flags and config file, and the log; returns the exit
    code. `program` is the real name."""
    _reserve_standard_descriptors()
    last_log = Logger(f"[{program}] ", Level.FATAL)  # with the real daemon's own prefix, whatever log-prefix is
    try:
        if arguments[:1] == ["check-config"]:
            return _check_config(program, table, arguments[1:], resolve)
        flags, _ = parse_flags(arguments, table)
        if flags.get("version"):
            _write(sys.stdout, f"{version_string(program)}\n")
            return 0
        path = flags.get("config")
        config = load_file(path) if path else {}
        gc.disable()  # until everything is imported: next to none of it is garbage
        options = resolve(flags, config)
        last_log = new_logger(options.log_format, last_log.prefix, Level.FATAL)
        log = new_logger(options.log_format, options.log_prefix, options.log_level)
        for text in unknown_keys(config, table):
            log.warn("config file %s: %s", path, text)
        refuse(choice_checks(options, table), prefix=f"failed to instantiate {program}")
        return start(options, log)
    except HelpRequested:
        _write(sys.stderr, usage(program, table))
        return 0
    except FlagError as error:
        _write(sys.stderr, f"{error}\n{usage(program, table)}")
        return 2
    except BadValue as error:
        _write(sys.stderr, f"{time.strftime('%Y/%m/%d %H:%M:%S')} {error}\n")
        return 1
    except StartError as error:
        last_log.fatal("%s", error.line)
        return 1
    finally:
        gc.enable()


def _check_config(program: str, table: Sequence[Option], arguments: Sequence[str], resolve: "Resolve") -> int:
    if len(arguments) != 1 or arguments[0].startswith("-"):
        _write(sys.stderr, f"usage: g{program} check-config FILE\n")
        return 2
    from gnsqd.check_config import find_problems  # few need it

    problems = find_problems(arguments[0], table, resolve)
    for text in problems or ["OK"]:
        _write(sys.stdout, f"{escape(f'{arguments[0]}: {text}')}\n")
    return int(bool(problems))


def serve(new_daemon: "Callable[[], DaemonProcess]") -> int:
    """Runs the daemon until a signal stops it; returns the exit code. Raises StartError."""
    import gevent  # here, as --version and --help do not need it

    gc.freeze()
    gc.enable()
    _raise_descriptor_limit()
    gevent.config.track_greenlet_tree = False  # where each was spawned: half a kilobyte a greenlet
    gevent.config.format_context = "builtins.repr"  # that of pprint loads slowly
    daemon = new_daemon()
    for number in (signal.SIGINT, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # nohup holds
            gevent.signal_handler(number, daemon.request_exit, 0)
    gevent.signal_handler(signal.SIGTERM, daemon.terminate)
    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    # Python's own handler runs even while a greenlet spins, when a dump is needed most
    signal.signal(signal.SIGQUIT, _dump)
    daemon.start()
    memory.freeze()
    used = time.process_time()
    while not daemon.wait(memory.COLLECT_SECONDS):
        memory.collect()
        before, used = used, time.process_time()
        daemon.note_use((used - before) / memory.COLLECT_SECONDS)
    code = daemon.exit()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # else Python, as it ends, makes one more of them deadly
    return code


def end(code: int) -> NoReturn:
    """Ends as Python does, but without taking modules apart, which takes longer than everything else in a short run."""
    if threading := sys.modules.get("threading"):
        threading._shutdown()
    atexit._run_exitfuncs()
    try:
        for stream in filter(None, (sys.stdout, sys.stderr)):  # None: it was closed before Python started
            stream.flush()
    except (OSError, ValueError):
        sys.exit(code)  # Python complains, and returns another code
    os._exit(code & 0xFF)


def _dump(number: int, frame: FrameType | None) -> None:
    try:
        with contextlib.suppress(OSError):
            os.close(0)  # others may have taken all descriptors, and the import needs one
        from gevent.util import print_run_info  # loads slowly

        gc.unfreeze()  # gevent finds the greenlets among the collector's objects
        print_run_info(file=sys.stderr)
    finally:
        os._exit(2)


def _reserve_standard_descriptors() -> None:
    """Keeps files and sockets off descriptors 0 to 2 where these were closed: C code prints its complaints there."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)


def _raise_descriptor_limit() -> None:
    """Raises it to the hard limit, as Go's runtime does: every client and every queue on disk takes descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for limit in (hard, max(soft, _MOST_DESCRIPTORS)):
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
            break


def _write(stream: TextIO | None, text: str) -> None:
    """Writes `text`, unless the stream is closed or does not accept it. Escapes what its encoding does not have."""
    if stream is not None:
        with contextlib.suppress(OSError):
            stream.write(text.encode(stream.encoding, "backslashreplace").decode(stream.encoding))
            stream.flush()
