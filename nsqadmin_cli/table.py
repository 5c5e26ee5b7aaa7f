"""Tables as data: what commands make, and `render` draws or writes as CSV. Nothing here knows a terminal."""

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class Tone(enum.Enum):
    """What a text is about; `render` has a colour for each."""

    PLAIN = enum.auto()
    FAINT = enum.auto()
    STRONG = enum.auto()
    NODE = enum.auto()
    GOOD = enum.auto()
    NOTE = enum.auto()  # worth a look
    BAD = enum.auto()
    STRONG_NOTE = enum.auto()  # the heading of something that is worth a look


class Form(enum.Enum):
    """How the values of a column are shown. All but TEXT and FLAG stand at the right."""

    TEXT = enum.auto()
    FLAG = enum.auto()  # bool: yes, or nothing
    COUNT = enum.auto()  # int
    RATE = enum.auto()  # float, a second
    BYTES = enum.auto()  # int
    DURATION = enum.auto()  # float, seconds
    LATENCY = enum.auto()  # float, seconds, usually short ones


class Cell(NamedTuple):
    """A value in a tone of its own; as a text it is any string, which is made harmless when it is shown."""

    value: object
    tone: Tone | None = None


Row = Sequence[object]  # a Cell or a bare value for each column; None is a blank


@dataclass(frozen=True, slots=True)
class Column:
    """One column. `key` is its name in CSV.

    On narrow terminals `short` stands for `heading`, and columns go, those with the smallest `keep` first; `ALWAYS`
    stays. The values of the first column are folded where the terminal has no room for them.
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
    """Rows under headings. `total` is one more row, below a rule; `empty` is said when there are no rows."""

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
    """Short rows without headings, such as names and their values; its columns are as wide as what is in them."""

    rows: list[Sequence[Cell | str]] = field(default_factory=list)


class Paragraph(NamedTuple):
    """Running text behind a label, folded between words; the lines below the first begin where the text does."""

    label: tuple[str, Tone]
    text: str
    tone: Tone = Tone.PLAIN


Block = Table | Grid | Line | Paragraph
