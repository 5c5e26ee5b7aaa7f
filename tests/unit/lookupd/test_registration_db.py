"""The database against a plain map of keys to producers, over random changes."""

import random

import pytest

from gnsqd.log import Level, Logger
from gnsqd.lookupd.registration_db import PeerInfo, RegistrationDB
from gnsqd.shared.names import TooMany

LOG = Logger("", Level.FATAL)
TOPICS = ("t", "u", "e#ephemeral")
CHANNELS = ("c", "d", "f#ephemeral")

Key = tuple[str, str, str]


class Model:
    """Every key with the ids of its producers."""

    def __init__(self) -> None:
        self.keys: dict[Key, set[str]] = {}

    def register(self, id: str, topic: str, channel: str) -> None:
        if channel:
            self.keys.setdefault(("channel", topic, channel), set()).add(id)
        self.keys.setdefault(("topic", topic, ""), set()).add(id)

    def unregister(self, id: str, topic: str, channel: str) -> None:
        for key in list(self.keys):
            if key[1] == topic and (not channel or key == ("channel", topic, channel)):
                self._leave(id, key)
        key = ("channel", topic, channel) if channel else ("topic", topic, "")
        if (channel or topic).endswith("#ephemeral") and not self.keys.get(key, {id}):
            del self.keys[key]

    def _leave(self, id: str, key: Key) -> None:
        if self.keys[key] == {id} and (key[2] or key[1]).endswith("#ephemeral"):
            del self.keys[key]
        else:
            self.keys[key].discard(id)

    def disconnect(self, id: str) -> None:
        for key in list(self.keys):
            self._leave(id, key)

    def add(self, topic: str, channel: str) -> None:
        self.keys.setdefault(("channel", topic, channel) if channel else ("topic", topic, ""), set())

    def delete(self, topic: str, channel: str) -> None:
        for key in list(self.keys):
            if topic in (key[1], "*") and (not channel or key[2] == channel):
                del self.keys[key]


def contents(db: RegistrationDB) -> dict[Key, set[str]]:
    found = {("topic", topic, ""): set(producers) for topic, producers in db.topics.items()}
    for topic, channels in db.channels.items():
        found |= {("channel", topic, channel): set(peers) for channel, peers in channels.items()}
    return found


class Subject:
    """The database, with the same methods."""

    def __init__(self) -> None:
        self.db = RegistrationDB(0, LOG)
        self.nsqds = {id: PeerInfo(id) for id in "xyz"}

    def register(self, id: str, topic: str, channel: str) -> None:
        self.db.register(self.nsqds[id], topic, channel)

    def unregister(self, id: str, topic: str, channel: str) -> None:
        self.db.unregister(self.nsqds[id], topic, channel)

    def disconnect(self, id: str) -> None:
        list(self.db.disconnect(self.nsqds[id]))

    def add(self, topic: str, channel: str) -> None:
        if channel:
            self.db.add_channel(topic, channel)
        else:
            self.db.add_topic(topic)

    def delete(self, topic: str, channel: str) -> None:
        if channel:
            self.db.delete_channel(topic, channel)
        else:
            list(self.db.delete_channels(topic))
            list(self.db.delete_topics(topic))


@pytest.mark.parametrize("seed", range(20))
def test_random_changes_leave_what_a_plain_map_has(seed: int) -> None:
    chance = random.Random(seed)
    subject, model = Subject(), Model()
    for _ in range(300):
        id, topic, channel = chance.choice("xyz"), chance.choice(TOPICS), chance.choice(("", *CHANNELS))
        changes = {
            "register": (10, (id, topic, channel)),
            "unregister": (4, (id, topic, channel)),
            "disconnect": (1, (id,)),
            "add": (2, (topic, channel)),
            "delete": (1, (chance.choice((topic, "*")) if not channel else topic, channel)),
        }
        (name,) = chance.choices([*changes], [weight for weight, _ in changes.values()])
        for one in (subject, model):
            getattr(one, name)(*changes[name][1])
        assert contents(subject.db) == model.keys
        assert subject.db.count == len(model.keys) + sum(map(len, model.keys.values()))
        for other in subject.nsqds.values():
            registered = {("topic", name, "") for name in other.topics}
            registered |= {("channel", *pair) for pair in other.channels}
            assert registered == {key for key, ids in model.keys.items() if other.id in ids}


def test_own_registrations_are_not_limited_and_do_not_count() -> None:
    db, own, other = RegistrationDB(4, LOG), PeerInfo("own"), PeerInfo("x")
    db.own = own
    for topic in ("t", "u", "v"):
        db.register(own, topic, "c")
    db.register(other, "x", "")
    db.register(other, "y", "")
    with pytest.raises(TooMany):
        db.register(other, "t", "")
    db.register(own, "w", "c")
    assert set(other.topics) == {"x", "y"}
    assert set(own.topics) == {"t", "u", "v", "w"}


def test_nsqd_that_leaves_bit_by_bit_is_found_by_nobody_and_takes_nothing_with_it() -> None:
    """Others change the same names in between, and another nsqd connects from the same address."""
    db, leaving, other = RegistrationDB(0, LOG), PeerInfo("x"), PeerInfo("x")
    db.clients["x"] = leaving
    for topic in ("t", "u", "v", "w"):
        db.register(leaving, topic, "c")
        db.register(leaving, topic, "d")
    steps = db.disconnect(leaving)
    next(steps)
    assert "x" not in db.clients
    assert leaving.heard < 0
    db.clients["x"] = other
    for topic in ("t", "w"):
        db.register(other, topic, "c")
    list(db.delete_topics("u"))
    list(db.delete_channels("v"))
    assert len(list(steps)) == 9
    assert (leaving.topics, leaving.channels) == ({}, {})
    assert db.clients == {"x": other}
    kept = {key for key, ids in contents(db).items() if ids}
    assert kept == {(kind, topic, name) for topic in "tw" for kind, name in (("topic", ""), ("channel", "c"))}
    assert db.count == len(contents(db)) + len(kept)
