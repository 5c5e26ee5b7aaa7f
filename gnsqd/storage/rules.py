"""gnsqd.rules.dat: the rules of channels that were set over HTTP, as JSON beside nsqd.dat, because the real nsqd reads
nsqd.dat and leaves other files alone. There is no file without rules. The broker defines what a rule means."""

import json
from collections.abc import Mapping

from gnsqd.gotext import dumps
from gnsqd.shared.errors import StorageError, path_error

FILE_NAME = "gnsqd.rules.dat"

Key = tuple[str, str]  # of a channel: the name of its topic, and its own
Settings = Mapping[str, object]  # by the name of the rule


def load_rules(path: str) -> dict[Key, Settings]:
    """Returns the rules of each channel in the file, empty if there is no file; raises StorageError."""
    try:
        with open(path, "rb") as file:
            data = file.read()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise StorageError(f"failed to read rules from {path} - {path_error('open', path, error)}") from error
    try:
        return {(entry.pop("topic"), entry.pop("channel")): entry for entry in json.loads(data)["channels"]}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise StorageError(f"failed to parse rules in {path} - {type(error).__name__}: {error}") from error


def encode_rules(rules: Mapping[Key, Settings]) -> bytes:
    """Returns the content of the file."""
    channels = [{"topic": topic, "channel": channel, **settings} for (topic, channel), settings in rules.items()]
    return dumps({"channels": channels}).encode()
