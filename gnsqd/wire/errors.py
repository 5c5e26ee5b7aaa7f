"""Errors of the protocol."""

from gnsqd.errors import NSQError


class ClientError(NSQError):
    """A command is refused: an error frame `code text`, and the end of the connection if `fatal`. Frequent errors that
    are not the client's fault are `quiet` in the log."""

    def __init__(
        self, code: str, text: str | bytes, cause: Exception | None = None, *, fatal: bool = True, quiet: bool = False
    ) -> None:
        raw = text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape")
        self.data = code.encode() + b" " + raw
        self.cause = cause
        self.fatal = fatal
        self.quiet = quiet
        super().__init__(self.data.decode("utf-8", "backslashreplace"))


class Disconnected(NSQError):
    """The stream ended, or broke, where a command needed it."""
