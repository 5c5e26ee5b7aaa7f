"""Saved contexts: named addresses and connection options of clusters, in a TOML file of the user.

    current = "prod"

    [contexts.prod]
    lookupd_http_address = ["lookup-1.example:4161", "lookup-2.example:4161"]
    timeout = 10.0
    tls_ca = "/etc/nsq/ca.pem"

The file is `$GNSQADMIN_CONFIG`, else `gnsqadmin/config.toml` in `$XDG_CONFIG_HOME` or `~/.config`.

The cluster of a command comes from options, variables and contexts. Each replaces what follows it: options, the
context of --context, variables, the context of GNSQADMIN_CONTEXT or else the current one. Addresses of either kind
replace those of both kinds.
"""

import json
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from gnsqd.shared.config_file import read_config_file
from gnsqd.shared.errors import reason_of
from nsqadmin_cli.cluster import Cluster
from nsqadmin_cli.errors import AdminError, NotOnNode
from nsqadmin_cli.http_client import Address, NodeClient, TLSSettings
from nsqadmin_cli.units import printable


@dataclass(frozen=True, slots=True)
class ClusterContext:
    """The settings of a cluster. None or empty: the default."""

    nsqd_http_address: tuple[str, ...] = ()
    lookupd_http_address: tuple[str, ...] = ()
    timeout: float | None = None  # seconds
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    tls_insecure: bool = False
    token_file: str = ""

    def settings(self) -> dict[str, Any]:
        """Returns the settings that are set, by name: lists, strings, numbers and booleans."""
        values = {setting.name: getattr(self, setting.name) for setting in fields(self)}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items() if value}


@dataclass(frozen=True, slots=True)
class Contexts:
    """The content of the file."""

    current: str = ""
    contexts: Mapping[str, ClusterContext] = field(default_factory=dict)

    def get(self, name: str) -> ClusterContext:
        """Raises NotFound if no context has that name."""
        if name not in self.contexts:
            known = ", ".join(sorted(self.contexts)) or "none"
            raise NotOnNode(f"there is no context {printable(repr(name))} in {config_path()}; there: {known}")
        return self.contexts[name]

    def save(self) -> None:
        """Writes the file; raises AdminError if that fails."""
        lines = [f"current = {json.dumps(self.current)}"] if self.current else []
        for name, context in sorted(self.contexts.items()):
            lines += ["", f"[contexts.{json.dumps(name)}]"]
            # Strings are JSON's except for DEL and the escapes of surrogates.
            values = {key: json.dumps(value, ensure_ascii=False) for key, value in context.settings().items()}
            lines += [f"{key} = {value}".replace("\x7f", "\\u007f") for key, value in values.items()]
        file = config_path()
        written = file.with_name(f"{file.name}.{os.getpid()}.new")
        try:
            file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            written.write_text("\n".join(lines).lstrip("\n") + "\n", "utf-8")
            written.replace(file)
        except UnicodeEncodeError:
            raise AdminError("a file name that is not UTF-8 cannot be saved in a context") from None
        except OSError as error:
            written.unlink(missing_ok=True)
            raise AdminError(f"cannot write {file}: {reason_of(error)}") from None


def config_path() -> Path:
    """Returns the path of the file, which may not exist."""
    if path := os.environ.get("GNSQADMIN_CONFIG"):
        return Path(path)
    base = os.environ.get("XDG_CONFIG_HOME", "")
    # A relative path is invalid there and has to be ignored (XDG Base Directory Specification).
    return (Path(base) if os.path.isabs(base) else Path.home() / ".config") / "gnsqadmin" / "config.toml"


