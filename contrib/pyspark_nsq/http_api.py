"""HTTP requests to nsqds and nsqlookupds, by the standard library: a connection for each."""

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gnsqd.shared.client import reason
from pyspark_nsq.client import name_of, tls_of
from pyspark_nsq.errors import DiscoveryError, NsqSourceError
from pyspark_nsq.option_values import Address
from pyspark_nsq.options import Settings

_LARGEST = 64 << 20  # bytes of an answer
_HINTS = {
    401: "'nsq.nsqd.http.token' must have one of its tokens",
    403: "'nsq.nsqd.http.tls' asks by HTTPS; 'nsq.nsqd.http.token' must have the role full for ranges",
}


def refusal(status: int, text: str) -> NsqSourceError:
    """Returns the error for a request that is refused: with the options that nsqd may require, else a DiscoveryError,
    which alone is tried again."""
    return NsqSourceError(f"{text} (option {_HINTS[status]})") if status in _HINTS else DiscoveryError(text)


@contextmanager
def request(
    who: str, address: Address, path: str, timeout: float, settings: Settings | None = None, method: str = "GET"
) -> Iterator[http.client.HTTPResponse]:
    """Lends an answer. Raises DiscoveryError if there is none, or it breaks off. Asks an nsqd as `settings` require."""
    connection, headers, hint = http.client.HTTPConnection(*address, timeout=timeout), {}, ""
    if settings is not None:
        if settings.nsqd_http_tls:
            connection = http.client.HTTPSConnection(*address, timeout=timeout, context=tls_of(settings))
        if settings.nsqd_http_token:
            headers = {"Authorization": f"Bearer {settings.nsqd_http_token}"}
        if settings.nsqd_tcp_addresses and not settings.nsqd_http_addresses:
            hint = " (from its TCP port; option 'nsq.nsqd.http.addresses' specifies another one)"
    try:
        connection.request(method, path, headers=headers)
        yield connection.getresponse()
    except (OSError, UnicodeError, http.client.HTTPException) as error:
        what = "does not speak HTTP" if isinstance(error, http.client.HTTPException) else reason(error)
        what, hint = (repr(error), "") if isinstance(error, http.client.IncompleteRead) else (what, hint)
        raise DiscoveryError(f"{who} does not answer at HTTP address {name_of(address)}: {what}{hint}") from None
    finally:
        connection.close()


def ask(
    who: str, address: Address, path: str, timeout: float, settings: Settings | None = None, method: str = "GET"
) -> tuple[int, dict[str, Any]]:
    """Returns the status and the answer to a request, as `parse` does."""
    with request(who, address, path, timeout, settings, method) as response:
        text = response.read(_LARGEST)
        if response.length:  # `read` with a size returns what there is if the answer breaks off
            raise http.client.IncompleteRead(text, response.length)
        return response.status, parse(text)


def parse(text: bytes) -> dict[str, Any]:
    """Returns the object of an answer's JSON; the begin of any other text as `message`."""
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError):
        answer = None
    return answer if isinstance(answer, dict) else {"message": text[:100].decode("utf-8", "replace")}
