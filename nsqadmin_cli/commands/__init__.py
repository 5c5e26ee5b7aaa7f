"""The commands of gnsqadmin, one module for each or for a few related ones.

Each row registers a command: its words, its summary, and the module that it is loaded from when it is used. Modules are
loaded by name, so that a command does not import what only others need, and help lists commands without loading them.
"""

from typing import NamedTuple


class Entry(NamedTuple):
    """The command `words`, and the first paragraph of its help; the others are the docstring of its function. This is
    named like the last word, and is in a module of this package, by default the first word, or in one with a full
    name."""

    words: str
    summary: str
    module: str = ""


# By the heading of help, in its order.
SECTIONS: dict[str, tuple[Entry, ...]] = {
    "Inspect": (
        Entry("status", "Show nodes, the deepest channels and the worst problems in ten lines.", "doctor"),
        Entry("stats", "Show the depths, counts and clients of topics and channels."),
        Entry("top", "Watch the queues on a full screen: rates, trends, drain times and problems."),
        Entry("tree", "Show topics, channels and consumers on all nodes.", "stats"),
        Entry("nodes", "List the nodes: version, health, uptime, topics and messages."),
        Entry("lookup", "List the topics of nsqlookupds, and the nodes that they return to consumers.", "nodes"),
        Entry("counter", "Count the messages of all topics on all nodes since they started.", "stats"),
        Entry("web", "Serve the cluster as a page for browsers, with nsqadmin's JSON API.", "nsqadmin_cli.web.command"),
        Entry("events", "Print changes as they happen: of consumers, topics, channels and nodes."),
        Entry("topic show", "Show one topic: its counts, nodes and channels."),
        Entry("topic range", "Show the log of a topic: its numbers and times, and how far a channel has read."),
        Entry("channel show", "Show one channel: its depth, nodes and consumers."),
    ),
    "Manage": (
        Entry("topic create", "Create a topic on all nodes and at nsqlookupds."),
        Entry("topic pause", "Stop a topic from passing messages to its channels."),
        Entry("topic unpause", "Let a paused topic pass messages to its channels again."),
        Entry("topic empty", "Discard the messages in a topic's own queue."),
        Entry("topic delete", "Delete a topic with its channels and all messages."),
        Entry("topic tombstone", "Hide one node from the consumers of a topic."),
        Entry("channel create", "Create a channel on every node that has the topic, and at nsqlookupds."),
        Entry("channel pause", "Stop a channel from sending messages to its consumers."),
        Entry("channel unpause", "Let a paused channel send messages again."),
        Entry("channel empty", "Discard all messages of a channel."),
        Entry("channel delete", "Delete a channel with all its messages."),
        Entry("channel rewind", "Deliver messages again that the consumers of a channel have finished."),
        Entry(
            "channel deferred",
            "List the deferred messages of a channel, the first due first, and count them; or cancel one.",
        ),
        Entry("channel rules", "Show or change the delivery rules of a channel."),
        Entry("topology export", "Print the topics and channels of all nodes, one JSON document per line."),
        Entry("topology diff", "Compare the topics and channels of each node with a file; exit code 1 if they differ."),
        Entry(
            "topology import",
            "Create the missing topics and channels of a file on every node, and pause or unpause them as in the file.",
        ),
        Entry("config get", "Show all or the given options of running nodes."),
        Entry("config set", "Change an option of running nodes, until they are restarted."),
        Entry("drain start", "Drain nodes: they refuse publishers, and exit when consumers have emptied all queues."),
        Entry("drain status", "Show which nodes drain, the time left, and the messages left."),
        Entry("drain watch", "Wait until draining nodes have exited, and report whether they were empty."),
        Entry("drain cancel", "Cancel drains: the nodes accept messages again."),
    ),
    "Messages": (
        Entry("pub", "Publish messages: the arguments, each line of a file, or each line of standard input."),
        Entry("tail", "Show messages as they are published, on all nodes that have the topic, until Ctrl-C."),
        Entry("peek", "Show the queued messages of a channel, without consuming them.", "tail"),
        Entry("copy", "Publish the messages of TOPIC to DESTINATION, by default a topic of the same name."),
        Entry("save", "Save messages to a file, one JSON document per line.", "copy"),
        Entry("load", "Publish the messages of a file that gnsqadmin save, tail --json or data export wrote.", "copy"),
        Entry("replay-dead", "Publish the dead letters of a channel, or of a dead-letter topic, again."),
    ),
    "Diagnose": (
        Entry("doctor", "Find problems of nodes, topics and channels, and suggest remedies."),
        Entry("check", "Check that all is within limits: exit code 0 OK, 1 warning, 2 critical, 3 unknown."),
        Entry("bench", "Measure messages per second that nodes accept and deliver, and latencies."),
    ),
    "Data directories": (
        Entry("data ls", "List the queues in a data directory: their messages, and the age of the oldest."),
        Entry("data verify", "Read all files of a data directory, and report damage and how to repair it."),
        Entry("data export", "Write the messages of a data directory to a file."),
        Entry("data convert", "Move the messages of journals to disk queues, which the real nsqd reads."),
        Entry("data repair", "Make a repaired copy of a data directory."),
        Entry("data recover-bad", "Recover the messages in files that nsqd set aside as .bad."),
        Entry("data restore", "Restore a data directory from the log that gnsqd keeps in an object store."),
    ),
    "gnsqadmin itself": (
        Entry("cheat", "Print the ten commands that are used most.", "context"),
        Entry("context list", "List the saved contexts."),
        Entry(
            "context set",
            "Save the given options under a name. Options already saved under this name are kept.",
        ),
        Entry("context use", "Make a context the current one, which is used by default."),
        Entry("context remove", "Remove a context."),
        Entry(
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
