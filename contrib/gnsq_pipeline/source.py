"""The options of `format("nsq")` that commands put together, looked at before Spark is started."""

from collections.abc import Mapping, Sequence

from gnsq_pipeline.errors import NotFound, UsageError
from gnsq_pipeline.files import local_path

SPOOL = "_spool"
CHECKPOINT = "_checkpoint"

# The command line's options for these options.
_FLAGS = {
    "'subscribe'": "--topic",
    "'channel'": "--channel",
    "'nsq.lookupd.http.addresses'": "--lookupd-http-address",
    "'nsq.nsqd.tcp.addresses'": "--nsqd-tcp-address",
    "'nsq.nsqd.http.addresses'": "--nsqd-http-address",
    "'spoolLocation'": "--spool",
    "'topic'": "--to-topic",
}


def checked(options: Mapping[str, str], use: str) -> dict[str, str]:
    """`options` as they are; UsageError when format("nsq") would refuse them for `use`."""
    from pyspark_nsq.errors import OptionError
    from pyspark_nsq.options import parse

    try:
        parse(options, use)
    except OptionError as error:
        text = str(error)
        for name, flag in _FLAGS.items():
            text = text.replace(f"option {name}", flag).replace(f"options {name}", flag).replace(name, flag)
        raise UsageError(text) from None
    return dict(options)


def stream_options(
    nodes: Mapping[str, str],
    topics: Sequence[str],
    channel: str | None,
    spool: str | None,
    max_messages: int | None,
) -> dict[str, str]:
    """The options of a stream that reads `topics` from `channel`; UsageError when something is missing or wrong."""
    options = dict(nodes)
    if topics:
        options["subscribe"] = ",".join(topics)
    if channel is not None:
        options["channel"] = channel
    if spool is not None:
        options["spoolLocation"] = spool
    if max_messages is not None:
        options["maxMessagesPerTrigger"] = str(max_messages)
    return checked(options, "readStream")


def require_topics(options: Mapping[str, str]) -> None:
    """NotFound when no nsqd has one of the topics of a stream: its name is probably wrong."""
    from pyspark_nsq.discovery import missing_topics
    from pyspark_nsq.options import parse

    if missing := missing_topics(parse(options, "readStream")):
        topics = f"topic {missing[0]!r}" if len(missing) == 1 else f"topics {', '.join(map(repr, missing))}"
        raise NotFound(f"no nsqd has the {topics}; --allow-missing-topics runs nevertheless")


def directories(output: str, channel: str | None, spool: str | None, checkpoint: str | None) -> tuple[str, str]:
    """Where the spool and the checkpoint of a stream are: as given, else in hidden directories of its output.

    UsageError when the output isn't a directory of this machine and no spool was given: executors need POSIX there.
    """
    name = (channel or "").replace("#", "-")
    if spool is None:
        path = local_path(output)
        if path is None:
            raise UsageError(f"--spool is required with {output}: a directory that is mounted on every machine")
        spool = str(path.absolute() / SPOOL / name)
    if checkpoint is None:
        path = local_path(output)
        checkpoint = str(path.absolute() / CHECKPOINT / name) if path else f"{output.rstrip('/')}/{CHECKPOINT}/{name}"
    return spool, checkpoint
