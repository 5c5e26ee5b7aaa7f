"""Tables of options: what a row contains, and reading the options of Spark by such a table.

Spark's option keys know no case. What cannot be obeyed is an OptionError.
"""

import difflib
import functools
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark_nsq.errors import OptionError
from pyspark_nsq.option_values import MILLISECONDS, WAIT, Kind, as_text
from pyspark_nsq.settings import Settings

# What Spark hands on although it is meant for Spark itself; keys in lower case.
_SPARKS_OWN = {"checkpointlocation", "queryname"}
_SPARKS_OWN_PREFIXES = ("asyncprogresstracking", "_asyncprogresstracking")


# Options of Spark's Kafka source and sink, in lower case, and what stands for them here.
_KAFKAS = {
    "kafka.bootstrap.servers": "'nsq.lookupd.http.addresses' or 'nsq.nsqd.tcp.addresses' name the nodes",
    "kafka.group.id": "'channel' names the group of consumers",
    "groupidprefix": "'channel' names the group of consumers",
    "assign": "NSQ has no partitions; 'subscribe' names the topics",
    "subscribepattern": "'subscribe' names the topics, separated by commas",
    "startingoffsets": "NSQ has no offsets; a channel has what is published after it was created",
    "startingtimestamp": "NSQ has no offsets; a channel has what is published after it was created",
    "startingoffsetsbytimestamp": "NSQ has no offsets; a channel has what is published after it was created",
    "endingoffsets": "NSQ has no offsets; a batch reads what is queued when it is planned",
    "endingtimestamp": "NSQ has no offsets; a batch reads what is queued when it is planned",
    "endingoffsetsbytimestamp": "NSQ has no offsets; a batch reads what is queued when it is planned",
    "maxoffsetspertrigger": "'maxMessagesPerTrigger' limits a batch",
    "minoffsetspertrigger": "a batch reads what is queued, even a single message",
    "includeheaders": "messages of NSQ have no headers",
}


@dataclass(frozen=True)
class SourceOption:
    """One option. It sets `field` of `settings`, a class of which every field has a default, which is the option's."""

    name: str
    kind: Kind
    field: str  # or a field of a field: connection.tls
    used_by: tuple[str, ...]
    help: str
    settings: type = Settings

    @property
    def default(self) -> Any:
        return functools.reduce(getattr, self.field.split("."), self.settings())

    @property
    def default_text(self) -> str:
        """The default as one would write it; empty for none."""
        return str(round(self.default * 1000)) if self.kind in (MILLISECONDS, WAIT) else as_text(self.default)


def read_values(options: Mapping[str, str], uses: Collection[str], table: Iterable[SourceOption]) -> dict[str, Any]:
    """Values of the options that are given, by field; they must be of the table, and for one of the uses at least."""
    by_key = {option.name.lower(): option for option in table}
    values: dict[str, Any] = {}
    for key, text in options.items():
        option = by_key.get(key.lower())
        if option is None:
            if key.lower() in _SPARKS_OWN or key.lower().startswith(_SPARKS_OWN_PREFIXES):
                continue
            raise _unknown(key, uses, by_key.values())
        if not set(uses) & set(option.used_by):
            raise OptionError(
                f"option {option.name!r} is for {' and '.join(option.used_by)}, not for {' or '.join(uses)}"
            )
        try:
            values[option.field] = option.kind.read(text.strip())
        except ValueError as error:
            value = "" if "secret" in option.name else f" has the value {text!r}"
            raise OptionError(f"option {option.name!r}{value}: {error}") from None
    return values


def _unknown(key: str, uses: Collection[str], table: Collection[SourceOption]) -> OptionError:
    if kafkas := _KAFKAS.get(key.lower()):
        return OptionError(f"unknown option {key!r}, which is of Kafka: {kafkas}")
    names = {option.name.lower(): option.name for option in table if set(uses) & set(option.used_by)}
    # Without `nsq.`, which is a large part of short names, `tls.cert` is close to `nsq.tls.certificate`.
    bare = {name.removeprefix("nsq."): name for name in names}
    word = key.lower().removeprefix("nsq.")
    near = [name for name in bare if name.startswith(word)] or difflib.get_close_matches(word, bare, 1)
    if near:
        return OptionError(f"unknown option {key!r}: did you mean {names[bare[near[0]]]!r}?")
    known = ", ".join(sorted(names.values()))
    return OptionError(f"unknown option {key!r}: options of {' and '.join(uses)} are {known}")
