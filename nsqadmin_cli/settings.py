"""The cluster of a command, from options, variables and saved contexts.

Each replaces what follows it: options, the context of --context, variables, the context of GNSQADMIN_CONTEXT or else
the current one. Addresses of either kind replace those of both kinds.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import click
from click.core import ParameterSource

from nsqadmin_cli import context as contexts
from nsqadmin_cli.address import Address
from nsqadmin_cli.cluster import Cluster
from nsqadmin_cli.context import Context, ContextError
from nsqadmin_cli.http_client import TLS

DEFAULT_ADDRESS = "127.0.0.1:4151"
DEFAULT_TIMEOUT = 5.0  # seconds

CLUSTER_PARAMETERS = (*Context.__slots__, "context_name")


@dataclass(frozen=True)
class ClusterSettings:
    """The cluster settings of a command; `by_option`: the context is named by an option."""

    options: Context
    variables: Context = Context()
    context_name: str = ""
    by_option: bool = False

    def resolved(self) -> tuple[Context, str]:
        """All settings combined, and the name of the saved context in use; AdminError if that cannot be used."""
        saved = contexts.load()
        name = self.context_name or saved.current
        context = saved.get(name) if name else Context()
        layers = (self.variables, context) if self.by_option else (context, self.variables)
        return merged(merged(*layers), self.options), name

    def cluster(self) -> Cluster:
        """The cluster; AdminError if a saved context does not exist or is invalid."""
        return make_cluster(*self.resolved())


def merged(base: Context, told: Context) -> Context:
    """`base` with all settings of `told`. Addresses of either kind replace those of both kinds."""
    changes = told.settings()
    if told.nsqd_http_address or told.lookupd_http_address:
        base = replace(base, nsqd_http_address=(), lookupd_http_address=())
    for name in ("nsqd_http_address", "lookupd_http_address"):
        if name in changes:
            changes[name] = tuple(changes[name])
    return replace(base, **changes)


def make_cluster(context: Context, name: str = "") -> Cluster:
    """The cluster at the addresses of `context`, whose name is in error messages; ContextError."""
    try:
        nsqds = [Address.parse(text) for text in context.nsqd_http_address]
        lookupds = [Address.parse(text) for text in context.lookupd_http_address]
    except ValueError as error:
        raise ContextError(f"context {name}: {error}") from None
    if not nsqds and not lookupds:
        nsqds = [Address.parse(DEFAULT_ADDRESS)]
    tls = TLS(context.tls_ca, context.tls_cert, context.tls_key, context.tls_insecure)
    return Cluster(nsqds, lookupds, context.timeout or DEFAULT_TIMEOUT, tls, context.token_file)


def take_settings(ctx: click.Context, values: dict[str, Any]) -> ClusterSettings:
    """Remove the cluster's settings from the parameters `values` of a command."""
    given = {name: values.pop(name, None) for name in CLUSTER_PARAMETERS}
    sources = {name: ctx.get_parameter_source(name) for name in given}
    options, variables = (
        {name: value for name, value in given.items() if sources[name] is source}
        for source in (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT)
    )
    name = given["context_name"] or ""
    return ClusterSettings(_context_of(options), _context_of(variables), name, bool(options.get("context_name")))


def _context_of(told: Mapping[str, Any]) -> Context:
    """A Context of parsed parameters."""
    return Context(
        tuple(str(address) for address in told.get("nsqd_http_address") or ()),
        tuple(str(address) for address in told.get("lookupd_http_address") or ()),
        told.get("timeout"),
        told.get("tls_ca") or "",
        told.get("tls_cert") or "",
        told.get("tls_key") or "",
        bool(told.get("tls_insecure")),
        told.get("token_file") or "",
    )
