"""The HTTP API of nsqd as gnsqadmin uses it: where a node is, one question to it, one question to many at once.

Every trouble with a node is a `NodeError`, whose text names the node and says what was wrong. A node is held to one
deadline for the whole answer, name lookup included: each is asked on a daemon thread that is given up when its time is
over, so a peer that hangs or drips bytes delays neither the command nor Ctrl-C.
"""

import http.client
import ipaddress
import json
import re
import socket
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from nsqadmin_cli.models import ModelError, NodeStats

T = TypeVar("T")

_LARGEST_ANSWER = 64 * 1024 * 1024  # bytes; some hundred thousand channels
_FORMS = "expected host:port, [ipv6]:port or http://host:port"


@dataclass(frozen=True, slots=True)
class Address:
    """Where the HTTP API of a node listens; `str()` is `host:port`, with IPv6 in brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> "Address":
        """Read `host:port`, `[ipv6]:port` or either after `http://`; ValueError with a text for people."""
        if text.lower().startswith("https://"):
            raise ValueError(f"{text!r}: https is not supported, {_FORMS}")
        bare = text.removesuffix("/")[7:] if text.lower().startswith("http://") else text
        match = re.fullmatch(r"(?:\[([^\[\]]+)\]|([^\x00-\x20\s:/?#@\[\]]+)):([0-9]{1,5})", bare)
        if not match:
            raise ValueError(f"{text!r}: {_FORMS}")
        ipv6, name, port = match.groups()
        if not 0 < int(port) < 65536:
            raise ValueError(f"{text!r}: port {port} is not in 1..65535")
        try:
            host = str(ipaddress.IPv6Address(ipv6)) if ipv6 else name.encode("idna").decode("ascii")
        except (ipaddress.AddressValueError, UnicodeError):
            raise ValueError(f"{text!r}: {ipv6 or name!r} is not a valid host") from None
        return cls(host, int(port))


class NodeError(Exception):
    """A node could not be asked or did not answer as an nsqd does; `reason` says why, without the address."""

    def __init__(self, address: Address, reason: str) -> None:
        super().__init__(f"nsqd at {address}: {reason}")
        self.address = address
        self.reason = reason


def fetch_stats(address: Address, timeout: float, *, topic: str = "", channel: str = "") -> NodeStats:
    """Topics and channels of one node, all or those of the given names (an empty name is no filter).

    Raises NodeError; `timeout` is in seconds.
    """
    query = {"format": "json", "include_clients": "false", "include_mem": "false", "topic": topic, "channel": channel}
    # Names from a command line may be any bytes, which Python carries as surrogates.
    body = _get(address, f"/stats?{urllib.parse.urlencode(query, errors='surrogateescape')}", timeout)
    try:
        return NodeStats.from_json(json.loads(body))
    except ModelError as error:
        raise NodeError(address, f"answered JSON that is not an nsqd's: {error}") from None
    except (ValueError, RecursionError):
        raise NodeError(address, "answered something that is not JSON; is this the HTTP address of an nsqd?") from None


def ask_all(
    addresses: Iterable[Address], timeout: float, question: Callable[[Address, float], T]
) -> dict[Address, T | NodeError]:
    """`question(address, timeout)` for every node at once: what it returned or the NodeError it raised, in order.

    A node named twice is asked once, or its counts would double.

    One that takes more than `timeout` seconds counts as a NodeError; its thread is left to itself.
    """
    deadline = time.monotonic() + timeout
    futures: dict[Address, Future[T]] = {address: Future() for address in addresses}
    for address, future in futures.items():
        threading.Thread(target=_answer, args=(future, question, address, timeout), daemon=True).start()
    answers: dict[Address, T | NodeError] = {}
    for address, future in futures.items():
        try:
            answers[address] = future.result(max(0.0, deadline - time.monotonic()))
        except NodeError as error:
            answers[address] = error
        except TimeoutError:
            answers[address] = _timed_out(address, timeout)
    return answers


def _answer(future: Future[T], question: Callable[[Address, float], T], address: Address, timeout: float) -> None:
    try:
        future.set_result(question(address, timeout))
    except BaseException as error:
        future.set_exception(error)


def _get(address: Address, path: str, timeout: float) -> bytes:
    """The body of a 200 answer; NodeError for everything else that can happen."""
    connection = http.client.HTTPConnection(address.host, address.port, timeout=timeout)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        body = response.read(_LARGEST_ANSWER + 1)
        if len(body) > _LARGEST_ANSWER:
            raise NodeError(address, f"answered more than {_LARGEST_ANSWER >> 20} MiB")
        if response.length:
            raise NodeError(address, "closed the connection in the middle of its answer")
        if response.status != 200:
            raise NodeError(address, f"answered HTTP {response.status}{_explanation(response, body)}")
        return body
    except TimeoutError:
        raise _timed_out(address, timeout) from None
    except socket.gaierror as error:
        raise NodeError(address, f"cannot resolve the host name: {error.strerror}") from None
    except (ConnectionResetError, BrokenPipeError, http.client.BadStatusLine):
        # nsqd does this to HTTP on its TCP port, often with a reset that swallows its E_BAD_PROTOCOL.
        raise NodeError(address, "does not answer in HTTP; is this the TCP address of an nsqd?") from None
    except http.client.HTTPException as error:
        raise NodeError(address, f"does not answer in proper HTTP ({type(error).__name__})") from None
    except OSError as error:
        raise NodeError(address, (error.strerror or str(error)).lower()) from None
    finally:
        connection.close()


def _timed_out(address: Address, timeout: float) -> NodeError:
    return NodeError(address, f"no complete answer within {timeout:g} s")


def _explanation(response: http.client.HTTPResponse, body: bytes) -> str:
    """What an error answer says about itself: nsqd's message, else a short plain text, else the status text."""
    text = response.reason
    try:
        document: Any = json.loads(body)
        text = document["message"]
    except (ValueError, RecursionError, LookupError, TypeError):
        if response.headers.get_content_type() == "text/plain":
            text = body.decode("utf-8", "replace").strip()
    return f" ({printable(str(text))[:100]})" if text else ""


def printable(text: str) -> str:
    """`text` on one line, with everything that a terminal might obey shown as its escape sequence."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)
