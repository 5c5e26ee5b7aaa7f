"""CPU time of Spark's Python processes, which are descendants of the JVM that this process has started."""

import os
from pathlib import Path

_TICK = os.sysconf("SC_CLK_TCK")


def python_cpu() -> float:
    """User and system seconds of all of them so far, ended ones included."""
    parents: dict[int, int] = {}
    seconds: dict[int, float] = {}
    jvms = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = path.read_text()
        except OSError:
            continue  # it has ended
        pid = int(path.parent.name)
        name, _, rest = text.partition("(")[2].rpartition(")")
        fields = rest.split()
        parents[pid] = int(fields[1])
        seconds[pid] = sum(map(int, fields[11:15])) / _TICK  # its own, and of children that it has waited for
        if name == "java":
            jvms.add(pid)

    def is_of_spark(pid: int) -> bool:
        while pid in parents and pid not in jvms:
            pid = parents[pid]
        return parents.get(pid) == os.getpid()

    return sum(seconds[pid] for pid in parents if pid not in jvms and is_of_spark(pid))
