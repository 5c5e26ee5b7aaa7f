"""The `gnsqd` command; the daemon itself is `gnsqd.nsqd`."""

import sys
from contextlib import AbstractContextManager, nullcontext

from gnsqd import process
from gnsqd.configuration import resolve
from gnsqd.log import Logger
from gnsqd.options import OPTIONS, Options, demo_checks, refuse
from gnsqd.shared.errors import StartError


def main(argv: list[str] | None = None) -> int:
    """Runs the daemon until a signal stops it; returns the exit code."""
    return process.run("nsqd", OPTIONS, sys.argv[1:] if argv is None else argv, resolve, _start)


def _start(options: Options, log: Logger) -> int:
    refuse(demo_checks(options))
    from gnsqd.nsqd import NSQD  # here, because a mistake in a flag should not wait for the whole daemon to load

    with _temporary_data_path() if options.dev and not options.data_path else nullcontext(options.data_path) as path:
        options.data_path = path
        return process.serve(lambda: NSQD(options, log))


def _temporary_data_path() -> AbstractContextManager[str]:
    from tempfile import TemporaryDirectory  # here, as few need it

    try:
        return TemporaryDirectory(prefix="gnsqd-", ignore_cleanup_errors=True)
    except OSError as error:
        raise StartError(f"failed to create a temporary data path: {error}") from error


if __name__ == "__main__":
    process.end(main())
