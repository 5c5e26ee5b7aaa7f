"""Prints blocks on standard output, with an empty line around each table. Only this package imports rich.

Tones have colours: the sixteen configurable ones of terminals, for dark and light themes. Emphasis is also bold, and
states such as paused or failed are also words: no meaning depends on colour.
"""

import os
from collections.abc import Iterable, Iterator, Sequence

from rich.console import COLOR_SYSTEMS, Console
from rich.style import Style

from nsqadmin_cli.render.layout import Parts, lay_out, lay_out_grid, lay_out_line, lay_out_paragraph
from nsqadmin_cli.table import Block, Grid, Line, Paragraph, Table, Tone

STYLES = {
    Tone.PLAIN: Style.null(),
    Tone.FAINT: Style.parse("dim"),
    Tone.STRONG: Style.parse("bold"),
    Tone.NODE: Style.parse("cyan"),
    Tone.GOOD: Style.parse("green"),
    Tone.NOTE: Style.parse("yellow"),
    Tone.BAD: Style.parse("bold red"),
    Tone.STRONG_NOTE: Style.parse("bold yellow"),
    Tone.SELECTED: Style.parse("reverse"),
}

_ASCII = str.maketrans("─│├└▁▂▃▄▅▆▇█↑↓", "-||`_.:-=+*#^v", "") | {ord("…"): "..."}

UNLIMITED = 1_000_000  # columns if it is not a terminal: nothing is folded or shortened


def make_console(*, stderr: bool = False) -> Console:
    """Returns a rich console that obeys NO_COLOR completely: also without bold and dim text."""
    is_plain = os.environ.get("NO_COLOR")
    return Console(stderr=stderr, color_system=None if is_plain else "auto", highlight=False, markup=False)


class OutputTerminal:
    """Standard output or standard error, a null one if that is closed; `width` in columns."""

    def __init__(self, *, stderr: bool = False) -> None:
        console = make_console(stderr=stderr)
        self.write, self.flush = console.file.write, console.file.flush
        self.width = console.width if console.file.isatty() else UNLIMITED
        self._colors = COLOR_SYSTEMS[console.color_system] if console.color_system else None
        self._has_lines = console.encoding.startswith("utf")  # and bars

    def print(self, lines: Iterable[Parts]) -> None:
        for parts in lines:
            self.write(self.painted(parts) + "\n")
        self.flush()

    def painted(self, parts: Sequence[tuple[str, Tone]]) -> str:
        """Returns the texts with the codes of their tones; ASCII for lines and bars if the encoding lacks them."""
        line = "".join([STYLES[tone].render(text, color_system=self._colors) for text, tone in parts])
        return line if self._has_lines or line.isascii() else line.translate(_ASCII)


def show_blocks(blocks: Sequence[Block], *, stderr: bool = False) -> None:
    page = OutputTerminal(stderr=stderr)
    page.print(lines_of(blocks, page.width))


def show_row(table: Table, number: int) -> None:
    """Prints the one row of a table after `number` rows; repeats the headings every 25 rows."""
    page = OutputTerminal()
    lines = list(lay_out(table, page.width, least=7))
    page.print(lines if number % 25 == 0 else lines[2:])


def lines_of(blocks: Sequence[Block], width: int) -> Iterator[Parts]:
    before: Block | None = None  # what was printed last
    for block in blocks:
        match block:
            case Table():
                lines = list(lay_out(block, width))
            case Grid():
                lines = list(lay_out_grid(block))
            case Line():
                lines = [lay_out_line(block)]
            case Paragraph():
                lines = list(lay_out_paragraph(block, width))
        if lines:
            if before is not None and (isinstance(before, Table) or isinstance(block, Table)):
                yield []
            yield from lines
            before = block
