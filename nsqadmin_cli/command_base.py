"""Base of gnsqadmin's commands: their parameters, and the layout of their help.

A command declares its own options, `examples`, and, if it has one, the `document` of its --json; help shows them at its
end, and the reference page is generated from them. Options that many commands share have their own headings; a
function gets them by the name of a parameter.
"""

import dataclasses
import functools
import inspect
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import click
from click.core import ParameterSource

from gnsqd.shared.names import MAX_NAME_LENGTH, NAME_RULE, is_valid_name
from nsqadmin_cli import context
from nsqadmin_cli.api import Nsqd
from nsqadmin_cli.change import Change, Shown, run, show
from nsqadmin_cli.cluster import Cluster, values_of
from nsqadmin_cli.context import ClusterSettings, settings_of
from nsqadmin_cli.errors import AdminError
from nsqadmin_cli.http_client import Address
from nsqadmin_cli.output import Confirm, Output, OutputFormat, progress
from nsqadmin_cli.snapshot import names_of
from nsqadmin_cli.units import parse_duration, printable

Function = Callable[..., Any]
C = TypeVar("C", bound="AdminCommand")
ON_PAGE = object()  # the `obj` of a context whose values come from a form of the page
_WHICH_NODES = "Which nodes"
_COLUMNS = 78  # of an example, below its heading
_MISSPELT = "nsqadmin_cli.misspelt"  # in the meta of a context: a line to complete that the command would refuse
_TAB_SECONDS = 1.0  # that a person waits for the answer to a Tab


class AdminOption(click.Option):
    """An option that help lists under `section`, with its default; those to select nodes also have a variable. The page
    has no field for it unless it is `on_page`: its requests do not wait, and its log has what is typed."""

    def __init__(self, names: list[str], *, section: str = "Options", on_page: bool = True, **attributes: Any) -> None:
        attributes.setdefault("show_default", bool(attributes.get("default")))
        if isinstance(attributes.get("type"), click.IntRange | click.FloatRange):
            attributes.setdefault("metavar", "N")
        if section == _WHICH_NODES:
            attributes["envvar"] = f"GNSQADMIN_{names[0].removeprefix('--').replace('-', '_').upper()}"
        super().__init__(names, **attributes)
        self.section = section
        self.on_page = on_page


def option(help: str, type: click.ParamType[Any] | None = None, *names: str, **more: Any) -> Any:
    """Returns the default of a function's parameter that is an option, by default named like it."""
    return lambda key: AdminOption([*(names or [f"--{key.replace('_', '-')}"]), key], help=help, type=type, **more)


def flag(help: str, *names: str, **attributes: Any) -> Any:
    """Returns the same for an option without a value: False unless it is given."""
    return option(help, None, *names, is_flag=True, **attributes)


def argument(type: click.ParamType[Any] | None = None, **attributes: Any) -> Any:
    """Returns the default of a function's parameter that is an argument."""
    return lambda name: click.Argument([name], type=type, **attributes)


class Combined(NamedTuple):
    """The default of a parameter that gets what `make` returns for the parsed values of these options."""

    make: Callable[..., Any]
    options: Mapping[str, Any]  # by name, as which `make` gets the value; made by `option`


