"""A Spark cluster of processes of its own: a master and workers, started by the launcher that pyspark brings along.

`spark-class` is the script behind start-master.sh and start-worker.sh, which pyspark leaves out. Ports are 0 and read
from the logs; executors are processes that the workers start."""

import importlib.util
import os
import re
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from kit.daemons import DEADLINE, eventually

STARTED = 120.0  # seconds that a JVM may take to serve, on a machine that does other things


def spark_home() -> Path:
    """Where pyspark has its jars and scripts."""
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


class Process:
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
        """What it ended with, a signal too; None while it runs."""
        if self._process.returncode is not None:
            return self._process.returncode
        ended = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return None if ended is None else ended.si_status

    def find(self, pattern: str, timeout: float = STARTED) -> re.Match[str]:
        """The first match of `pattern` in the log, waited for; AssertionError when the process ends before it."""
        wanted = re.compile(pattern, re.MULTILINE)

        def found() -> re.Match[str] | None:
            code = self.code()
            match = wanted.search(self.text())
            assert match or code is None, f"exited with {code}:\n{self.text()}"
            return match

        return eventually(found, f"{pattern} in {self.log}", timeout)

    def wait(self, timeout: float) -> int:
        """The exit code; AssertionError with the log when the process does not end in time."""
        try:
            eventually(lambda: self.code() is not None, "the end", timeout)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.text()}") from None
        code = self.code()
        assert code is not None
        return code

    def kill(self) -> None:
        """SIGKILL to all of the group, ended or not."""
        if self._process.returncode is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(DEADLINE)

    def __enter__(self) -> "Process":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.kill()


class Cluster:
    """One master and `workers` workers with a core each; `url` is `spark://...`. `with` ends them and their executors.

    `environment` is that of the workers, and so of the executors' Python.
    """

    def __init__(self, directory: Path, environment: Mapping[str, str], workers: int = 2, memory: str = "1g") -> None:
        self._processes: list[Process] = []
        directory.mkdir(parents=True, exist_ok=True)
        launch: list[str | Path] = [spark_home() / "bin" / "spark-class"]
        own = {**environment, "SPARK_DAEMON_MEMORY": "256m", "SPARK_HOME": str(spark_home())}
        listen = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
        try:
            master = [*launch, "org.apache.spark.deploy.master.Master", *listen]
            self._processes.append(Process(master, own, directory / "master.log"))
            self.url = self._processes[0].find(r"Starting Spark master at (spark://\S+)$")[1]
            for number in range(workers):
                work = directory / f"worker-{number}"
                command = [*launch, "org.apache.spark.deploy.worker.Worker", *listen]
                command += ["--cores", "1", "--memory", memory, "--work-dir", work, self.url]
                self._processes.append(Process(command, own, directory / f"worker-{number}.log"))
            for worker in self._processes[1:]:
                worker.find("Successfully registered with master")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        for process in reversed(self._processes):
            process.kill()

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
