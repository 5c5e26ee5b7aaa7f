"""Rows and tables as data: commands build them, `output` writes JSON and CSV, `render` draws tables.

A row is a dataclass, declared once for all forms: each field is a key in JSON, and one made by `column` also a column
of tables and CSV. Structs of nodes' answers are keys in JSON too. Independent of the terminal.
"""

import dataclasses
import enum
import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

from nsqadmin_cli import units


class Tone(enum.Enum):
    """The role of a text; `render` has a colour for each."""

    PLAIN = enum.auto()
    FAINT = enum.auto()
    STRONG = enum.auto()
    NODE = enum.auto()
    GOOD = enum.auto()
    NOTE = enum.auto()  # worth attention
    BAD = enum.auto()
    STRONG_NOTE = enum.auto()  # heading of something worth attention
    SELECTED = enum.auto()  # the row of the cursor


class Form(enum.Enum):
    """The way to show the values of a column. All except those `AT_LEFT` are aligned right."""

    TEXT = enum.auto()
    FLAG = enum.auto()  # bool: yes, or nothing
    COUNT = enum.auto()  # int
    RATE = enum.auto()  # float, a second
    SHARE = enum.auto()  # float, 1 for 100 %
    BYTES = enum.auto()  # int
    DURATION = enum.auto()  # float, seconds
    LATENCY = enum.auto()  # float, seconds, usually short ones
    TIME = enum.auto()  # float, unix seconds
    RANK = enum.auto()  # an int that is shown as text; the largest is the first


class Cell(NamedTuple):
    """A value with its own tone; a string may have any content, and is escaped when it is shown."""

    value: object
    tone: Tone | None = None


# How values are written in full, and the forms that are aligned left.
EXACT: dict[Form, Callable[..., str]] = {Form.COUNT: "{:,}".format, Form.RATE: units.rate, Form.BYTES: units.size}
EXACT |= {Form.DURATION: units.duration, Form.LATENCY: units.latency, Form.TIME: units.clock}
EXACT |= {Form.SHARE: "{:.0%}".format, Form.RANK: str}
AT_LEFT = (Form.TEXT, Form.FLAG, Form.TIME, Form.RANK)


def failed(reason: str) -> Cell:
    return Cell(f"failed: {reason}", Tone.BAD)


Row = Sequence[object]  # a Cell or a bare value for each column; None is a blank


@dataclass(frozen=True, slots=True)
class Column:
    """One column. `key` is its name in CSV. On narrow terminals, `short` replaces `heading`, and columns are dropped,
    those with the smallest `keep` first; `ALWAYS` is kept. Values of the first column are folded if they do not fit. A
    `sparse` column is left out of a table whose rows have no value for it."""

    key: str
    heading: str
    short: str = ""
    form: Form = Form.TEXT
    keep: int = 5
    tone: Tone = Tone.PLAIN
    sparse: bool = False


ALWAYS = 9


def shown(value: object, column: Column, formats: Mapping[Form, Callable[..., str]] = EXACT) -> tuple[str, Tone]:
    value, tone = value if isinstance(value, Cell) else Cell(value)
    if value is None:
        return "", Tone.PLAIN
    match column.form:
        case Form.TEXT:
            text = units.printable(str(value))
        case Form.FLAG:
            text = "yes" if value else ""
        case form:
            text = formats[form](value)
            if tone is None and not value:
                tone = Tone.FAINT
    return text, tone or column.tone


@dataclass(slots=True)
class Table:
    """Rows under headings. `total` is one more row, below a rule; `empty` is the text if there are no rows."""

    columns: Sequence[Column]
    rows: list[Row] = field(default_factory=list)
    total: Row | None = None
    empty: str = ""

    def select(self, columns: Sequence[int]) -> None:
        """Keeps these columns, in this order."""
        self.columns = [self.columns[index] for index in columns]
        self.rows = [[row[index] for index in columns] for row in self.rows]
        self.total = self.total and [self.total[index] for index in columns]

    def sort(self, index: int) -> None:
        """Sorts the rows by a column: texts from a on, everything else the largest first; blanks last."""

        def key(row: Row) -> tuple[bool, Any]:
            value = as_json(row[index])
            return value is None, value if isinstance(value, str) else -(value or 0)

        self.rows.sort(key=key)


