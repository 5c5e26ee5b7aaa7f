"""A request to the page, and the answers to it, as the views and the JSON API see them."""

from collections.abc import Mapping
from functools import cached_property
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, quote

from gnsqd.web import http11
from gnsqd.web.routes import Content, HTTPError

__all__ = ["HTML", "TEXT", "Content", "HTTPError", "PageRequest", "Redirect", "Response"]

HTML = "text/html; charset=utf-8"
TEXT = "text/plain; charset=utf-8"


class PageRequest:
    """A request below the path `base`, which its own path and target are without."""

    def __init__(self, head: http11.Request, base: str = "") -> None:
        self.head = head
        self.method = head.method
        self.segments = tuple(part for part in head.path.removeprefix(base).split("/") if part)
        self.path = "/" + "/".join(quote(part, safe="") for part in self.segments)
        self.target = f"{self.path}?{head.query}" if head.query else self.path

    @property
    def names(self) -> list[str]:
        """The names of a topic and perhaps a channel, or of a node: in the path, or in the query if a path cannot."""
        if self.segments[1:]:
            return list(self.segments[1:])
        given = [self.query.get(key, "") for key in (("node",) if "nodes" in self.segments else ("topic", "channel"))]
        return [name for name in given if name] if given[0] else []

    @property
    def changes(self) -> bool:
        return self.method not in ("GET", "HEAD")

    @property
    def is_api(self) -> bool:
        return self.segments[:1] == ("api",)

    @property
    def is_live(self) -> bool:
        """True if the live part of a page is to be sent again and again, as an EventSource asks."""
        return self.method == "GET" and "text/event-stream" in (self.header("accept") or "")

    def header(self, name: str) -> str | None:
        value = self.head.headers.get(name.encode())
        return None if value is None else value.decode("latin-1")

    def cookie(self, name: str) -> str:
        pairs = (part.strip().partition("=") for part in (self.header("cookie") or "").split(";"))
        return next((value for key, _, value in pairs if key == name), "")

    @cached_property
    def query(self) -> dict[str, str]:
        return dict(parse_qsl(self.head.query, keep_blank_values=True))

    @cached_property
    def form(self) -> dict[str, str]:
        """Returns the fields of a form; raises HTTPError."""
        try:
            return dict(parse_qsl(self.head.body.decode("ascii"), keep_blank_values=True, max_num_fields=50))
        except ValueError:
            raise HTTPError(400, "this is not a form") from None


class Redirect(NamedTuple):
    """Leads to a page at a path and query, without the base path, and sets a cookie: name, value and seconds."""

    to: str
    cookie: tuple[str, str, int] | None = None


# What handlers return besides pages; a dict is encoded as JSON.
Response = Content | Redirect | Mapping[str, Any]
