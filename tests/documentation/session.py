"""Runs the marked blocks of one page, as a reader would type them, in a directory of its own.

The commands that a reader has are there: `make run`, gnsqd, gnsqlookupd, gnsqadmin and python, on the PATH and in
.venv/bin. A gnsqd listens on ports that were free instead of 4150 and 4151, a gnsqlookupd instead of 4160 and 4161, and
these and those of others, 4250, 4251, 4350 and 4351, are replaced wherever they stand in a block. A page that starts no
daemon finds one running.
"""

import os
import re
import shlex
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cli.gnsqadmin import COMMAND as GNSQADMIN
from cli.gnsqadmin import environment
from documentation.markdown import Step
from kit.daemons import DEADLINE, eventually, free_port, own_command
from kit.lookupds import own_lookupd_command

_STARTS_DAEMON = re.compile(r"^make run|\bgnsqd .*--(?:data-path|config)=", re.MULTILINE)
_SHOWN = 4000  # characters
_PROGRAM_SECONDS = 100.0

_MAKE = """\
[ "$1" = run ] || { echo "no rule for $1" >&2; exit 2; }
mkdir -p data
exec gnsqd --data-path=data
"""


class ReaderSession:
    """Owns the directory, the ports and every process that the blocks start; `with` ends these."""

    def __init__(self, directory: Path, page: str) -> None:
        self._page = page
        self._directory = directory / "clone"
        self._records = directory / "records"
        self._ports = {f"4{middle}{last}": str(free_port()) for middle in (15, 16, 25, 35) for last in (0, 1)}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._count = 0
        self._printed = ""  # by the last run
        commands = self._directory / ".venv" / "bin"
        commands.mkdir(parents=True)
        self._records.mkdir()
        addresses = self._own("--tcp-address=127.0.0.1:4150 --http-address=127.0.0.1:4151")
        with_addresses = f'[ "$1" = check-config ] || set -- {addresses} "$@"'
        _write_command(commands / "gnsqd", f'{with_addresses}\nexec {shlex.join(own_command())} "$@"\n')
        addresses = self._own("--tcp-address=127.0.0.1:4160 --http-address=127.0.0.1:4161")
        _write_command(commands / "gnsqlookupd", f'exec {shlex.join(own_lookupd_command())} {addresses} "$@"\n')
        _write_command(commands / "gnsqadmin", f'exec {shlex.join(GNSQADMIN)} "$@"\n')
        _write_command(commands / "python", f'exec {shlex.quote(sys.executable)} "$@"\n')
        _write_command(commands / "make", _MAKE)
        self._environment = environment(
            PATH=f"{commands}{os.pathsep}{os.environ['PATH']}",
            HOME=str(self._directory),
            TMPDIR=str(self._records),
            GNSQADMIN_NSQD_HTTP_ADDRESS=self._own("127.0.0.1:4151"),
            PYTEST_DISABLE_PLUGIN_AUTOLOAD="1",
        )

    def run(self, steps: Sequence[Step]) -> None:
        """Runs all of them; raises AssertionError at the first that does not do what the page says."""
        if any(step.language == "shell" for step in steps) and not _STARTS_DAEMON.search(
            "\n".join(step.text for step in steps)
        ):
            self._start("daemon", "mkdir data; exec gnsqd --data-path=data")
            self._wait_serving()
        for step, following in zip(steps, [*steps[1:], None], strict=True):
            try:
                expected = following.text if following is not None and following.mark == "prints" else ""
                self._step(step, self._own(step.text), expected)
            except AssertionError as error:
                raise AssertionError(f"{self._page}, line {step.line}: {error}\n\n{step.text}") from None

    def _step(self, step: Step, text: str, expected: str) -> None:
        match step.mark.partition(": "), step.language:
            case ("run", _, ""), "shell":
                self._type(text)
            case ("run", _, "exit 1"), "shell":
                self._type(f"if (\n{text}\n); then false; else [ $? = 1 ]; fi")
            case ("run", _, ""), "python":
                self._run_python(text, "program.py", "program.py")
            case ("run", _, "pytest"), "python":
                self._run_python(text, "test_program.py", "-m", "pytest", "-p", "gnsqd.pytest_plugin", "-q")
            case ("run", _, "until Ctrl-C"), "shell":
                self._interrupt(self._start("program", text), expected)
            case ("run", _, terminal), "shell":
                self._start(terminal, text)
                self._wait_serving()
            case ("Ctrl-C", _, terminal), _:
                process = self._processes.pop(terminal)
                os.killpg(process.pid, signal.SIGINT)
                assert process.wait(DEADLINE) == 0, f"{terminal} ended with {process.returncode}"
            case ("file", _, name), _:
                (self._directory / name).write_text(text, "utf-8")
            case ("prints", _, ""), _:
                assert matches(step.text, self._printed), f"this was printed:\n{self._printed}\nand not"
            case _:
                raise AssertionError(f"unknown mark {step.mark} before a block of {step.language}")

    def _own(self, text: str) -> str:
        return re.sub(r"\b4(?:[123]5|16)[01]\b", lambda match: self._ports[match[0]], text)

    def _shown(self, path: Path) -> str:
        text = path.read_text("utf-8", "replace")
        for usual, port in self._ports.items():
            text = re.sub(rf"\b{port}\b", usual, text)
        return text

    def _record(self, kind: str) -> Path:
        self._count += 1
        return self._records / f"{self._count}.{kind}"

    # The reader's terminals

    def _start(self, name: str, text: str) -> Path:
        """Starts a command that goes on, in a terminal of that name; returns the file that it prints to."""
        output = self._record("out")
        with output.open("wb") as out, self._record("err").open("wb") as err:
            self._processes[name] = self._bash("-c", text, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
        return output

    def _bash(self, *words: str, **streams: Any) -> "subprocess.Popen[bytes]":
        # Without this, programs would ignore Ctrl-C, as pytest's workers do.
        streams["preexec_fn"] = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)
        return subprocess.Popen(
            ["bash", *words], **streams, cwd=self._directory, env=self._environment, start_new_session=True
        )

    def _type(self, text: str) -> None:
        """Types into the one shell of the page: what a block sets or starts is there for the next."""
        shell = self._processes.get("shell")
        if shell is None:
            nowhere = subprocess.DEVNULL
            shell = self._bash("-eu", "-o", "pipefail", stdin=subprocess.PIPE, stdout=nowhere, stderr=nowhere)
            self._processes["shell"] = shell
        out, err, done = self._record("out"), self._record("err"), self._record("done")
        assert shell.stdin is not None
        shell.stdin.write(f"exec >{out} 2>{err}\n{text}\n: >{done}\n".encode())
        shell.stdin.flush()
        eventually(lambda: done.exists() or shell.poll() is not None, "end of the block")
        assert done.exists(), f"failed, and printed:\n{self._shown(err)[-_SHOWN:]}"
        self._printed = self._shown(out)
        if text.rstrip().endswith("&"):
            self._wait_serving()

    def _interrupt(self, output: Path, expected: str) -> None:
        process = self._processes.pop("program")
        try:
            eventually(lambda: matches(expected, self._shown(output)) or process.poll() is not None, "output")
        except AssertionError:
            pass  # what it printed is compared next, and shown
        finally:
            os.killpg(process.pid, signal.SIGINT)
            process.wait(DEADLINE)
            self._printed = self._shown(output)

    def _run_python(self, text: str, name: str, *arguments: str) -> None:
        (self._directory / name).write_text(text, "utf-8")
        command, seconds = [sys.executable, *arguments], _PROGRAM_SECONDS
        done = subprocess.run(
            command, cwd=self._directory, env=self._environment, capture_output=True, text=True, timeout=seconds
        )
        assert done.returncode == 0, f"failed, and printed:\n{(done.stdout + done.stderr)[-_SHOWN:]}"
        self._printed = done.stdout

    def _wait_serving(self) -> None:
        eventually(self._answers, "a daemon that serves")

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(self._own("http://127.0.0.1:4151/ping"), timeout=DEADLINE) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def __enter__(self) -> "ReaderSession":
        return self

    def __exit__(self, *error: object) -> None:
        for process in self._processes.values():
            if process.stdin is not None:
                process.stdin.close()
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()


def matches(expected: str, printed: str) -> bool:
    """Returns True if that was printed, with `...` for anything."""
    lines = [
        "(?:.*\n)*" if line == "..." else f"{'.*'.join(map(re.escape, line.split('...')))}\n"
        for line in expected.rstrip("\n").split("\n")
    ]
    without_ends = "".join(f"{line.rstrip()}\n" for line in printed.rstrip().split("\n"))
    return re.fullmatch("".join(lines), without_ends) is not None


def _write_command(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}", "utf-8")
    path.chmod(0o755)