class AdminCommand(click.Command):
    """A command with examples. `document` describes what --json prints; both keep their lines."""

    def __init__(self, *args: Any, examples: str = "", document: Sequence[str] = (), **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.examples = "\n".join(map(_folded, textwrap.dedent(examples).strip().splitlines()))
        self.document = "\n".join(textwrap.dedent(part).strip() for part in document)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if ctx.resilient_parsing:  # a shell completes, and click leaves out all that follows an unknown option
            parser = self.make_parser(ctx)
            parser.ctx = None
            try:
                parser.parse_args([*args, "value"])  # of an option at the end
            except click.UsageError:
                ctx.meta[_MISSPELT] = True
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> None:
        if (code := super().invoke(ctx)) is not None:
            ctx.exit(code)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {"Options": []}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None and record[1]:  # an argument stands in the line of usage
                sections.setdefault(getattr(param, "section", "Options"), []).append(record)
        for name, records in sections.items():
            with formatter.section(name):
                formatter.write_dl(records, col_max=32)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for heading, text in (("Examples", self.examples), ("Keys of --json", self.document)):
            if text:
                with formatter.section(heading):
                    formatter.write(textwrap.indent(text, " " * formatter.current_indent) + "\n")


def _folded(line: str) -> str:
    """Continues a command that is too long for help on 80 columns in the next line, if possible at an option or pipe,
    and never within quotes."""
    ends = [match.start() for match in re.finditer(r"(?<=\S) (?=\S)", line[:_COLUMNS])]
    ends = [end for end in ends if line.count("'", 0, end) % 2 == 0]
    end = max((end for end in ends if line[end + 1 :].startswith(("--", "| "))), default=max(ends, default=0))
    return f"{line[:end]} \\\n    {_folded(line[end + 1 :])}" if len(line) > _COLUMNS and end else line


def declared_by(function: Function) -> dict[str, Any]:
    """Returns the parameters of a function and their defaults, which are `inspect.Parameter.empty` without any."""
    return {parameter.name: parameter.default for parameter in inspect.signature(function).parameters.values()}


def command(
    *,
    examples: str,
    document: str | Sequence[str] = (),
    cls: type[C] = AdminCommand,  # type: ignore[assignment]
    parameters: Mapping[str, Any] | None = None,
) -> Callable[[Function], C]:
    """Returns a decorator instead of click.command: the function's name is the last word of the command, and its
    docstring is what help has below the summary in `commands.SECTIONS`.

    The parameters of the function, or these, have the results of `option` or `argument`, or a Combined, as defaults.
    One that is named like one of `_SHARED` needs none; nor does a topic or channel, which is an argument, or with ""
    an option that selects. The function returns its answer as Shown, which is then printed, or the exit code, None for
    0.
    """
    parts = [document] if isinstance(document, str) else document

    def make(function: Function) -> C:
        declared = dict(parameters or declared_by(function))
        is_answer = inspect.signature(function).return_annotation is Shown
        declared |= {"output": None} if is_answer else {}
        shared = {name: default for name, default in _SHARED.items() if name in declared}
        own = {name: default for name, default in declared.items() if name not in shared}
        own |= {name: argument(Name(name)) for name in _ONLY if own.get(name) is inspect.Parameter.empty}
        own |= {name: declare for name, declare in _ONLY.items() if own.get(name) == ""}

        @functools.wraps(function)
        def called(**values: Any) -> Any:
            for name, default in (own | shared).items():
                if isinstance(default, Combined):
                    values[name] = default.make(**{option: values.pop(option) for option in default.options})
            if not is_answer:
                return function(**values)
            output = values.pop("output")
            return show(function(**values), output)

        params: list[click.Parameter] = []
        for name, default in (own | shared).items():
            options = default.options if isinstance(default, Combined) else {name: default}
            params += [declare(key) for key, declare in options.items()]
        command_name = function.__name__.rstrip("_").replace("_", "-")
        text = inspect.getdoc(function) or ""  # texts are put around it, and Python 3.13 alone removes indentation
        made = click.command(command_name, cls=cls, params=params, help=text, examples=examples, document=parts)
        return made(called)

    return make


class ChangeCommand(AdminCommand):
    """A command that changes the cluster. `plan(cluster, ...)` returns the change for values of the parameters `own`,
    the command's without the ones that many commands share."""

    plan: Callable[..., Change]
    own: Sequence[click.Parameter]


def change_command(
    *, asks: bool = True, parameters: Mapping[str, Any] | None = None, **attributes: Any
) -> Callable[[Callable[..., Change]], ChangeCommand]:
    """Returns a decorator as `command` does, for a function that returns a Change, which the command then does. Without
    `asks` it is done without a question, and has no dry run."""

    def make(function: Callable[..., Change]) -> ChangeCommand:
        declared = dict(parameters or declared_by(function))
        more = {"output": None} | ({"confirm": None} if asks else {})

        @functools.wraps(function)
        def changing(output: Output, confirm: Confirm | None = None, **values: Any) -> int:
            return run(function(**values), output, confirm or Confirm(yes=True, dry_run=False))

        made = command(cls=ChangeCommand, parameters=declared | more, **attributes)(changing)
        made.plan = function
        made.own = [param for param in made.params if param.name in declared and param.name not in _SHARED]
        return made

    return make


def complete_contexts(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    try:
        return sorted(name for name in context.load_contexts().contexts if name.startswith(incomplete))
    except AdminError:
        return []


def complete_names(what: str, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Returns the names of what is "topic" or "channel", the latter of the topic if that was given before."""
    # click dropped what it could not parse; without that setting, other nodes would be asked.
    given = (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT)
    dropped = (name for name in context.CLUSTER_PARAMETERS if ctx.params.get(name) is None)
    if _MISSPELT in ctx.meta or any(ctx.get_parameter_source(name) in given for name in dropped):
        return []
    try:
        chosen, name = settings_of(ctx, ctx.params).resolved()
        patience = min(_TAB_SECONDS, chosen.timeout or _TAB_SECONDS)
        cluster = context.make_cluster(dataclasses.replace(chosen, timeout=patience), name)
        topic = ctx.params.get("topic") or "" if what == "channel" else ""
        topics = names_of(values_of(cluster.ask(functools.partial(Nsqd.stats, topic=topic))).values())
    except AdminError:
        return []
    names = topics if what == "topic" else set().union(*topics.values())
    return sorted(name for name in names if name.startswith(incomplete) and name.isprintable())


class Parsed(click.ParamType[Any]):
    """A text that `parse` turns into a value, or raises ValueError with a readable text. A form of the page offers the
    `choices`, if there are any."""

    choices: Sequence[str] = ()

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name = name
        self.parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return self.parse(value) if isinstance(value, str) else value
        except ValueError as error:
            self.fail(str(error), param, ctx)


def duration(largest: float = 86400.0) -> Parsed:
    """Returns the type of a span of time in seconds, 90 or 1m30s, that is more than 0 and at most `largest`."""

    def parse(text: str) -> float:
        seconds = parse_duration(text)
        if not 0 < seconds <= largest:
            raise ValueError(f"{text} must be more than 0 and at most {largest:g} seconds.")
        return seconds

    return Parsed("duration", parse)


class Name(Parsed):
    """A valid name of a topic or channel; with `pattern`, also a shell pattern; with `path`, also TOPIC/CHANNEL."""

    def __init__(self, what: str, *, pattern: bool = False, path: bool = False) -> None:
        super().__init__("name", self._parse)
        self.what = what
        self.pattern = pattern
        self.path = path

    def _parse(self, text: str) -> str:
        if self.path and "/" in text:
            topic, _, channel = text.partition("/")
            kinds = Name("topic", pattern=self.pattern), Name("channel", pattern=self.pattern)
            return f"{kinds[0].parse(topic)}/{kinds[1].parse(channel)}"
        pattern = r"[][.a-zA-Z0-9_#*?!-]*[*?[][][.a-zA-Z0-9_#*?!-]*"
        if self.pattern and len(text) <= MAX_NAME_LENGTH and re.fullmatch(pattern, text):
            return text
        if not is_valid_name(text):
            raise ValueError(f"{printable(repr(text), 100)} is not a valid {self.what} name: expected {NAME_RULE}.")
        return text

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
        from click.shell_completion import CompletionItem  # only a shell needs it

        return [CompletionItem(name) for name in complete_names(self.what, ctx, param, incomplete)]


ADDRESS = Parsed("address", Address.parse)
_where = functools.partial(option, section=_WHICH_NODES)
_FILE = click.Path(dir_okay=False)
_CLUSTER = {
    "nsqd_http_address": _where(
        "HTTP address of an nsqd: host:port, [ipv6]:port, http://host:port, https://host:port or unix:/path. "
        f"Repeat it for several nodes. Without any address, it is {context.DEFAULT_ADDRESS}.",
        ADDRESS,
        multiple=True,
    ),
    "lookupd_http_address": _where(
        "HTTP address of an nsqlookupd, for all nodes that it lists. May be repeated.", ADDRESS, multiple=True
    ),
    "context_name": _where(
        "A saved context with addresses and the options below. See gnsqadmin context --help.",
        None,
        "--context",
        metavar="NAME",
        shell_complete=complete_contexts,
    ),
    "timeout": _where(
        "Time limit for the whole answer of a node, for example 10 (seconds) or 500ms. Without it, the limit is "
        f"{context.DEFAULT_TIMEOUT:g} seconds, and of several nodes that are only read, each must begin to answer "
        f"within {context.PATIENCE:g} seconds.",
        duration(3600),
    ),
    "tls_ca": _where("CA certificates in PEM format to trust for https, instead of the system's.", _FILE),
    "tls_cert": _where("Client certificate in PEM format.", _FILE),
    "tls_key": _where("Private key of the client certificate, unless --tls-cert contains it.", _FILE),
    "tls_insecure": _where("Accept any certificate for https.", is_flag=True),
    "token_file": _where(
        "File whose first line is the token for gnsqds that require one. It is sent only to nodes given by address, "
        "never to the nodes of an nsqlookupd.",
        _FILE,
    ),
}
_FORMATS = click.Choice([form.value for form in OutputFormat])
_OUTPUT = {
    "output_format": option("Output format.", _FORMATS, "-o", "--output", section="Output", default="table"),
    "as_json": flag("Same as -o json.", "--json", section="Output"),
}
_confirm_flag = functools.partial(flag, section="Confirmation")
_CONFIRM = {
    "yes": _confirm_flag(
        "Do not ask before messages are lost, or before all matches of a pattern are changed. Required for these "
        "without a terminal.",
        "--yes",
        "-y",
    ),
    "dry_run": _confirm_flag("Only show the changes and the messages that would be lost.", "--dry-run", "-n"),
}


class Watch(NamedTuple):
    """The options of commands that repeat: seconds between answers, None for one answer, and their number."""

    interval: float | None
    times: int | None


_WATCH = {
    "watch": option("Repeat at this interval, and show rates.", duration()),
    "count": option("Stop after N times. Without it, Ctrl-C stops.", click.IntRange(1)),
}


def _watch(watch: float | None, count: int | None) -> Watch:
    if count is not None and watch is None:
        raise click.UsageError("--count requires --watch.")
    return Watch(watch, count)


def _settings(**values: Any) -> ClusterSettings:
    return settings_of(click.get_current_context(), values)


def _cluster(**values: Any) -> Cluster:
    cluster = _settings(**values).cluster()
    cluster.waiting = lambda count: progress("waiting for answers", count, "nodes")
    return cluster


# The parameters that commands share.
_SHARED = {
    "watch": Combined(_watch, _WATCH),
    "confirm": Combined(Confirm, _CONFIRM),
    "settings": Combined(_settings, _CLUSTER),
    "cluster": Combined(_cluster, _CLUSTER),
    "output": Combined(Output, _OUTPUT),
}

_only = functools.partial(option, default="", metavar="NAME")
_ONLY = {
    "topic": _only("Only this topic.", shell_complete=functools.partial(complete_names, "topic")),
    "channel": _only(
        "Only this channel, and the topics that have it.", shell_complete=functools.partial(complete_names, "channel")
    ),
}
