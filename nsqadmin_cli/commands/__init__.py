"""The commands of gnsqadmin, one module for each or for a few related ones.

Each row registers a command: its words, and the module and attribute that it is loaded from when it is used. Modules
are loaded by name, so that a command does not import what only others need.
"""

from typing import NamedTuple


class Entry(NamedTuple):
    """Where the command `words` is: `module` is one of this package, or a full name. Commands of one word have a
    summary, so that help lists them without loading them."""

    words: str
    module: str
    attribute: str
    summary: str = ""


def _one(word: str, summary: str, module: str = "") -> Entry:
    """A command of one word, which is its attribute and, unless it is given, its module."""
    name = word.replace("-", "_")
    return Entry(word, module or name, name, summary)


def _of(noun: str, *attributes: str, module: str = "") -> list[Entry]:
    """Commands of two words, which are their module, unless it is given, and attribute."""
    verbs = [attribute.rstrip("_").replace("_", "-") for attribute in attributes]
    return [Entry(f"{noun} {verb}", module or noun, name) for verb, name in zip(verbs, attributes, strict=True)]


# By the heading of help, in its order.
SECTIONS: dict[str, tuple[Entry, ...]] = {
    "Inspect": (
        _one("stats", "Show the depths, counts and clients of topics and channels."),
        _one("top", "Watch the queues on a full screen: rates, trends, drain times and problems."),
        _one("tree", "Show topics, channels and consumers on all nodes.", "stats"),
        _one("nodes", "List the nodes: version, health, uptime, topics and messages."),
        _one("lookup", "List the topics of nsqlookupds, and the nodes that they return to consumers.", "nodes"),
        _one("counter", "Count the messages of all topics on all nodes since they started.", "stats"),
        _one("web", "Serve the cluster as a page for browsers, with nsqadmin's JSON API.", "nsqadmin_web.command"),
        _one("events", "Print changes as they happen: of consumers, topics, channels and nodes."),
        *_of("topic", "show"),
        *_of("channel", "show"),
    ),
    "Manage": (
        *_of("topic", "create", "pause", "unpause", "empty", "delete", "tombstone"),
        *_of("channel", "create", "pause", "unpause", "empty", "delete"),
        *_of("channel", "rewind", module="rewind"),
        *_of("channel", "deferred", module="deferred"),
        *_of("channel", "rules", module="rules"),
        *_of("topology", "export", "diff", "import_"),
        *_of("config", "get", "set_"),
        *_of("drain", "start", "status", "watch", "cancel"),
    ),
    "Messages": (
        _one("pub", "Publish messages: the arguments, each line of a file, or each line of standard input."),
        _one("tail", "Show messages as they are published, on all nodes that have the topic, until Ctrl-C."),
        _one("peek", "Show the queued messages of a channel, without consuming them.", "tail"),
        _one("copy", "Publish the messages of TOPIC to DESTINATION, by default a topic of the same name."),
        _one("save", "Save messages to a file, one JSON document per line.", "copy"),
        _one("load", "Publish the messages of a file that gnsqadmin save, tail --json or data export wrote.", "copy"),
        _one("replay-dead", "Publish the dead letters of a channel, or of a dead-letter topic, again."),
    ),
    "Diagnose": (
        _one("doctor", "Find problems of nodes, topics and channels, and suggest remedies."),
        _one("check", "Check that all is within limits: exit code 0 OK, 1 warning, 2 critical, 3 unknown."),
        _one("bench", "Measure messages per second that nodes accept and deliver, and latencies."),
    ),
    "Data directories": (
        *_of("data", "ls", "verify"),
        *_of("data", "export", "convert", "repair", "recover_bad", module="data_write"),
    ),
    "gnsqadmin itself": (
        _one("cheat", "Print the ten commands that are used most."),
        *_of("context", "list_", "set_", "use", "remove"),
        _one(
            "completion",
            "Print a script that lets a shell complete commands, options, saved contexts, topics and channels.",
            "context",
        ),
    ),
}

# The first words of commands that have two.
GROUPS = {
    "topic": "Show or change one topic.",
    "channel": "Show or change one channel.",
    "topology": "Copy topics and channels between clusters, and compare them.",
    "config": "Show or change the options of running nodes.",
    "drain": "Let consumers empty gnsqd nodes, which then exit.",
    "data": "Inspect and repair the data directory of a stopped nsqd.",
    "context": "Save the addresses of a cluster under a name.",
}