def column(
    heading: str,
    short: str = "",
    form: Form = Form.TEXT,
    keep: int = 5,
    tone: Tone = Tone.PLAIN,
    *,
    sparse: bool = False,
    key: str = "",
    json: bool = True,
    help: str = "",
    null: bool = False,
    default: Any = None,
) -> Any:
    """Returns a field of a row with a column. Its name in CSV is `key`, if that differs; without `json`, it is not in
    JSON. `help` is what the description of the document adds to its name; with `null`, an empty text is null."""
    metadata = {"column": (key, heading, short, form, keep, tone, sparse), "json": json, "help": help, "null": null}
    return field(default=default, metadata=metadata)


def json_only(help: str = "", *, null: bool = False, **default: Any) -> Any:
    """Returns a field of a row without a column."""
    return field(**(default or {"default": None}), metadata={"help": help, "null": null})


@cache
def columns_of(kind: type) -> dict[str, Column]:
    """Returns the columns of a kind of rows, by the name of the field."""
    declared = {row.name: row.metadata["column"] for row in dataclasses.fields(kind) if "column" in row.metadata}
    return {name: Column(key or name, *others) for name, (key, *others) in declared.items()}


@cache
def _keys_of(kind: Any) -> Mapping[str, Mapping[str, Any]]:
    """Returns the fields that are in JSON, with their metadata; structs have none."""
    if dataclasses.is_dataclass(kind):
        return {row.name: row.metadata for row in dataclasses.fields(kind) if row.metadata.get("json", True)}
    return {name: {} for name in getattr(kind, "__struct_fields__", ()) if name not in getattr(kind, "hidden", ())}


def table_of(
    kind: type, rows: Sequence[object], *, without: Collection[str] = (), total: object = None, empty: str = ""
) -> Table:
    """Returns the rows of this kind without some fields. `total` is another row, or the name of the sums of several."""
    columns = {
        name: column
        for name, column in columns_of(kind).items()
        if name not in without and not (column.sparse and all(getattr(row, name) is None for row in rows))
    }
    cells = [[getattr(row, name) for name in columns] for row in rows]
    last: Row | None = None
    if isinstance(total, str) and len(rows) > 1:
        numbers = [index for index, column in enumerate(columns.values()) if column.form in (Form.COUNT, Form.BYTES)]
        sums = {index: sum(as_json(row[index]) or 0 for row in cells) for index in numbers}
        last = [total, *map(sums.get, range(1, len(columns)))]
    elif not isinstance(total, str | None):
        last = [getattr(total, name) for name in columns]
    return Table(tuple(columns.values()), [*cells], last, empty)


def as_json(value: object) -> Any:
    """Returns a row or model, several of them, or one of their values, for json.dumps."""
    if isinstance(value, _SIMPLE):
        return value
    if isinstance(value, Cell):
        return as_json(value.value)
    if isinstance(value, list | tuple | set):
        return [as_json(element) for element in (sorted(value) if isinstance(value, set) else value)]
    if isinstance(value, dict):
        return {key: as_json(member) for key, member in value.items()}
    kind: Any = type(value)
    if kind.__str__ is object.__str__ and (keys := _keys_of(kind)):
        members = ((name, metadata, getattr(value, name)) for name, metadata in keys.items())
        return {
            name: None if member == "" and metadata.get("null") else as_json(member)
            for name, metadata, member in members
        }
    return str(value)


_SIMPLE = (str, int, float, type(None))


def described(name: str, what: str, kind: type) -> str:
    """Returns `name` and its meaning, with the keys of a kind of rows, for the help of a command."""
    helps = ((name, metadata.get("help")) for name, metadata in _keys_of(kind).items())
    keys = ", ".join(f"{name} ({help})" if help else name for name, help in helps)
    return textwrap.fill(f"{what}: {keys}", 78, initial_indent=f"{name:8} ", subsequent_indent=" " * 9) + "\n"


class Line(NamedTuple):
    """Texts in their tones side by side, with no table around them."""

    parts: tuple[tuple[str, Tone], ...] = ()

    @classmethod
    def of(cls, text: str, tone: Tone = Tone.PLAIN) -> "Line":
        return cls(((text, tone),))


@dataclass(slots=True)
class Grid:
    """Short rows without headings, such as names and their values; its columns are as wide as their content."""

    rows: list[Sequence[Cell | str]] = field(default_factory=list)

    @classmethod
    def of(cls, facts: Mapping[str, Cell | str]) -> "Grid":
        return cls([[Cell(name, Tone.FAINT), value] for name, value in facts.items()])


class Paragraph(NamedTuple):
    """Text behind a label, folded between words; later lines are indented like the text."""

    label: tuple[str, Tone]
    text: str
    tone: Tone = Tone.PLAIN


Block = Table | Grid | Line | Paragraph
