"""Completion of names in a shell: topics and channels of the nodes, and saved contexts.

Errors would disturb the shell: if anything fails, there are no completions.
"""

from dataclasses import replace
from functools import partial

import click
from click.core import ParameterSource

from nsqadmin_cli.api import Nsqd
from nsqadmin_cli.cluster import values_of
from nsqadmin_cli.context import CLUSTER_PARAMETERS, load_contexts, make_cluster, settings_of
from nsqadmin_cli.errors import AdminError
from nsqadmin_cli.snapshot import names_of

MISSPELT = "nsqadmin_cli.misspelt"  # in the meta of a context: a line to complete that the command would refuse
_PATIENCE = 1.0  # seconds that a person waits for the answer to a Tab


def complete_contexts(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    try:
        return sorted(name for name in load_contexts().contexts if name.startswith(incomplete))
    except AdminError:
        return []


def complete_names(what: str, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Returns the names of what is "topic" or "channel", the latter of the topic if that was given before."""
    # click dropped what it could not parse; without that setting, other nodes would be asked.
    given = (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT)
    dropped = (name for name in CLUSTER_PARAMETERS if ctx.params.get(name) is None)
    if MISSPELT in ctx.meta or any(ctx.get_parameter_source(name) in given for name in dropped):
        return []
    try:
        context, name = settings_of(ctx, ctx.params).resolved()
        patience = min(_PATIENCE, context.timeout or _PATIENCE)
        cluster = make_cluster(replace(context, timeout=patience), name)
        topic = ctx.params.get("topic") or "" if what == "channel" else ""
        topics = names_of(values_of(cluster.ask(partial(Nsqd.stats, topic=topic))).values())
    except AdminError:
        return []
    names = topics if what == "topic" else set().union(*topics.values())
    return sorted(name for name in names if name.startswith(incomplete) and name.isprintable())
