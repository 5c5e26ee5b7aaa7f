"""One client's socket: waiting, receiving, sending, and the stream layers in between.

Receiving always goes through the hub first, so that every other client gets its turn after 64 KB; the watcher stays
armed from one wait to the next and disarms itself when it fires with nobody waiting. The read deadline costs a timer
that fires at most once per deadline: it checks whether the deadline has moved, and sleeps again.

Two greenlets share a connection, IOLoop (which alone receives) and messagePump; sends take turns. `shutdown` makes
both fail, perhaps after IOLoop has had what had arrived, and IOLoop then closes.
"""

import os
import socket
import struct
from contextlib import suppress
from functools import partial
from importlib import import_module
from math import inf
from time import monotonic, sleep
from typing import Any

from gevent import get_hub
from greenlet import getcurrent, greenlet

from gnsqd.hub.cooperative import Line, turn_in, yield_turn
from gnsqd.net.addresses import format_address
from gnsqd.net.plain import Endpoint
from gnsqd.net.stream import TLS, Layer, Stack, StreamError, TLSError
from gnsqd.shared.errors import reason_of

WINDOW = 50e-6  # seconds that the loop polls
SLOWEST_READER = 4096  # bytes in a second
_SLICE = 65536  # bytes wrapped before others get their turn: the slowest compression takes some ms for them
_RESET = struct.pack("ii", 1, 0)  # for SO_LINGER
_new_endpoint: Any = Endpoint
with suppress(ImportError):  # where nothing is compiled
    _new_endpoint = import_module("gnsqd.net.native").NativeEndpoint
HAS_NATIVE_SOCKETS = _new_endpoint is not Endpoint
_offer_processor: Any = getattr(os, "sched_yield", partial(sleep, 0))  # not every system has it


class Polling:
    """Polls for input a little longer before the loop of a hub sleeps; `looking` is True while it does.

    Between an answer and the client's next command some ten microseconds pass, and to be put to sleep and woken up
    takes as long again. So while input comes quickly, by the gap between the last two, the loop looks again instead of
    sleeping, for WINDOW at most, and offers the processor to others between two looks.
    """

    def __init__(self) -> None:
        self._idle: Any = get_hub().loop.idle()  # called as long as there is nothing else to do
        self._last = 0.0
        self._window = WINDOW  # compiled, a number of C
        self.looking = False

    def note(self) -> None:
        """Notes that there is input."""
        now = monotonic()
        if not self.looking and now - self._last < self._window:
            self.looking = True
            self._idle.start(self._look)
        self._last = now

    def _look(self) -> None:
        _offer_processor()
        if monotonic() - self._last > self._window:
            self.looking = False
            self._idle.stop()


def shared_polling() -> Polling:
    """Returns the Polling of this thread's hub."""
    hub: Any = get_hub()
    if not hasattr(hub, "polling"):
        hub.polling = Polling()
    polling: Polling = hub.polling
    return polling


class Receiver:
    """Takes what a connection receives: compiled, a subclass is called from C to C. This class keeps the first data."""

    def receive_data(self, data: bytes) -> bool:
        """Returns False if `Connection.feed` is to return. Must not yield."""
        self.data = data
        return False


