"""The `gnsqadmin` command line: the group of all commands, and how a run ends.

Exit codes are in `options.ExitCode`. A user's mistake is a line on stderr, never a traceback. Ctrl-C and a reader that
went away (`| head`) end the run without a word; click makes an `Abort` of the one and an exit with 1 of the other.
"""

import io
import os
import sys
from typing import NoReturn

import click

from gnsqd.version import VERSION
from nsqadmin_cli.commands.stats import stats
from nsqadmin_cli.options import ExitCode


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(VERSION, prog_name="gnsqadmin", message="%(prog)s %(version)s")
def cli() -> None:
    """Look after NSQ: what is in the queues of gnsqd and nsqd.

    \b
    Exit codes:
      0    all is well
      1    a node could not be asked, or answered nonsense
      2    wrong usage
      130  interrupted
    """


cli.add_command(stats)


def main() -> NoReturn:
    """Run the command line of this process."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # a name that the terminal's encoding lacks is no reason to fail
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        status = cli.main(prog_name="gnsqadmin", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        status = error.exit_code
    except click.Abort:
        status = ExitCode.INTERRUPTED
    except OSError as error:  # of standard output, such as a full disk: those of nodes are NodeErrors
        click.echo(f"Error: cannot write the output: {error.strerror}", err=True)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is left in the buffer
        status = ExitCode.FAILED
    sys.exit(status)
