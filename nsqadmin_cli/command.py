"""Base of gnsqadmin's commands: their parameters, and the layout of their help.

A command declares its own options, `examples`, and, if it has one, the `document` of its --json; help shows them at its
end, and the reference page is generated from them. Options that many commands share have their own headings; a
function gets them by the name of a parameter.
"""

import functools
import inspect
import re
import textwrap
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import click

from nsqadmin_cli.cluster import Cluster
from nsqadmin_cli.completion import MISSPELT, complete_channels, complete_contexts, complete_topics
from nsqadmin_cli.context import DEFAULT_ADDRESS, DEFAULT_TIMEOUT, ClusterSettings, take_settings
from nsqadmin_cli.http_client import Address
from nsqadmin_cli.output import Confirm, Output, OutputFormat, progress
from nsqadmin_cli.units import parse_duration, printable

Function = Callable[..., Any]


class AdminOption(click.Option):
    """An option that help lists under `section`, with its default."""

    def __init__(self, *args: Any, section: str = "Options", **attributes: Any) -> None:
        attributes.setdefault("show_default", bool(attributes.get("default")))
        if "metavar" not in attributes:
            attributes["metavar"] = _METAVARS.get(type(attributes.get("type")))
        super().__init__(*args, **attributes)
        self.section = section


option = functools.partial(click.option, cls=AdminOption)