class Connection:
    """Owns the socket. `read_deadline` is monotonic seconds, `write_timeout` seconds; 0 stands for none. If
    `resetting`, `close` resets the connection, as the client cannot notice otherwise that something is missing."""

    def __init__(self, sock: socket.socket, remote_address: str) -> None:
        self.remote_address = remote_address
        self.read_deadline = 0.0
        self.write_timeout = 0.0
        self.resetting = False
        self.paused = False  # input has to wait for the end of a commit
        self._layer: Layer | None = None
        self._unread = self._unsent = b""
        self._socket = sock
        self._hub = get_hub()
        self._polling = shared_polling()
        self._endpoint = _new_endpoint(sock, self)
        self._reader: greenlet | None = None
        self._timer: Any = None
        self._timer_at = 0.0
        self._receiver: Receiver | None = None  # of `feed`, while it waits
        self._closed = False  # on this side
        self._last = 0.0  # when what had arrived by then is dropped (monotonic)
        self._senders: Line = []  # greenlets that wait for the socket, or for their turn to send
        self._write_error = ""

    def is_receiving(self) -> bool:
        """Returns True while `feed`, `receive` or `handshake` waits for the client."""
        return self._reader is not None

    def pause(self) -> bool:
        """Stops giving input to the receiver, until `paused` is reset: if there is input before, `feed` returns True.
        Returns False, without effect, unless the hub has called the receiver. Never yields."""
        self.paused = self._reader is not None
        return self.paused

    def end_feed(self) -> None:
        """Lets `feed` return True, if it waits. Never yields."""
        reader: Any = self._reader
        if reader is not None:
            self._reader = None
            self._hub.loop.run_callback(reader.switch, True)

    def feed(self, receiver: Receiver) -> bool:
        """Gives `receiver` what the client sends, unwrapped, until it returns False; then returns True, or False at the
        end of the stream. What comes while `feed` waits is given to it on the hub.

        TimeoutError past the deadline, OSError, also after `shutdown`, StreamError, also at an end inside a layer's
        stream, and what `receiver` raises. Yields."""
        while True:
            layer = self._layer
            if self._unread:
                data, self._unread = self._unread, b""
            elif layer is not None and layer.pending:
                yield_turn()
                self.check_open()
                data = self._decode(layer, b"")
            else:
                more = False if layer is not None and layer.ended else self._wait(receiver)
                if more is not None:
                    if not more and layer is not None and layer.cut_off:
                        raise StreamError(layer.cut_off)
                    return more
                continue
            if data and not receiver.receive_data(data):
                return True

    def receive(self) -> bytes:
        """Returns what the client sent, unwrapped; b"" at its end. Errors as `feed`. Yields."""
        receiver = Receiver()
        return receiver.data if self.feed(receiver) else b""

    def _decode(self, layer: Layer, data: bytes) -> bytes:
        try:
            return layer.decode(data)
        except StreamError:
            if not self._senders:
                self._send_alert(layer.encode(b""))
            raise

    def _wait(self, receiver: Receiver) -> bool | None:
        """Waits until `receiver` returns False, or the layer has to be looked at again, which gives None; errors, and
        other results as `feed`."""
        self._endpoint.watch()
        self._receiver = receiver
        self._reader = getcurrent()
        self._watch_deadline()
        try:
            more: bool | None = self._hub.switch()
        finally:
            self._reader = self._receiver = None
        return more

    def __call__(self) -> None:
        """Takes the input that has arrived. The loop calls the object itself: compiled, a bound method costs more."""
        self._polling.note()
        if self._reader is None:
            self._endpoint.stop()
        elif self.paused:
            self.end_feed()
        else:
            self._take_input(False)

    def _take_input(self, expired: bool) -> None:
        """Lets the receiver have what has arrived, and wakes the reader unless more of it can be taken here."""
        reader: Any = self._reader
        receiver: Any = self._receiver
        layer = self._layer
        more: bool | None
        try:
            if self._closed:
                self.check_open()
            try:
                data = self._endpoint.receive()
            except OSError as error:
                raise (self._ended() if self._closed else self._failed("read", error)) from error
            if data is None:
                # After a stall the deadline may be found out before what came in time.
                if expired:
                    raise TimeoutError(f"{self._describe('read')}: i/o timeout")
                return
            more = bool(data)
            if data:
                if layer is not None:
                    data = self._decode(layer, data)
                if not data or receiver.receive_data(data):
                    if layer is None or not (layer.pending or layer.ended):
                        self._watch_deadline()
                        return
                    more = None
            elif self._closed:
                raise self._ended()
        except Exception as error:
            self._reader = None
            reader.throw(error)
        else:
            self._reader = None
            reader.switch(more)

    def check_open(self) -> None:
        """Raises OSError after `shutdown`, once the time for what had arrived is over."""
        if self._closed and monotonic() >= self._last:
            raise self._ended()

    def _ended(self) -> OSError:
        self.shutdown()  # nothing that follows from the end is to reach the client
        return OSError(f"{self._describe('read')}: use of closed network connection")

    def _watch_deadline(self) -> None:
        if self.read_deadline and (self._timer is None or self.read_deadline < self._timer_at):
            self._start_timer()

    def _start_timer(self) -> None:
        self._stop_timer()
        self._timer_at = self.read_deadline
        self._timer = self._hub.loop.timer(max(self.read_deadline - monotonic(), 0.0))
        self._timer.start(self._on_timer)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.close()
            self._timer = None

    def _on_timer(self) -> None:
        self._stop_timer()
        if self._reader is None or not self.read_deadline:
            return
        if self.read_deadline > monotonic():
            self._start_timer()
        elif self.paused:
            self.end_feed()
        else:
            self._take_input(True)

    def is_sending(self) -> bool:
        """Returns True while somebody waits for the socket to accept more, or has to."""
        return bool(self._senders or self._unsent or self._write_error)

    def send_at_once(self, frames: list[bytes]) -> bool:
        """Wraps `frames`, and sends what the socket accepts now; False if that is not all: the rest comes before what
        `send` is called with next, or that raises the error. Nobody must be sending. Never yields."""
        try:
            if self._layer is not None:
                frames = [self._layer.encode(frames[0] if len(frames) == 1 else b"".join(frames))]
            self._unsent = self._endpoint.send(frames)
        except (OSError, StreamError) as error:
            # The error itself would be a cycle, with its traceback.
            self._write_error = str(self._failed("write", error) if isinstance(error, OSError) else error)
        return not (self._unsent or self._write_error)

    def send(self, frames: list[bytes]) -> None:
        """Wraps and sends all `frames`; raises TimeoutError if the client takes nothing for as long as the write
        timeout, or after that time less than SLOWEST_READER; raises OSError, StreamError. May yield."""
        data = b""
        if self.is_sending() or (self._layer is not None and sum(map(len, frames)) > _SLICE):
            data = b"".join(frames)
        elif self.send_at_once(frames):  # as nearly always
            return
        with turn_in(self._senders):
            self._send_slowly(data)

    def _send_slowly(self, data: bytes) -> None:
        """Wraps and sends `data` after what was sent at once; errors as `send`. Yields."""
        if self._write_error:
            raise OSError(self._write_error)
        unsent, self._unsent = self._unsent, b""
        if unsent:
            self._send(unsent)
        layer = self._layer
        if layer is None:
            self._send(data)
            return
        for start in range(0, max(len(data), 1), _SLICE):
            if start:
                yield_turn()
            self._send(layer.encode(data[start : start + _SLICE]))

    def _send(self, data: bytes) -> None:
        """Sends bytes that are wrapped already; errors as `send`. May yield."""
        rest = memoryview(data)
        timeout = self.write_timeout
        end = monotonic() + timeout + len(rest) / SLOWEST_READER if timeout else inf
        while rest:
            try:
                rest = rest[self._socket.send(rest) :]
            except BlockingIOError:
                from gevent.socket import wait_write  # imported late, as few clients are this slow

                timed_out = TimeoutError(f"{self._describe('write')}: i/o timeout")
                if monotonic() > end:
                    raise timed_out from None
                wait_write(self._socket.fileno(), timeout or None, timed_out)
                # The socket has woken this greenlet in the middle of a turn, whose publishes may not be written yet.
                yield_turn()
            except OSError as error:
                raise self._failed("write", error) from error

    def handshake(self, layer: TLS, received: bytes) -> None:
        """Lets `layer` shake hands, beginning with what was `received` already, and puts it on; errors as `receive`,
        and all of it within the read deadline. On failure nothing but TLS's own alert is sent. The caller must not
        have yielded since it sent anything. Yields."""
        try:
            # A client takes what follows the answer to IDENTIFY for TLS: a heartbeat that waits has to go through it.
            with turn_in(self._senders, ahead=True):
                self._shake_hands(layer, received)
        except TLSError as error:
            self._send_alert(error.alert)
            raise

    def _shake_hands(self, layer: TLS, received: bytes) -> None:
        reply = layer.handshake(received)
        while True:
            if reply:
                self._send(reply)
            if layer.established:
                break
            data = self.receive()
            if not data:
                raise OSError("EOF")
            reply = layer.handshake(data)
        self.push(layer)

    def _send_alert(self, alert: bytes) -> None:
        """Sends TLS's last word, if there is one and somebody to take it: nobody waits for that."""
        if alert:
            with suppress(OSError):
                self._socket.send(alert)

    def push(self, layer: Layer, received: bytes = b"") -> None:
        """Lets everything go through `layer` from now on, beginning with what was `received` already."""
        if received:
            self._unread = layer.decode(received)
        self._layer = layer if self._layer is None else Stack(self._layer, layer)

    def _failed(self, what: str, error: OSError) -> OSError:
        """Returns `error` of the socket, as Go words it."""
        return OSError(f"{self._describe(what)}: {what}: {reason_of(error)}")

    def _describe(self, what: str) -> str:
        network = "unix" if self._socket.family == socket.AF_UNIX else "tcp"
        try:
            local_address = format_address(self._socket.getsockname())
        except OSError:  # macOS reports this for a client that is gone
            local_address = "@"
        return f"{what} {network} {local_address}->{self.remote_address}"

    def shutdown(self, seconds: float = 0.0) -> None:
        """Ends both directions; whoever waits on this connection notices. For that many `seconds` at most, `feed` still
        takes what has arrived, and answers to it are sent unless the client is slow to take what it is sent."""
        self._closed = True
        self._last = monotonic() + seconds
        with suppress(OSError):  # the client was faster
            self._socket.shutdown(socket.SHUT_RD if seconds and not self.is_sending() else socket.SHUT_RDWR)

    def close(self) -> None:
        self._stop_timer()
        if self.resetting:
            with suppress(OSError):
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self._endpoint.close()
