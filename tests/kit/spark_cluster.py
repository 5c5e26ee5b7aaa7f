"""A Spark cluster of processes of its own: a master and workers, started by the launcher that pyspark brings along.

`spark-class` is the script behind start-master.sh and start-worker.sh, which pyspark leaves out. Ports are 0 and read
from the logs; executors are processes that the workers start."""

import importlib.util
import os
import re
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from kit.daemons import DEADLINE, eventually

STARTED = 120.0  # seconds that a JVM may take to serve, on a machine that does other things


def spark_home() -> Path:
    """Returns where pyspark has its jars and scripts."""
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


class ClusterProcess:
    """A process in a group of its own, with its log; `kill` ends the whole group.

    Nobody waits for it before that: as long as it is a zombie, no other group gets its number.
    """

    def __init__(self, command: Sequence[str | Path], environment: Mapping[str, str], log: Path) -> None:
        self.log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [str(word) for word in command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=log.parent,
                start_new_session=True,
            )

    def text(self) -> str:
        return self.log.read_text("utf-8", "replace")

    def code(self) -> int | None:
        """Returns what it ended with, also a signal; None while it runs."""
        if self._process.returncode is not None:
            return self._process.returncode
        ended = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return None if ended is None else ended.si_status

    def find(self, pattern: str, timeout: float = STARTED) -> re.Match[str]:
        """Waits for the first match of `pattern` in the log. Raises AssertionError if the process ends before it."""
        expected = re.compile(pattern, re.MULTILINE)

        def found() -> re.Match[str] | None:
            code = self.code()
            match = expected.search(self.text())
            assert match or code is None, f"exited with {code}:\n{self.text()}"
            return match

        return eventually(found, f"{pattern} in {self.log}", timeout)

    def wait(self, timeout: float) -> int:
        """Returns the exit code. Raises AssertionError with the log if the process does not end in time."""
        try:
            eventually(lambda: self.code() is not None, "the end", timeout)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.text()}") from None
        code = self.code()
        assert code is not None
        return code

    def kill(self) -> None:
        """Sends SIGKILL to all of the group, ended or not."""
        if self._process.returncode is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(DEADLINE)

    def __enter__(self) -> "ClusterProcess":
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()


@contextmanager
def cluster(directory: Path, environment: Mapping[str, str], workers: int = 2) -> Iterator[str]:
    """Lends the URL of a master with `workers` workers of a core each; they and their executors end with the block.

    `environment` is that of the workers, and so of the executors' Python.
    """
    directory.mkdir(parents=True, exist_ok=True)
    own = {**environment, "SPARK_DAEMON_MEMORY": "256m", "SPARK_HOME": str(spark_home())}
    launch = [spark_home() / "bin" / "spark-class"]
    listen = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
    with ExitStack() as stack:

        def start(role: str, log: str, *flags: str | Path) -> ClusterProcess:
            command = [*launch, f"org.apache.spark.deploy.{role}", *listen, *flags]
            return stack.enter_context(ClusterProcess(command, own, directory / f"{log}.log"))

        url = start("master.Master", "master").find(r"Starting Spark master at (spark://\S+)$")[1]
        flags = ["--cores", "1", "--memory", "1g", "--work-dir"]
        names = [f"worker-{number}" for number in range(workers)]
        for worker in [start("worker.Worker", name, *flags, directory / name, url) for name in names]:
            worker.find("Successfully registered with master")
        yield url
