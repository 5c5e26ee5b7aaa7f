"""Asking other daemons over HTTP: the standard library's client on gevent's sockets."""

import http.client
from contextlib import closing

from gevent import Timeout

from gnsqd.cluster.dial import dial, join_host_port, reason
from gnsqd.errors import NSQError
from gnsqd.gotext import quote

MAX_BODY_SIZE = 8 * 1024 * 1024  # of an answer

_ACCEPT = "application/vnd.nsq; version=1.0"
_SHOWN = 200  # bytes of an answer that is an error


class HTTPClientError(NSQError):
    """No answer, or none with status 200."""


class HTTPClient:
    """`connect_timeout` and `request_timeout` are ns, 0 is no limit."""

    def __init__(self, connect_timeout: int, request_timeout: int) -> None:
        self._connect_timeout = connect_timeout / 1e9 or None
        self._request_timeout = request_timeout / 1e9 or None

    def get(self, host: str, port: int, target: str) -> bytes:
        """The body of the answer; HTTPClientError. Yields."""
        body = None
        try:
            connection = _Connection(host, port, self._connect_timeout)
            with Timeout(self._request_timeout, False), closing(connection):
                connection.request("GET", target, headers={"Accept": _ACCEPT})
                response = connection.getresponse()
                body = response.read(MAX_BODY_SIZE + 1)
            if body is None:
                raise TimeoutError
        except (OSError, http.client.HTTPException, ValueError) as error:
            url = f"http://{join_host_port(host, port)}{target}"
            raise HTTPClientError(f"Get {quote(url)}: {reason(error)}") from error
        if len(body) > MAX_BODY_SIZE:
            raise HTTPClientError(f"response body size is greater than limit ({MAX_BODY_SIZE})")
        if response.status != 200:
            raise HTTPClientError(f"got response {response.status} {quote(response.reason)} {quote(body[:_SHOWN])}")
        return body


class _Connection(http.client.HTTPConnection):
    def __init__(self, host: str, port: int, connect_timeout: float | None) -> None:
        super().__init__(host, port)
        self._connect_timeout = connect_timeout

    def connect(self) -> None:
        self.sock = dial(self.host, str(self.port), self._connect_timeout)
