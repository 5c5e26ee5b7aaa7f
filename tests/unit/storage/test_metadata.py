"""nsqd.dat: bytes from NSQD-COMPAT 4.1, error texts from Go 1.19's encoding/json and the golden directories."""

import json
import os
import re
from pathlib import Path

import pytest

from gnsqd.errors import StorageError
from gnsqd.storage.metadata import ChannelMetadata, TopicMetadata, encode, load, save
from gnsqd.storage.syncer import Syncer

GOLDEN = Path(__file__).parents[2] / "golden" / "metadata"

TOPICS = [
    TopicMetadata("a", True, [ChannelMetadata("c2", True), ChannelMetadata("c1", False)]),
    TopicMetadata("b", False, []),
]
CONTENT = (
    b'{"topics":[{"name":"a","paused":true,"channels":[{"name":"c2","paused":true},{"name":"c1","paused":false}]},'
    b'{"name":"b","paused":false,"channels":null}],"version":"1.3.0"}'
)


def test_encoded_as_the_real_nsqd_does() -> None:
    assert encode(TOPICS) == CONTENT
    assert encode([]) == b'{"topics":null,"version":"1.3.0"}'


def test_saved_file_is_private_and_alone(tmp_path: Path, syncer: Syncer) -> None:
    path = tmp_path / "nsqd.dat"
    path.write_text("older")
    save(str(path), TOPICS, syncer)
    assert path.read_bytes() == CONTENT
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]
    assert load(str(path)) == TOPICS


def test_failed_save_keeps_the_older_file(tmp_path: Path, syncer: Syncer, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "nsqd.dat"
    path.write_text("older")

    def fail(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StorageError, match=rf"^sync {re.escape(str(path))}\.\d+\.tmp: input/output error$"):
        save(str(path), TOPICS, syncer)
    assert path.read_text() == "older"
    assert list(tmp_path.iterdir()) == [path]


def test_save_names_what_is_missing(tmp_path: Path, syncer: Syncer) -> None:
    with pytest.raises(StorageError, match=r"^open .*/none/nsqd\.dat\.\d+\.tmp: no such file or directory$"):
        save(str(tmp_path / "none" / "nsqd.dat"), TOPICS, syncer)


def test_missing_file_is_a_fresh_start(tmp_path: Path) -> None:
    assert load(str(tmp_path / "nsqd.dat")) == []


def test_unreadable_file_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "nsqd.dat"
    path.mkdir()
    text = f"failed to read metadata from {path} - read {path}: is a directory"
    with pytest.raises(StorageError, match=f"^{re.escape(text)}$"):
        load(str(path))


@pytest.mark.parametrize("case", sorted(path.name for path in GOLDEN.iterdir()))
def test_golden_file_is_read_as_the_real_nsqd_reads_it(case: str) -> None:
    directory = GOLDEN / case / "data"
    expected = json.loads((GOLDEN / case / "expected.json").read_text())
    if expected["exit_code"]:
        with pytest.raises(StorageError) as raised:
            load(str(directory / "nsqd.dat"))
        text = str(raised.value).replace(str(directory), "$D")
        assert expected["log"] == [f"FATAL: failed to load metadata - {text}"]
        return
    # merging, and skipping the invalid, is the registry's part
    topics: dict[str, dict[str, object]] = {}
    for topic in load(str(directory / "nsqd.dat")):
        if topic.name != "bad$":
            entry = topics.setdefault(topic.name, {"paused": False, "channels": {}})
            entry["paused"] = entry["paused"] or topic.paused
            channels = entry["channels"]
            assert isinstance(channels, dict)
            channels.update({channel.name: channel.paused for channel in topic.channels if channel.name != "bad$"})
    assert topics == expected["topics"]


@pytest.mark.parametrize(
    "text, topics",
    [
        ("null", []),
        ('{"topics":[null]}', [TopicMetadata("", False, [])]),
        ('{"TOPIC\u017f":[{"NAME":"a","PaUsEd":true}]}', [TopicMetadata("a", True, [])]),
        ('{"topics":[{"name":"a","name":"b","paused":null}]}', [TopicMetadata("b", False, [])]),
        ('{"topics":[{"name":"a"}],"topics":null}', []),
        ('{"topics":[{"name":"a","paused":true,"name":null,"paused":null}]}', [TopicMetadata("a", True, [])]),
        ('{"topics":[{"name":"a","channels":null}]}', [TopicMetadata("a", False, [])]),
        ('{"count":' + "1" * 5000 + ',"other":[{}],"version":null}', []),
    ],
)
def test_leniency_is_that_of_go(tmp_path: Path, text: str, topics: list[TopicMetadata]) -> None:
    path = tmp_path / "nsqd.dat"
    path.write_text(text, "utf-8")
    assert load(str(path)) == topics


@pytest.mark.parametrize(
    "text, error",
    [
        ("[]", "json: cannot unmarshal array into Go value of type nsqd.Metadata"),
        ('"x"', "json: cannot unmarshal string into Go value of type nsqd.Metadata"),
        ("5", "json: cannot unmarshal number into Go value of type nsqd.Metadata"),
        ("true", "json: cannot unmarshal bool into Go value of type nsqd.Metadata"),
        ('{"version":5}', "json: cannot unmarshal number into Go struct field Metadata.version of type string"),
        (
            '{"topics":[5]}',
            "json: cannot unmarshal number into Go struct field Metadata.topics of type nsqd.TopicMetadata",
        ),
        (
            '{"topics":[{"name":5}]}',
            "json: cannot unmarshal number into Go struct field TopicMetadata.topics.name of type string",
        ),
        (
            '{"topics":[{"paused":"x"}]}',
            "json: cannot unmarshal string into Go struct field TopicMetadata.topics.paused of type bool",
        ),
        (
            '{"topics":[{"channels":{}}]}',
            "json: cannot unmarshal object into Go struct field TopicMetadata.topics.channels "
            "of type []nsqd.ChannelMetadata",
        ),
        (
            '{"topics":[{"channels":[[]]}]}',
            "json: cannot unmarshal array into Go struct field TopicMetadata.topics.channels "
            "of type nsqd.ChannelMetadata",
        ),
        (
            '{"topics":[{"channels":[{"paused":1}]}]}',
            "json: cannot unmarshal number into Go struct field ChannelMetadata.topics.channels.paused of type bool",
        ),
        ('{"topics":[{"name":"a"}', "unexpected end of JSON input"),
        ("{} x", "invalid character 'x' after top-level value"),
        ("[" * 100_000, "exceeded max depth"),
    ],
)
def test_error_texts_are_those_of_go(tmp_path: Path, text: str, error: str) -> None:
    path = tmp_path / "nsqd.dat"
    path.write_text(text, "utf-8")
    with pytest.raises(StorageError) as raised:
        load(str(path))
    assert str(raised.value) == f"failed to parse metadata in {path} - {error}"
