"""Completion of names in a shell: topics and channels of the nodes, and saved contexts.

Errors would disturb the shell: if anything fails, there are no completions.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

import click
from click.core import ParameterSource

from nsqadmin_cli.api import NodeStats, Nsqd
from nsqadmin_cli.cluster import values_of
from nsqadmin_cli.context import CLUSTER_PARAMETERS, load_contexts, make_cluster, settings_of
from nsqadmin_cli.errors import AdminError

MISSPELT = "nsqadmin_cli.misspelt"  # in the meta of a context: a line to complete that the command would refuse
_PATIENCE = 1.0  # seconds that a person waits for the answer to a Tab


def complete_topics(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Returns the names of topics that begin with `incomplete`."""
    return _names(ctx, incomplete, "", lambda node: (topic.topic_name for topic in node.topics))


def complete_channels(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Returns the names of channels, of the topic if it was given before."""
    topic = ctx.params.get("topic") or ""
    return _names(ctx, incomplete, topic, lambda node: (channel.channel_name for _, channel in node.channels()))


def complete_contexts(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    try:
        return sorted(name for name in load_contexts().contexts if name.startswith(incomplete))
    except AdminError:
        return []


def _names(ctx: click.Context, incomplete: str, topic: str, find: Callable[[NodeStats], Iterable[str]]) -> list[str]:
    # click dropped what it could not parse; without that setting, other nodes would be asked.
    given = (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT)
    dropped = (name for name in CLUSTER_PARAMETERS if ctx.params.get(name) is None)
    if MISSPELT in ctx.meta or any(ctx.get_parameter_source(name) in given for name in dropped):
        return []
    try:
        settings = settings_of(ctx, ctx.params)
        context, name = settings.resolved()
        patience = min(_PATIENCE, context.timeout or _PATIENCE)
        nodes = values_of(make_cluster(replace(context, timeout=patience), name).ask(partial(Nsqd.stats, topic=topic)))
        names = {name for node in nodes.values() for name in find(node)}
        return sorted(name for name in names if name.startswith(incomplete) and name.isprintable())
    except AdminError:
        return []
