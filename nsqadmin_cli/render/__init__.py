"""Prints blocks on standard output, with an empty line around each table. Only this package imports rich."""

from collections.abc import Iterator, Sequence

from nsqadmin_cli.render.layout import Parts, lay_out, lay_out_grid, lay_out_line, lay_out_paragraph
from nsqadmin_cli.render.palette import standard_page
from nsqadmin_cli.table import Block, Grid, Line, Paragraph, Table


def show_blocks(blocks: Sequence[Block], *, stderr: bool = False) -> None:
    """Print the blocks."""
    page = standard_page(stderr=stderr)
    for parts in lines_of(blocks, page.width):
        page.print(parts)
    page.flush()


def show_row(table: Table, number: int) -> None:
    """Print the one row of a table after `number` rows; repeats the headings every 25 rows."""
    page = standard_page()
    lines = list(lay_out(table, page.width, least=7))
    for parts in lines if number % 25 == 0 else lines[2:]:
        page.print(parts)
    page.flush()


def lines_of(blocks: Sequence[Block], width: int) -> Iterator[Parts]:
    """The lines of all blocks on `width` columns."""
    apart = False  # whether an empty line has to follow what was printed last
    first = True
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
        if not lines:
            continue
        if not first and (apart or isinstance(block, Table)):
            yield []
        yield from lines
        first = False
        apart = isinstance(block, Table)
