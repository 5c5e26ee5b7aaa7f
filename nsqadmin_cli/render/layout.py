"""Lays out tables as lines: chooses columns, number formats and widths.

On a terminal, a table is fitted to the width: with full headings and exact numbers if they fit, else with short
headings, then with shortened numbers, then without the least important columns, and finally with folded names.
Elsewhere nothing is shortened.

rich's own table takes about 50 µs per cell; here, ten thousand rows of a large cluster take a fraction of a second.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rich.cells import cell_len, chop_cells

from nsqadmin_cli import units
from nsqadmin_cli.table import ALWAYS, AT_LEFT, EXACT, Cell, Column, Form, Grid, Line, Paragraph, Table, Tone, shown
from nsqadmin_cli.units import printable

Parts = list[tuple[str, Tone]]  # of one line

_COMPACT = EXACT | {Form.COUNT: units.compact, Form.RATE: units.compact_rate}


class Fit(NamedTuple):
    """A layout of a table: columns, formats, and the spaces between columns."""

    columns: Sequence[int]
    short: bool
    compact: bool
    gap: int
    name_room: int  # columns that it must leave to the first column, if that needs them


def fits(columns: Sequence[Column]) -> Iterator[Fit]:
    shown = list(range(len(columns)))
    yield Fit(shown, False, False, 3, 32)
    yield Fit(shown, True, False, 3, 32)
    yield Fit(shown, True, True, 1, 24)
    # One column less each time; of two that are equally important, the right one goes first.
    for index in sorted(shown[1:], key=lambda index: (columns[index].keep, -index)):
        if columns[index].keep < ALWAYS:
            shown = [other for other in shown if other != index]
            yield Fit(shown, True, True, 1, 16)


def lay_out(table: Table, width: int, *, least: int = 0, cut: bool = False) -> Iterator[Parts]:
    """Yields the lines of `table` on `width` columns; all but the first have `least` columns or more. With `cut`, long
    texts in the first column are truncated instead of folded."""
    columns = table.columns
    rows = [*table.rows, table.total] if table.total is not None else table.rows
    if not rows:
        if table.empty:
            yield [(printable(table.empty), Tone.PLAIN)]
        return
    made: dict[tuple[int, bool], list[tuple[str, Tone]]] = {}

    def cells(index: int, compact: bool) -> list[tuple[str, Tone]]:
        column, formats = columns[index], _COMPACT if compact else EXACT
        key = index, formats.get(column.form) is not EXACT.get(column.form)
        if key not in made:
            made[key] = [shown(row[index], column, formats) for row in rows]
        return made[key]

    for fit in fits(columns):
        chosen = [columns[index] for index in fit.columns]
        headings = [column.short if fit.short and column.short else column.heading for column in chosen]
        body = [cells(index, fit.compact) for index in fit.columns]
        widths = [
            max(cell_len(heading), least, *(_width(text) for text, _ in column))
            for heading, column in zip(headings, body, strict=True)
        ]
        room = width - sum(widths[1:]) - fit.gap * (len(widths) - 1)
        if room >= min(widths[0], fit.name_room):
            break
    room = max(room, fit.name_room)
    widths[0] = min(widths[0], room)
    gap = " " * fit.gap
    right = [columns[index].form not in AT_LEFT for index in fit.columns]
    yield _line([(heading, Tone.STRONG) for heading in headings], widths, right, gap)
    rule = [("─" * (sum(widths) + fit.gap * (len(widths) - 1)), Tone.FAINT)]
    yield rule
    for number, row in enumerate(zip(*body, strict=True)):
        if table.total is not None and number == len(rows) - 1 and number:
            yield rule
        (name, tone), *others = row
        first, *rest = [name]
        if _width(name) > room:
            first, *rest = [f"{chop_cells(name, max(1, room - 1))[0]}…"] if cut else _folded(name, room)
        yield _line([(first, tone), *others], widths, right, gap)
        yield from ([(part, tone)] for part in rest)


def lay_out_grid(grid: Grid) -> Iterator[Parts]:
    cells = [[value if isinstance(value, Cell) else Cell(value) for value in row] for row in grid.rows]
    rows = [[(printable(str(cell.value)), cell.tone or Tone.PLAIN) for cell in row] for row in cells]
    count = max((len(row) for row in rows), default=0)
    widths = [max(_width(row[index][0]) for row in rows if len(row) > index) for index in range(count)]
    for row in rows:
        yield _line(row, widths[: len(row)], [False] * len(row), "   ")


def lay_out_line(line: Line) -> Parts:
    return [(printable(text, 2000), tone) for text, tone in line.parts]


def lay_out_paragraph(paragraph: Paragraph, width: int) -> Iterator[Parts]:
    label = printable(paragraph.label[0])
    margin = cell_len(label)
    room = max(20, width - margin)
    lines: list[str] = []
    for word in printable(paragraph.text, 2000).split(" "):
        if lines and cell_len(lines[-1]) + 1 + cell_len(word) <= room:
            lines[-1] += f" {word}"
        else:
            lines += chop_cells(word, room) or [""]
    yield [(label, paragraph.label[1]), (lines[0], paragraph.tone)]
    yield from ([(" " * margin, Tone.PLAIN), (line, paragraph.tone)] for line in lines[1:])


def _width(text: str) -> int:
    return len(text) if text.isascii() else cell_len(text)


def _line(cells: Sequence[tuple[str, Tone]], widths: Sequence[int], right: Sequence[bool], gap: str) -> Parts:
    """Returns one line of padded cells, with nothing behind the last text."""
    parts: Parts = []
    last = max((index for index, (text, _) in enumerate(cells) if text), default=0)
    for index in range(last + 1):
        text, tone = cells[index]
        space = " " * (widths[index] - _width(text))
        if right[index]:
            text = space + text
        elif index < last:
            text += space
        parts.append((text + gap if index < last else text, tone))
    return parts


def _folded(name: str, room: int) -> list[str]:
    """Returns a name in lines of at most `room` columns; its "(paused)" gets its own line."""
    text, note, rest = name.partition(" (")
    return [*chop_cells(text, room), *([f"   {note}{rest}"] if note else [])]
