"""Escapes untrusted text for terminals and CSV files."""

from collections.abc import Iterable

LONGEST = 300  # characters of one cell; names of NSQ have at most 64


def printable(text: str, longest: int = LONGEST) -> str:
    """`text` on one line, with control characters shown as escape sequences.

    Text longer than `longest` characters is truncated, with an ellipsis.
    """
    if len(text) > longest:
        text = f"{text[: longest - 1]}…"
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)


def suggestion(name: str, known: Iterable[str]) -> str:
    """`; did you mean orders?` with the name of `known` that is most similar to `name`; empty if none is similar."""
    import difflib  # rarely needed

    near = difflib.get_close_matches(name, [one for one in known if one != name], n=1)
    return f"; did you mean {near[0]}?" if near else ""


def plural(count: int, noun: str) -> str:
    """`1 topic`, `2,000 topics`."""
    return f"{count:,} {noun}{'s' * (count != 1)}"
