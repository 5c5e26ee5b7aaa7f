"""Writes the tables of three reference pages in contrib/docs from the program: http.md from the routes, tcp.md from the
commands, metrics.md from the statistics.

The program gives the rows and what it determines in them. Other words stand in the tables and are kept: a row that the
table lacks is an error, until somebody writes it.
"""

import re
from collections.abc import Callable, Iterable

from documents.marks import ROOT, cells, table
from gnsqd.broker.environment import ClientStats
from gnsqd.observe.memory import MemoryStats
from gnsqd.observe.stats import CLIENT_FIELDS, STAT_FIELDS, StatField, metric_fields
from gnsqd.options import Options
from gnsqd.web.routes import GENERAL_ERRORS, ROUTES
from gnsqd.wire.codec import UNKNOWN, CommandSpec
from gnsqd.wire.commands import command_table
from gnsqd.wire.identify import Identify

Words = dict[str, list[str]]  # the cells of each row, by the first word in code of the first one


def http_errors() -> dict[str, set[str]]:
    """Returns every code that an answer can have, with its statuses."""
    found: dict[str, set[str]] = {}
    for status, code in re.findall(r"(\d+) (\w+)", ",".join([GENERAL_ERRORS, *(route.errors for route in ROUTES)])):
        found.setdefault(code, set()).add(status)
    return found


def wire_errors() -> set[str]:
    """Returns every code that an error frame can have."""
    sources = "".join(path.read_text("utf-8") for path in sorted((ROOT / "gnsqd" / "wire").glob("*.py")))
    names = (spec.name for spec in protocol_commands() if spec.publishes)
    return {*re.findall(r'"(E_[A-Z_]+)\b', sources), *(f"E_{name}_FAILED" for name in names)}


def protocol_commands() -> list[CommandSpec]:
    return [spec for key, spec in command_table(Options()).items() if key != UNKNOWN]


def _endpoints(words: Words) -> str:
    rows = []
    for route in ROUTES:
        request, what, parameters, _ = words[f"{route.method} {route.path}"]
        own = re.sub(r"(; )?a body of up to `--[a-z-]+`$", "", parameters)
        body = f"a body of up to `--{route.body.replace('_', '-')}`" if route.body else ""
        codes = dict.fromkeys(f"`{code}`" for code in re.findall("[A-Z_]+", route.errors))
        rows.append([request, what, "; ".join(filter(None, [own, body])), ", ".join(codes)])
    return table(["Request", "What it does", "Parameters", "Errors"], rows)


def _http_errors(words: Words) -> str:
    errors = sorted(http_errors().items())
    rows = [[f"`{code}`", ", ".join(sorted(statuses)), words[code][2]] for code, statuses in errors]
    return table(["`message`", "Status", "Why"], rows)


def _commands(words: Words) -> str:
    by_name = {line.split()[0]: row for line, row in words.items()}
    rows = []
    for spec in protocol_commands():
        line, _, *others = by_name[spec.name]
        tail = "size, count, size and body of each" if spec.has_messages else "size, body" if spec.limits else ""
        rows.append([line, tail, *others])
    return table(["Line", "Followed by", "State", "What it does", "Answer", "Errors besides `E_INVALID`"], rows)


def _wire_errors(words: Words) -> str:
    rows = [words[code] for code in sorted(wire_errors())]
    return table(["Code", "Why", "Ends the connection"], rows, "|---|---|:-:|")


def _settings(words: Words) -> str:
    kinds = {str: "text", int: "int", bool: "bool"}
    rows = [[f"`{name}`", kinds[type(getattr(Identify, name))], words[name][2]] for name in Identify.names]
    return table(["Key", "Type", ""], rows)


def _series(words: Words) -> str:
    """Writes the series of topics and channels, with the names that /stats and statsd have for them; other rows of the
    table stay where they are."""
    rows, place = list(words.values()), 0
    for level, names in _LABELS.items():
        for field in metric_fields(level, Options(max_attempts=1)):
            key = f"`{field.name}`" if field in STAT_FIELDS[level] else ""
            pushed = f"`{field.statsd}`" if field.statsd else ""
            row = [f"`{metric(level, field)}`", field.kind.value, names, field.help, key, pushed]
            known = [index for index, other in enumerate(rows) if other[0] == row[0]]
            place = known[0] if known else place
            rows[place : place + len(known)] = [row]
            place += 1
    return table(["name", "type", "labels", "meaning", "`/stats`", "statsd"], rows)


def metric(level: str, field: StatField) -> str:
    """Returns its name in Prometheus."""
    return f"gnsqd_{level}_{field.metric}{'_total' if field.kind.value == 'counter' else ''}"


def _keys(names: Iterable[str]) -> Callable[[Words], str]:
    known = {field.name: [f"`{field.name}`", field.help] for field in CLIENT_FIELDS}
    return lambda words: table(["Key", "Meaning"], [(words | known)[name] for name in names])


def _kept_words(name: str, mark: str, write: Callable[[Words], str]) -> Callable[[str], str]:
    """Returns a function that writes a table with the words of the present one; it raises ValueError for a row that
    has none."""

    def written(text: str) -> str:
        try:
            return write({row[0].strip("`"): row for row in cells(text)})
        except KeyError as error:
            raise ValueError(f"{name} has no row for {error} in its table of {mark}") from None

    return written


_LABELS = {"topic": "topic", "channel": "topic, channel"}
_TABLES: dict[tuple[str, str], Callable[[Words], str]] = {
    ("http.md", "routes"): _endpoints,
    ("http.md", "errors"): _http_errors,
    ("tcp.md", "commands"): _commands,
    ("tcp.md", "settings"): _settings,
    ("tcp.md", "errors"): _wire_errors,
    ("metrics.md", "series"): _series,
    ("metrics.md", "clients"): _keys(ClientStats.names),
    ("metrics.md", "memory"): _keys(MemoryStats().row()),
}
TABLES = {(name, mark): _kept_words(name, mark, write) for (name, mark), write in _TABLES.items()}
