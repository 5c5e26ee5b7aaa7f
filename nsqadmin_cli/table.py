"""Tables as data: commands build them, and `render` draws them or writes CSV. Independent of the terminal."""

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


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


class Form(enum.Enum):
    """How the values of a column are shown. All except TEXT and FLAG are aligned right."""

    TEXT = enum.auto()
    FLAG = enum.auto()  # bool: yes, or nothing
    COUNT = enum.auto()  # int
    RATE = enum.auto()  # float, a second
    BYTES = enum.auto()  # int
    DURATION = enum.auto()  # float, seconds
    LATENCY = enum.auto()  # float, seconds, usually short ones


class Cell(NamedTuple):
    """A value with its own tone; a string may have any content, and is escaped when it is shown."""

    value: object
    tone: Tone | None = None


Row = Sequence[object]  # a Cell or a bare value for each column; None is a blank


@dataclass(frozen=True, slots=True)
class Column:
    """One column. `key` is its name in CSV.

    On narrow terminals, `short` replaces `heading`, and columns are dropped, those with the smallest `keep` first;
    `ALWAYS` is kept. Values of the first column are folded if they do not fit.
    """

    key: str
    heading: str
    short: str = ""
    form: Form = Form.TEXT
    keep: int = 5
    tone: Tone = Tone.PLAIN


ALWAYS = 9


@dataclass(slots=True)
class Table:
    """Rows under headings. `total` is one more row, below a rule; `empty` is the text if there are no rows."""

    columns: Sequence[Column]
    rows: list[Row] = field(default_factory=list)
    total: Row | None = None
    empty: str = ""


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


class Paragraph(NamedTuple):
    """Text behind a label, folded between words; later lines are indented like the text."""

    label: tuple[str, Tone]
    text: str
    tone: Tone = Tone.PLAIN


Block = Table | Grid | Line | Paragraph
