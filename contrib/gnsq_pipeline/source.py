"""The options of `format("nsq")` that commands put together, checked before Spark is started."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from gnsq_pipeline.archive import CHECKPOINT
from gnsq_pipeline.errors import NotFound, UsageError
from gnsq_pipeline.parameters import StreamOptions

SPOOL = "_spool"

# The command line's options for these options.
_FLAGS = {
    "subscribe": "--topic",
    "channel": "--channel",
    "nsq.lookupd.http.addresses": "--lookupd-http-address",
    "nsq.nsqd.tcp.addresses": "--nsqd-tcp-address",
    "nsq.nsqd.http.addresses": "--nsqd-http-address",
    "spoolLocation": "--spool",
    "topic": "--to-topic",
}


def checked(options: Mapping[str, str], use: str) -> dict[str, str]:
    """`options` as they are; UsageError if format("nsq") would refuse them for `use`."""
    from pyspark_nsq.errors import OptionError
    from pyspark_nsq.options import parse

    try:
        parse(options, use)
    except OptionError as error:
        text = str(error)
        for name, flag in _FLAGS.items():
            for prefix in ("option ", "options ", ""):
                text = text.replace(f"{prefix}{name!r}", flag)
        raise UsageError(text) from None
    return dict(options)


def read_options(options: StreamOptions) -> dict[str, str]:
    """The options of `format("nsq")` for a stream; UsageError if something is missing or wrong."""
    given = {
        "subscribe": ",".join(options.topics),
        "channel": options.channel,
        "spoolLocation": options.spool,
        "maxMessagesPerTrigger": options.max_messages,
    }
    return checked(options.nodes | {name: str(value) for name, value in given.items() if value}, "readStream")


def require_topics(options: Mapping[str, str]) -> None:
    """NotFound if no nsqd has one of the topics of a stream: its name is probably wrong."""
    from pyspark_nsq.discovery import missing_topics
    from pyspark_nsq.options import parse

    if missing := missing_topics(parse(options, "readStream")):
        topics = f"topic {missing[0]!r}" if len(missing) == 1 else f"topics {', '.join(map(repr, missing))}"
        raise NotFound(f"no nsqd has the {topics}; --allow-missing-topics runs nevertheless")


def local_path(location: str) -> Path | None:
    """The path of this machine that `location` names, None if it is on another file system."""
    if not location:
        raise UsageError("an empty path names no directory")
    location = re.sub("^file:(?://)?(?=/)", "", location)
    return None if "://" in location else Path(location)


def require_directory(location: str) -> None:
    """NotFound if a directory of this machine is missing."""
    if (path := local_path(location)) is not None and not path.exists():
        raise NotFound(f"{location}: no such directory")


def placed(options: StreamOptions, output: str, table_format: str) -> StreamOptions:
    """`options` with the spool and the checkpoint of a stream: as given, else in hidden directories of its output.

    The checkpoint of Parquet is always there (see `archive`). UsageError if they have no place: a spool needs a file
    system of this machine, and an Iceberg table is not a directory.
    """
    if table_format == "iceberg" and "/" in output:
        raise UsageError(f"{output}: --format iceberg needs the name of a table, catalog.database.table")
    name = (options.channel or "").replace("#", "-")
    path = None if table_format == "iceberg" else local_path(output)
    spool, checkpoint = options.spool, options.checkpoint
    if spool is None:
        if path is None:
            raise UsageError(f"--spool is required with {output}: a directory that is mounted on every machine")
        spool = str(path.absolute() / SPOOL / name)
    if table_format == "parquet" and checkpoint is not None:
        raise UsageError("--checkpoint is for other formats: the checkpoint of a Parquet table is in its directory")
    if checkpoint is None:
        if table_format == "iceberg":
            raise UsageError("--checkpoint is required with --format iceberg")
        checkpoint = f"{path.absolute() if path else output.rstrip('/')}/{CHECKPOINT}"
        checkpoint += f"/{name}" if table_format == "delta" else ""
    return replace(options, spool=spool, checkpoint=checkpoint)
