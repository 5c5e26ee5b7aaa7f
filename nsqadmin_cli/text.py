"""Text from elsewhere made harmless: the one place that decides what of it reaches a terminal or a CSV file."""

LONGEST = 300  # characters of one cell; names of NSQ have at most 64


def printable(text: str, longest: int = LONGEST) -> str:
    """`text` on one line, with everything that a terminal might obey shown as its escape sequence.

    Of more than `longest` characters the first ones are shown, and an ellipsis.
    """
    if len(text) > longest:
        text = f"{text[: longest - 1]}…"
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)


def plural(count: int, noun: str) -> str:
    """`1 topic`, `2,000 topics`."""
    return f"{count:,} {noun}{'s' * (count != 1)}"
