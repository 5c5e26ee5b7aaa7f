"""A request to the page and its response, as the views and the JSON API see them."""

import json
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from urllib.parse import parse_qsl, unquote

HTML = "text/html; charset=utf-8"
JSON = "application/json; charset=utf-8"
TEXT = "text/plain; charset=utf-8"


@dataclass
class Request:
    """`target` is path and query as they were sent; `body` is filled once it was read."""

    method: str
    target: str
    headers: Mapping[bytes, bytes]  # with names in lower case
    remote_address: str = ""
    body: bytes = b""
    is_live: bool = False  # for a part of a page that is sent again and again

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    @property
    def segments(self) -> tuple[str, ...]:
        """The parts of the path, decoded; of `/` none."""
        return tuple(unquote(part) for part in self.path.split("/")[1:] if part)

    def header(self, name: str) -> str | None:
        value = self.headers.get(name.encode())
        return None if value is None else value.decode("latin-1")

    @cached_property
    def query(self) -> dict[str, str]:
        return dict(parse_qsl(self.target.partition("?")[2], keep_blank_values=True))

    @cached_property
    def form(self) -> dict[str, str]:
        """The fields of a form; HTTPError."""
        try:
            fields = parse_qsl(self.body.decode("ascii"), keep_blank_values=True, max_num_fields=50)
        except ValueError:
            raise HTTPError(400, "this is not a form") from None
        return dict(fields)

    def cookie(self, name: str) -> str:
        for part in (self.header("cookie") or "").split(";"):
            key, _, value = part.strip().partition("=")
            if key == name:
                return value
        return ""

    @property
    def is_api(self) -> bool:
        return self.segments[:1] == ("api",)

    @property
    def changes(self) -> bool:
        return self.method not in ("GET", "HEAD")


@dataclass
class Response:
    """`body` is all of it, or parts that are sent as they come."""

    status: int
    body: bytes | Generator[bytes] = b""
    content_type: str = HTML
    headers: list[tuple[str, str]] = field(default_factory=list)

    @classmethod
    def json(cls, document: Any, status: int = 200, headers: list[tuple[str, str]] | None = None) -> "Response":
        return cls(status, json.dumps(document).encode(), JSON, headers or [])

    @classmethod
    def redirect(cls, to: str, headers: list[tuple[str, str]] | None = None) -> "Response":
        return cls(303, b"", TEXT, [("Location", to), *(headers or [])])


class HTTPError(Exception):
    """Ends a request; `str()` is the text to show, and for the JSON API NSQ's code."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