def load_contexts() -> Contexts:
    """Returns the contexts of the file, none if it does not exist; raises AdminError if it is invalid."""
    file = config_path()
    try:
        content = read_config_file(str(file))
    except FileNotFoundError:
        return Contexts()
    except OSError as error:
        raise AdminError(f"cannot read {file}: {reason_of(error)}") from None
    import tomllib  # most people have no such file

    try:
        document = tomllib.loads(content.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise AdminError(f"{file} is not valid TOML: {printable(str(error))}") from None
    tables = document.pop("contexts", {})
    current = document.pop("current", "")
    if document:
        raise AdminError(f"{file}: unknown key {printable(repr(min(document)))}")
    if not isinstance(tables, dict) or not isinstance(current, str):
        raise AdminError(f'{file}: "current" must be a string, and "contexts" tables')
    return Contexts(current, {name: _context(name, table, file) for name, table in tables.items()})


def _context(name: str, table: object, file: Path) -> ClusterContext:
    where = f"{file}: context {printable(name)}"
    if not isinstance(table, dict):
        raise AdminError(f"{where} must be a table")
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key not in ClusterContext.__slots__:
            raise AdminError(f"{where}: unknown key {printable(repr(key))}")
        default = getattr(ClusterContext(), key)
        kinds: tuple[type, ...] = (int, float) if default is None else (list if default == () else type(default),)
        if type(value) not in kinds or (list in kinds and not all(isinstance(text, str) for text in value)):
            expected = {list: "a list of strings", int: "a number of seconds", bool: "true or false"}
            raise AdminError(f"{where}: {key} must be {expected.get(kinds[0], 'a string')}")
        if key == "timeout" and not 0 < value <= 3600:
            raise AdminError(f"{where}: timeout must be more than 0 and at most 3600 seconds")
        values[key] = tuple(value) if list in kinds else value
    return ClusterContext(**values)


DEFAULT_ADDRESS = "127.0.0.1:4151"
DEFAULT_TIMEOUT = 5.0  # seconds
# Seconds until one of several nodes must begin to answer if nothing is changed, without a time limit of the user: a
# command that only reads then ends within 2 s beside a node that hangs. A node alone delays nobody.
PATIENCE = 1.5

CLUSTER_PARAMETERS = (*ClusterContext.__slots__, "context_name")


@dataclass(frozen=True)
class ClusterSettings:
    """The cluster settings of a command; `by_option`: the context is named by an option."""

    options: ClusterContext
    variables: ClusterContext = ClusterContext()
    context_name: str = ""
    by_option: bool = False

    def resolved(self) -> tuple[ClusterContext, str]:
        """Returns all settings combined, and the name of the saved context in use; raises AdminError."""
        saved = load_contexts()
        name = self.context_name or saved.current
        context = saved.get(name) if name else ClusterContext()
        layers = (self.variables, context) if self.by_option else (context, self.variables)
        return merged(merged(*layers), self.options), name

    def cluster(self) -> Cluster:
        """Returns the cluster; raises AdminError if a saved context does not exist or is invalid."""
        return make_cluster(*self.resolved())


def merged(base: ClusterContext, other: ClusterContext) -> ClusterContext:
    """Returns `base` with all settings of `other`. Addresses of either kind replace those of both kinds."""
    if other.nsqd_http_address or other.lookupd_http_address:
        base = replace(base, nsqd_http_address=(), lookupd_http_address=())
    return replace(base, **{name: getattr(other, name) for name in other.settings()})


def make_cluster(context: ClusterContext, name: str = "") -> Cluster:
    """Returns the cluster at the addresses of `context`, whose name is in errors; raises AdminError."""
    try:
        nsqds = [Address.parse(text) for text in context.nsqd_http_address]
        lookupds = [Address.parse(text) for text in context.lookupd_http_address]
    except ValueError as error:
        raise AdminError(f"context {name}: {error}") from None
    if not nsqds and not lookupds:
        nsqds = [Address.parse(DEFAULT_ADDRESS)]
    tls = TLSSettings(context.tls_ca, context.tls_cert, context.tls_key, context.tls_insecure)
    timeout = context.timeout or DEFAULT_TIMEOUT
    patience = timeout if context.timeout or (len(nsqds) == 1 and not lookupds) else PATIENCE
    return Cluster(nsqds, lookupds, NodeClient(timeout, tls, context.token_file, nsqds, patience))


def settings_of(ctx: click.Context, values: Mapping[str, Any]) -> ClusterSettings:
    """Returns the cluster's settings among the parameters `values` of a command."""

    def given_by(source: ParameterSource) -> ClusterContext:
        names = [name for name in ClusterContext.__slots__ if ctx.get_parameter_source(name) is source]
        settings = {name: values.get(name) for name in names}
        settings |= {name: tuple(map(str, value)) for name, value in settings.items() if isinstance(value, tuple)}
        return ClusterContext(**{name: value for name, value in settings.items() if value})

    by_option = ctx.get_parameter_source("context_name") is ParameterSource.COMMANDLINE
    options, variables = map(given_by, (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT))
    name = values.get("context_name") or ""
    return ClusterSettings(options, variables, name, by_option and bool(name))


class CommandLines:
    """Formats gnsqadmin commands for the current cluster."""

    def __init__(self, settings: ClusterSettings) -> None:
        # Variables come after a context that an option names, and would as options come before it.
        given = settings.options if settings.by_option else merged(settings.variables, settings.options)
        self._where: list[str] = []
        self._how = [f"--context={settings.context_name}"] if settings.context_name else []
        for name, value in given.settings().items():
            flag = f"--{name.replace('_', '-')}"
            if isinstance(value, list):
                self._where += [f"{flag}={text}" for text in value]
            elif value is True:
                self._how.append(flag)
            elif name != "timeout":
                self._how.append(f"{flag}={value}")

    def on_all(self, words: str, *names: str) -> str:
        """Returns `gnsqadmin {words} {names}` for the nodes that were examined."""
        return self._line(words, names, [*self._where, *self._how])

    def on(self, node: Address, words: str, *names: str) -> str:
        """Returns the same for one node."""
        return self._line(words, names, [f"--nsqd-http-address={node}", *self._how])

    def _line(self, words: str, names: Sequence[str], flags: list[str]) -> str:
        given = [*flags, "--", *names] if any(name.startswith("-") for name in names) else [*names, *flags]
        return shlex.join(["gnsqadmin", *words.split(), *given])