class AdminCommand(click.Command):
    """A command with examples. `document` describes what --json prints; both keep their lines."""

    def __init__(self, *args: Any, examples: str = "", document: Sequence[str] = (), **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.examples = textwrap.dedent(examples).strip()
        self.document = "\n".join(textwrap.dedent(part).strip() for part in document)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if ctx.resilient_parsing:  # a shell completes, and click leaves out all that follows an unknown option
            parser = self.make_parser(ctx)
            parser.ctx = None
            try:
                parser.parse_args([*args, "value"])  # of an option at the end
            except click.UsageError:
                ctx.meta[MISSPELT] = True
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


def command(
    name: str,
    *,
    examples: str,
    document: str | Sequence[str] = (),
    cls: type[AdminCommand] = AdminCommand,
    patterns: bool = False,
) -> Callable[[Function], AdminCommand]:
    """A decorator instead of click.command: `name` is the last word of the command.

    A parameter of the function that is named like one of `_SHARED` gets its value, and the command gets its options. A
    topic or channel without an option or argument of its own is an argument, before others; with `patterns` it may be a
    shell pattern, and both may be one argument, TOPIC/CHANNEL. The function returns the exit code, or None for 0.
    """
    parts = [document] if isinstance(document, str) else document

    def make(function: Function) -> AdminCommand:
        parameters = inspect.signature(function).parameters
        wanted = [shared for shared in _SHARED if shared in parameters]

        @functools.wraps(function)
        def called(*args: Any, **values: Any) -> Any:
            for shared in wanted:
                values[shared] = _SHARED[shared][0](values)
            if patterns and "channel" in values:
                values["topic"], values["channel"] = _topic_and_channel(values["topic"], values["channel"])
            return function(*args, **values)

        made = click.command(name, cls=cls, examples=examples, document=parts)(called)
        own = [param.name for param in made.params]
        names = [argument for argument in _NAMES if argument in parameters and argument not in own]
        made.params[:0] = [click.Argument([argument], **_NAMES[argument]) for argument in names]
        if patterns:
            topic, *channel = made.params[: len(names)]
            topic.type = Name("topic", pattern=True, path=bool(channel))
            for argument in channel:
                argument.type, argument.required = Name("channel", pattern=True), False
            subject = "TOPIC and CHANNEL, or TOPIC/CHANNEL as one argument," if channel else "TOPIC"
            made.help = (
                f"{made.help}\n\n{subject} may be a pattern such as 'orders*': all matches are shown, and "
                "changed after confirmation."
            )
        made.params += [option for shared in wanted for option in _SHARED[shared][1]]
        return made

    return make


def _topic_and_channel(topic: str, channel: str | None) -> tuple[str, str]:
    """The two names of the arguments; UsageError."""
    topic, slash, second = topic.partition("/")
    if bool(slash) == (channel is not None):
        raise click.UsageError("give TOPIC and CHANNEL, or TOPIC/CHANNEL.")
    return topic, channel or second


class Duration(click.ParamType[float]):
    """A span of time in seconds, as a number or a text such as 250ms, 1h30m; more than 0 and at most `largest`."""

    name = "duration"

    def __init__(self, largest: float = 86400.0) -> None:
        self.largest = largest

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        try:
            seconds = parse_duration(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if not 0 < seconds <= self.largest:
            self.fail(f"{value} must be more than 0 and at most {self.largest:g} seconds.", param, ctx)
        return seconds


class Name(click.ParamType[str]):
    """A valid name of a topic or channel; with `pattern`, also a shell pattern; with `path`, also TOPIC/CHANNEL."""

    name = "name"

    def __init__(self, what: str, *, pattern: bool = False, path: bool = False) -> None:
        self.what = what
        self.pattern = pattern
        self.path = path

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value)
        if self.path and "/" in text:
            kinds = Name("topic", pattern=self.pattern), Name("channel", pattern=self.pattern)
            return "/".join(
                kind.convert(part, param, ctx) for kind, part in zip(kinds, text.split("/", 1), strict=True)
            )
        if self.pattern and len(text) <= 64 and re.fullmatch(r"[][.a-zA-Z0-9_#*?!-]*[*?[][][.a-zA-Z0-9_#*?!-]*", text):
            return text
        if len(text) > 64 or not re.fullmatch(r"[.a-zA-Z0-9_-]+(#ephemeral)?", text):
            rule = "1 to 64 of a-z, A-Z, 0-9, '.', '_' and '-', optionally with #ephemeral at the end"
            self.fail(f"{printable(repr(text), 100)} is not a valid {self.what} name: expected {rule}.", param, ctx)
        return text


class AddressType(click.ParamType[Address]):
    name = "address"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Address:
        try:
            return value if isinstance(value, Address) else Address.parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


# Of the types of options, unless they have their own.
_METAVARS: dict[type, str] = {
    Duration: "DURATION",
    Name: "NAME",
    AddressType: "ADDRESS",
    click.IntRange: "N",
    click.FloatRange: "N",
}


def _where(option: str, metavar: str | None, help: str, *names: str, **attributes: Any) -> AdminOption:
    """An option to select nodes or connect to them, with its variable."""
    variable = f"GNSQADMIN_{option.removeprefix('--').replace('-', '_').upper()}"
    if metavar == "FILE":
        attributes["type"] = click.Path(dir_okay=False)
    return AdminOption(
        [option, *names], section="Which nodes", envvar=variable, metavar=metavar, help=help, **attributes
    )


_CLUSTER = (
    _where(
        "--nsqd-http-address",
        "ADDRESS",
        "HTTP address of an nsqd: host:port, [ipv6]:port, http://host:port, https://host:port or unix:/path. "
        f"Repeat it for several nodes. Without any address, it is {DEFAULT_ADDRESS}.",
        multiple=True,
        type=AddressType(),
    ),
    _where(
        "--lookupd-http-address",
        "ADDRESS",
        "HTTP address of an nsqlookupd, for all nodes that it lists. May be repeated.",
        multiple=True,
        type=AddressType(),
    ),
    _where(
        "--context",
        "NAME",
        "A saved context with addresses and the options below. See gnsqadmin context --help.",
        "context_name",
        shell_complete=complete_contexts,
    ),
    _where(
        "--timeout",
        "DURATION",
        f"Time limit for the whole answer of a node, for example 5 (seconds) or 500ms. [default: {DEFAULT_TIMEOUT:g}]",
        type=Duration(3600),
    ),
    _where("--tls-ca", "FILE", "CA certificates in PEM format to trust for https, instead of the system's."),
    _where("--tls-cert", "FILE", "Client certificate in PEM format."),
    _where("--tls-key", "FILE", "Private key of the client certificate, unless --tls-cert contains it."),
    _where("--tls-insecure", None, "Accept any certificate for https.", is_flag=True),
    _where(
        "--token-file",
        "FILE",
        "File whose first line is the token for gnsqds that require one. The token is not sent to nsqlookupds.",
    ),
)
_OUTPUT = (
    AdminOption(
        ["-o", "--output", "output_format"],
        section="Output",
        type=click.Choice([form.value for form in OutputFormat]),
        default=OutputFormat.TABLE.value,
        help="Output format.",
    ),
    AdminOption(["--json", "as_json"], section="Output", is_flag=True, help="Same as -o json."),
)
_CONFIRM = (
    AdminOption(
        ["--yes", "-y"],
        section="Confirmation",
        is_flag=True,
        help="Do not ask before messages are lost, or before all matches of a pattern are changed. Required for these "
        "without a terminal.",
    ),
    AdminOption(
        ["--dry-run", "-n"],
        section="Confirmation",
        is_flag=True,
        help="Only show the changes and the messages that would be lost.",
    ),
)


class Watch(NamedTuple):
    """The options of commands that repeat: seconds between answers, None for one answer, and their number."""

    interval: float | None
    times: int | None


_WATCH = (
    AdminOption(["--watch"], type=Duration(), help="Repeat at this interval, and show rates."),
    AdminOption(
        ["--count"],
        type=click.IntRange(1),
        help="Stop after N times. Without it, Ctrl-C stops.",
    ),
)


def _watch(values: dict[str, Any]) -> Watch:
    watch = Watch(values.pop("watch"), values.pop("count"))
    if watch.times is not None and watch.interval is None:
        raise click.UsageError("--count requires --watch.")
    return watch


def _settings(values: dict[str, Any]) -> ClusterSettings:
    return take_settings(click.get_current_context(), values)


def _cluster(values: dict[str, Any]) -> Cluster:
    cluster = _settings(values).cluster()
    cluster.waiting = lambda count: progress("waiting for answers", count, "nodes")
    return cluster


def _output(values: dict[str, Any]) -> Output:
    form = OutputFormat(values.pop("output_format"))
    return Output(OutputFormat.JSON if values.pop("as_json") else form)


def _confirm(values: dict[str, Any]) -> Confirm:
    return Confirm(values.pop("yes"), values.pop("dry_run"))


# The parameters that commands share: how a value is made of the parsed options, which are removed, and these.
_SHARED: dict[str, tuple[Callable[[dict[str, Any]], Any], tuple[AdminOption, ...]]] = {
    "watch": (_watch, _WATCH),
    "confirm": (_confirm, _CONFIRM),
    "settings": (_settings, _CLUSTER),
    "cluster": (_cluster, _CLUSTER),
    "output": (_output, _OUTPUT),
}

# Empty if it is not given.
topic_option = option("--topic", default="", metavar="NAME", shell_complete=complete_topics, help="Only this topic.")
channel_option = option(
    "--channel",
    default="",
    metavar="NAME",
    shell_complete=complete_channels,
    help="Only this channel, and the topics that have it.",
)
# Valid names; the shell completes channels of the topic before them.
_NAMES: dict[str, dict[str, Any]] = {
    "topic": {"type": Name("topic"), "shell_complete": complete_topics},
    "channel": {"type": Name("channel"), "shell_complete": complete_channels},
}
