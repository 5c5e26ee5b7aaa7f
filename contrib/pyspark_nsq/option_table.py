"""Tables of options: the fields of a dataclass of settings, and how Spark's options become its values.

Spark's option keys know no case. What cannot be obeyed is an OptionError.
"""

import dataclasses
import difflib
import re
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from pyspark_nsq.errors import OptionError
from pyspark_nsq.option_values import ValueKind

# What Spark hands on although it is meant for Spark itself, in lower case.
_SPARKS_OWN = re.compile("checkpointlocation|queryname|_?asyncprogresstracking.*")

# What people try, in lower case, and what stands for it here.
_ELSEWHERE = {
    "path": "or argument of load, save or start: the topic is that of option 'subscribe' or, of a writer, 'topic'",
    "kafka.bootstrap.servers": "which is of Kafka: 'nsq.nsqd.tcp.addresses' or 'nsq.lookupd.http.addresses' name nodes",
    "kafka.group.id": "which is of Kafka: 'channel' names the group of consumers",
    "groupidprefix": "which is of Kafka: 'channel' names the group of consumers",
    "assign": "which is of Kafka: NSQ has no partitions; 'subscribe' names the topics",
    "startingoffsetsbytimestamp": "which is of Kafka: 'startingTimestamp' is the time, for all topics or for each",
    "endingoffsetsbytimestamp": "which is of Kafka: 'endingTimestamp' is the time, for all topics or for each",
    "maxoffsetspertrigger": "which is of Kafka: 'maxMessagesPerTrigger' limits a batch",
    "minoffsetspertrigger": "which is of Kafka: 'minMessagesPerTrigger' lets a batch wait",
    "includeheaders": "which is of Kafka: messages of NSQ have no headers",
}
_OF_SPOOL = re.compile("dedupretention|deliverrewound|idletimeoutms|readid|spool(location|maxbytes|retention)?")
_WITHOUT_SPOOL = (
    "which earlier versions had: deliveries need no directory, and come at least once; 'mode' = 'ranges' reads each "
    "message exactly once"
)
_LEAST_LETTERS = 3  # of the beginning of a name
_LEAST_LIKENESS = 0.86  # of names: a wrong letter in most; `maxPartitions` is less like `minPartitions`


class SourceOption(NamedTuple):
    """One option, which sets a field of the settings; `default` is written as one would write it, empty for none."""

    name: str
    kind: ValueKind
    used_by: tuple[str, ...]  # read, readStream, write, writeStream
    help: str
    default: str
    field: str = ""


def option(name: str, kind: ValueKind, used_by: tuple[str, ...], help: str, default: str = "") -> Any:
    """Declares a field of a dataclass of settings that an option sets."""
    row = SourceOption(name, kind, used_by, help, default)
    value = kind.read(default) if default else kind.none
    return dataclasses.field(default=value, metadata={"option": row}, repr=not _is_secret(name))


def table_of(settings: type[Any]) -> tuple[SourceOption, ...]:
    """Returns the options that set the fields of a dataclass."""
    return tuple(field.metadata["option"]._replace(field=field.name) for field in dataclasses.fields(settings))


def read_values(options: Mapping[str, str], uses: Collection[str], table: Collection[SourceOption]) -> dict[str, Any]:
    """Returns the values of the options that are given, by field. Raises OptionError if one is not in the table, is for
    none of the uses, or cannot be read."""
    by_key = {row.name.lower(): row for row in table}
    values: dict[str, Any] = {}
    for key, text in options.items():
        row = by_key.get(key.lower())
        if row is None:
            if _SPARKS_OWN.fullmatch(key.lower()):
                continue
            raise _unknown(key, uses, table)
        if not set(uses) & set(row.used_by):
            raise OptionError(f"option {row.name!r} is for {' and '.join(row.used_by)}, not for {' or '.join(uses)}")
        try:
            values[row.field] = row.kind.read(text.strip())
        except ValueError as error:
            shown = "" if _is_secret(row.name) else f" has the value {text!r}"
            raise OptionError(f"option {row.name!r}{shown}: {error}") from None
    return values


def missing(name: str, options: Mapping[str, str], what: str = "") -> OptionError:
    """Returns the error for an option that `options` lacks; `name` is quoted, and `what` describes its value."""
    hint = ". Of a table, Spark passes OPTIONS to no INSERT, and to no SELECT if CREATE TABLE names the columns"
    return OptionError(f"option {name} is required{what and ': '}{what}{'' if options else hint}")


def _is_secret(name: str) -> bool:
    return "secret" in name or "token" in name


def _unknown(key: str, uses: Collection[str], table: Collection[SourceOption]) -> OptionError:
    elsewhere = _WITHOUT_SPOOL if _OF_SPOOL.fullmatch(key.lower()) else _ELSEWHERE.get(key.lower())
    if elsewhere:
        return OptionError(f"unknown option {key!r}, {elsewhere}")
    names = {_letters(row.name): row.name for row in table if set(uses) & set(row.used_by)}
    word = _letters(key)
    near = [name for name in names if name.startswith(word)] if len(word) >= _LEAST_LETTERS else []
    if near := near or difflib.get_close_matches(word, names, 1, _LEAST_LIKENESS):
        return OptionError(f"unknown option {key!r}: did you mean {names[near[0]]!r}?")
    known = ", ".join(sorted(names.values()))
    return OptionError(f"unknown option {key!r}: options of {' and '.join(uses)} are {known}")


def _letters(name: str) -> str:
    """Returns what is the same in `nsq.tls.ca`, `tlsCA` and `tls_ca`."""
    return re.sub(r"^nsq\.|[^a-z0-9]", "", name.lower())
