"""The commands of gnsqadmin, one module for each or for a few related ones.

Each row registers a command: its words, and the module and attribute that it is loaded from when it is used. Modules
are loaded by name, so that a command does not import what only others need.
"""

from typing import NamedTuple


class Entry(NamedTuple):
    """Where the command `words` is."""

    words: str
    module: str
    attribute: str


SEE = (
    Entry("stats", "stats", "stats"),
    Entry("top", "top", "top"),
    Entry("tree", "stats", "tree"),
    Entry("nodes", "nodes", "nodes"),
    Entry("lookup", "nodes", "lookup"),
    Entry("counter", "stats", "counter"),
    Entry("topic show", "topic", "show"),
    Entry("channel show", "channel", "show"),
)
ACT = (
    Entry("topic create", "topic", "create"),
    Entry("topic pause", "topic", "pause"),
    Entry("topic unpause", "topic", "unpause"),
    Entry("topic empty", "topic", "empty"),
    Entry("topic delete", "topic", "delete"),
    Entry("topic tombstone", "topic", "tombstone"),
    Entry("channel create", "channel", "create"),
    Entry("channel pause", "channel", "pause"),
    Entry("channel unpause", "channel", "unpause"),
    Entry("channel empty", "channel", "empty"),
    Entry("channel delete", "channel", "delete"),
    Entry("config get", "config", "get"),
    Entry("config set", "config", "set_option"),
    Entry("drain start", "drain", "start"),
    Entry("drain status", "drain", "status"),
    Entry("drain watch", "drain", "watch"),
    Entry("drain cancel", "drain", "cancel"),
)
MESSAGES = (
    Entry("pub", "pub", "pub"),
    Entry("tail", "tail", "tail"),
    Entry("peek", "tail", "peek"),
    Entry("copy", "copy", "copy"),
    Entry("save", "copy", "save"),
    Entry("load", "copy", "load"),
    Entry("replay-dead", "replay_dead", "replay_dead"),
)
JUDGE: tuple[Entry, ...] = (
    Entry("doctor", "doctor", "doctor"),
    Entry("check", "check", "check"),
    Entry("bench", "bench", "bench"),
)
DATA = (
    Entry("data ls", "data", "ls"),
    Entry("data verify", "data", "verify"),
    Entry("data export", "data_write", "export"),
    Entry("data convert", "data_write", "convert"),
    Entry("data repair", "data_write", "repair"),
    Entry("data recover-bad", "data_write", "recover_bad"),
)
SELF: tuple[Entry, ...] = (
    Entry("context list", "context", "list_contexts"),
    Entry("context set", "context", "set_context"),
    Entry("context use", "context", "use"),
    Entry("context remove", "context", "remove"),
    Entry("completion", "context", "completion"),
)

# In the order of help. A heading without commands is not shown.
SECTIONS = {
    "Inspect": SEE,
    "Manage": ACT,
    "Messages": MESSAGES,
    "Diagnose": JUDGE,
    "Data directories": DATA,
    "gnsqadmin itself": SELF,
}

# The first words of commands that have two.
GROUPS = {
    "topic": "Show or change one topic.",
    "channel": "Show or change one channel.",
    "config": "Show or change the options of running nodes.",
    "drain": "Let consumers empty gnsqd nodes, which then exit.",
    "data": "Inspect and repair the data directory of a stopped nsqd.",
    "context": "Save the addresses of a cluster under a name.",
}
