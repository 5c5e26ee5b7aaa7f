"""What arrived in the files that a stream wrote, against what was published."""

import json
from pathlib import Path
from typing import NamedTuple

import pyarrow.parquet as pq


class Tally(NamedTuple):
    """`rows` of the files, `ids` distinct (nsqd, topic, message_id) among them; `lost` and `duplicated` bodies."""

    published: int
    rows: int
    ids: int
    lost: int
    duplicated: int


def files(out: Path) -> list[Path]:
    """The files that count: the ones in the sink's log. A killed job leaves others."""
    found = set()
    log = out / "_spark_metadata"
    for entry in log.iterdir() if log.exists() else ():
        if entry.name.removesuffix(".compact").isdecimal():
            version, *lines = entry.read_text("utf-8").splitlines()
            assert version == "v1", version
            found |= {Path(json.loads(line)["path"].removeprefix("file://")) for line in lines}
    return sorted(found)


def tally(out: Path, published: int) -> Tally:
    """Of bodies numbered from 0 to `published`."""
    rows = 0
    ids: set[tuple[str, str, str]] = set()
    numbers: set[int] = set()
    for path in files(out):
        table = pq.read_table(path, columns=["nsqd", "topic", "message_id", "value"]).to_pydict()
        rows += len(table["value"])
        ids.update(zip(table["nsqd"], table["topic"], table["message_id"], strict=True))
        numbers.update(int(value.split()[0]) for value in table["value"])
    assert numbers <= set(range(published)), "something came that nobody published"
    return Tally(published, rows, len(ids), published - len(numbers), rows - len(numbers))
