"""Maps tones to colours: the sixteen configurable colours of terminals, for dark and light themes.

Emphasis is also bold, and states such as paused or failed are also words: no meaning depends on colour.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.color import ColorSystem
from rich.console import Console
from rich.style import Style

from nsqadmin_cli.table import Tone

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
    """A rich console that obeys NO_COLOR completely: also without bold and dim text."""
    return Console(
        stderr=stderr, color_system=None if os.environ.get("NO_COLOR") else "auto", highlight=False, markup=False
    )


class Painter:
    """Adds the codes of a tone to a text, or none if colours are off."""

    def __init__(self, console: Console) -> None:
        system = console.color_system
        self._codes: dict[Tone, tuple[str, str]] = {}
        if system is not None:
            names = {"standard": ColorSystem.STANDARD, "256": ColorSystem.EIGHT_BIT, "truecolor": ColorSystem.TRUECOLOR}
            for tone, style in STYLES.items():
                before, _, after = style.render("\0", color_system=names[system]).partition("\0")
                self._codes[tone] = before, after

    @property
    def plain(self) -> bool:
        """Whether it changes nothing."""
        return not self._codes

    def __call__(self, text: str, tone: Tone) -> str:
        before, after = self._codes.get(tone, ("", ""))
        return f"{before}{text}{after}" if before and text else text


@dataclass(frozen=True, slots=True)
class Page:
    """Standard output or error: `paint` adds its colours, `width` is its columns; `drawing`: it has lines and bars."""

    write: Callable[[str], object]
    flush: Callable[[], object]
    paint: Painter
    width: int
    drawing: bool

    def print(self, parts: Sequence[tuple[str, Tone]]) -> None:
        """Write one line."""
        if self.paint.plain:
            text = "".join([text for text, _ in parts])
        else:
            text = "".join([self.paint(text, tone) for text, tone in parts])
        self.write(self.plain(text) + "\n")

    def plain(self, text: str) -> str:
        """`text`, with ASCII instead of lines and bars if the encoding lacks them."""
        return text if self.drawing or text.isascii() else text.translate(_ASCII)


def standard_page(*, stderr: bool = False) -> Page:
    """The page for standard output or standard error; a null one if that is closed."""
    console = make_console(stderr=stderr)
    drawing = console.encoding.startswith("utf")
    width = console.width if console.file.isatty() else UNLIMITED
    return Page(console.file.write, console.file.flush, Painter(console), width, drawing)
