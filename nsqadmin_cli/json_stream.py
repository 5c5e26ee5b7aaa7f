"""Parses a JSON object while it arrives: the items of its long lists are made into rows one by one.

So a node's text is not kept, nor the dictionaries of more than one item, which take up to twenty times as much. What
an item would take is estimated before it is parsed, because a few bytes of text can be a large object.
"""

import codecs
import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, nullcontext
from sys import getsizeof
from typing import Any

from nsqadmin_cli.budget import Pool, TooLarge

Rows = Mapping[str, Callable[[Any], Any]]

_LARGEST_ITEM = 16 << 20  # bytes of text, with what follows: a topic with more than ten thousand clients
_LARGEST_OBJECTS = 64 << 20  # bytes that an item may take as Python objects
_MOST_KEYS = 1000
_SMALL = 1 << 17  # bytes of text that each thread may have and parse while others do
_SPACE = re.compile("[ \t\n\r]*")
_AFTER_NUMBER = tuple(" \t\n\r,]}")  # else it may go on
_UNFINISHED = 10  # characters: an error so close to the end is that of a text which goes on

_parsing = threading.Lock()  # so that the threads do not have an item each
_decoder = json.JSONDecoder()
_texts = Pool(32 << 20, "answered a huge part, such as a topic, while other nodes did so")  # of larger items
_exceeding = threading.Lock()  # of the one text that may have more than is left
_PATIENCE = 5.0  # seconds to wait for that


def parse(parts: Iterator[bytes], rows: Rows) -> Any:
    """The document of which these are the parts. If it is an object, each item of a list under a key of `rows` is
    replaced by what that makes of it, as soon as it is complete. Raises ValueError or RecursionError if it is not JSON,
    TooLarge, and what `rows` raises."""
    with closing(_Text(parts)) as text:
        document = _object(text, rows) if text.next_char() == "{" else text.value()
        if text.next_char():
            raise ValueError("extra data")
    return document


def _object(text: "_Text", rows: Rows) -> dict[str, Any]:
    members: dict[str, Any] = {}
    for _ in text.items("{", "}"):
        if text.next_char() != '"':
            raise ValueError("expected a key")
        key = text.value()
        text.skip(":")
        if text.next_char() == "[" and key in rows:
            members[key] = [text.value(rows[key]) for _ in text.items("[", "]")]
        else:
            members[key] = text.value()
        if len(members) > _MOST_KEYS:
            raise TooLarge(f"answered an object of more than {_MOST_KEYS} keys")
    return members


class _Text:
    """A text of which the read part is dropped."""

    def __init__(self, parts: Iterator[bytes]) -> None:
        self._parts = parts
        self._decode = codecs.getincrementaldecoder("utf-8")("surrogatepass").decode
        self._text = ""
        self._at = 0
        self._is_whole = False
        self._borrowed = 0  # of _texts
        self._exceeds = False

    def close(self) -> None:
        self._borrow(0)

    def next_char(self) -> str:
        """The next character that is not white space, which is skipped; "" at the end."""
        while True:
            match = _SPACE.match(self._text, self._at)
            assert match is not None  # it may be empty
            self._at = match.end()
            if self._at < len(self._text) or self._is_whole:
                return self._text[self._at : self._at + 1]
            self._read(1)

    def skip(self, expected: str) -> None:
        if self.next_char() != expected:
            raise ValueError(f"expected {expected}")
        self._at += 1

    def items(self, begin: str, end: str) -> Iterator[None]:
        """Goes through a list or an object, of which the caller takes each item."""
        self.skip(begin)
        if self.next_char() != end:
            yield
            while self.next_char() == ",":
                self._at += 1
                yield
        self.skip(end)

    def value(self, make: Callable[[Any], Any] = lambda value: value) -> Any:
        """What `make` makes of the next value."""
        self.next_char()
        while True:
            size = len(self._text) - self._at
            try:
                with _parsing if size > _SMALL else nullcontext():
                    value, end = _decoder.raw_decode(self._text, self._at)
                    if self._is_whole or self._text[end - 1] in '}]"' or self._text[end : end + 1] in _AFTER_NUMBER:
                        self._at = end
                        return make(value)
            except json.JSONDecodeError as error:
                goes_on = "Unterminated" in error.msg or error.pos >= len(self._text) - _UNFINISHED
                if self._is_whole or not goes_on:
                    raise
            self._read(size)

    def _read(self, size: int) -> None:
        """Read `size` bytes more, unless the text ends before."""
        self._text, self._at = self._text[self._at :], 0
        held = 2 * getsizeof(self._text)  # afterwards; it is up to four bytes per character
        if held > _LARGEST_ITEM:
            raise TooLarge(f"answered a part, such as a topic, of more than {_LARGEST_ITEM >> 21} MiB")
        self._borrow(held if held > _SMALL else 0)
        read = [self._text]
        while size > 0 and not self._is_whole:
            part = next(self._parts, b"")
            self._is_whole = not part
            read.append(self._decode(part, self._is_whole))
            size -= len(part)
        self._text = "".join(read)
        if len(self._text) > _SMALL:
            objects, lists, values = map(self._text.count, "{[,")
            if 200 * objects + 64 * lists + 48 * values > _LARGEST_OBJECTS:
                raise TooLarge("answered a part, such as a topic, with too many objects")

    def _borrow(self, size: int) -> None:
        if self._exceeds and size:
            return
        if self._exceeds:
            self._exceeds = False
            _exceeding.release()
        try:
            _texts.borrow(size - self._borrowed)
            self._borrowed = size
        except TooLarge:
            if not _exceeding.acquire(timeout=_PATIENCE):
                raise
            self._exceeds = True
