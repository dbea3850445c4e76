"""A collector that speaks HTTP/2 itself, so that it knows when each byte left and came.

It is what an adversarial collector could be: one connection to one device, on which it writes what it likes,
when it likes, and stamps what comes with the kernel's clock. There is no gRPC server and no event loop
between it and the wire.

It knows just enough of HTTP/2 (RFC 9113) and gRPC for one device: header blocks are never decoded, since
the first byte of a request tells which call it belongs to.
"""

import select
import socket
import struct
import time
from collections import defaultdict, deque
from dataclasses import dataclass
from typing import final

from demur_proto.v1 import collector_pb2

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM, ACK, END_HEADERS = 0x1, 0x1, 0x4
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
WINDOW = (1 << 31) - 1
FIRST_WINDOW = 65_535
LARGEST_FRAME = 16_384
OURS = b"observer"  #: what our pings hold, 8 bytes
STAMPED = getattr(socket, "SO_TIMESTAMPNS", 35)  #: the kernel says when a segment came
# ":status: 200" is entry 8 of HPACK's static table; the others are literals with names of their own.
_STARTED = b"\x88\x00\x0ccontent-type\x10application/grpc"
_ENDED = b"\x00\x0bgrpc-status\x010"

assert len(OURS) == 8


class Gone(Exception):
    """The device closed the connection."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A message of the device, or the end of one of its calls (`body` None)."""

    stream: int
    body: bytes | None
    first_ns: int  #: when its first byte came, clock on the wall
    last_ns: int  #: when its last byte came


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Pong:
    """The device answered our ping."""

    at_ns: int


@final
class Wire:
    """One connection with a device.

    Args:
        connection: accepted just now.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, STAMPED, 1)
        connection.settimeout(10.0)
        self.others: list[tuple[int, int]] = []  #: kind and length of frames that carry no message
        self._events: deque[Message | Pong] = deque()
        self._started: set[int] = set()
        self._partial: dict[int, tuple[bytearray, int]] = {}  # of messages, and when they began
        self._room: dict[int, int] = {}  # bytes that the device still takes, by stream
        self._taken: dict[int, int] = defaultdict(int)  # bytes that no room was given for again
        self._whole_room = FIRST_WINDOW
        self._first_room = FIRST_WINDOW
        self._queued: dict[int, bytearray] = defaultdict(bytearray)
        if self._read(len(PREFACE))[0] != PREFACE:
            raise Gone("this is no HTTP/2")
        connection.sendall(
            _frame(SETTINGS, 0, 0, struct.pack("!HI", 4, WINDOW))
            + _frame(WINDOW_UPDATE, 0, 0, struct.pack("!I", WINDOW - FIRST_WINDOW))
        )

    def next(self, until_s: float) -> Message | Pong | None:
        """The next event, or None once the monotonic clock shows `until_s`."""
        while not self._events:
            left = until_s - time.monotonic()
            if not select.select([self._socket], [], [], max(0.0, left))[0]:
                if left <= 0:
                    return None
                continue
            self._take()
        return self._events.popleft()

    def send(self, stream: int, *bodies: bytes, ping: bool = False, end: bool = False) -> int:
        """Write messages in one go; gives the time just before, clock on the wall.

        Args:
            stream: of which call.
            bodies: serialised messages.
            ping: put a ping right behind them.
            end: end the call.
        """
        head = b""
        if stream not in self._started:
            self._started.add(stream)
            head = _frame(HEADERS, END_HEADERS, stream, _STARTED)
        for body in bodies:
            self._queued[stream] += struct.pack("!BI", 0, len(body)) + body
        content = head + self._flushed(stream)
        if end:
            content += _frame(HEADERS, END_HEADERS | END_STREAM, stream, _ENDED)
        if ping:
            content += _frame(PING, 0, 0, OURS)
        at_ns = time.time_ns()
        self._socket.sendall(content)
        return at_ns

    def drain(self, stream: int) -> None:
        """Receive until everything queued for a call was written."""
        while self._queued[stream]:
            self._take()

    def _flushed(self, stream: int) -> bytes:
        """Frames of what is queued for a call, as far as the device has room."""
        queue, frames = self._queued[stream], b""
        while queue:
            room = self._room.setdefault(stream, self._first_room)
            size = min(len(queue), LARGEST_FRAME, room, self._whole_room)
            if size <= 0:
                break
            frames += _frame(DATA, 0, stream, bytes(queue[:size]))
            del queue[:size]
            self._room[stream] -= size
            self._whole_room -= size
        return frames

    def _take(self) -> None:
        """Receive one frame."""
        head, at_ns = self._read(9)
        length, kind = int.from_bytes(head[:3]), head[3]
        flags, stream = head[4], int.from_bytes(head[5:]) & WINDOW
        body, _ = self._read(length) if length else (b"", 0)
        end_ns = time.time_ns() if length > LARGEST_FRAME // 2 else at_ns
        if kind == DATA:
            self._take_data(stream, body, at_ns, end_ns)
        elif kind == SETTINGS and not flags & ACK:
            self._take_settings(body)
        elif kind == WINDOW_UPDATE:
            self._take_room(stream, int.from_bytes(body) & WINDOW)
        elif kind == PING and not flags & ACK:
            self._socket.sendall(_frame(PING, ACK, 0, body))
        elif kind == PING and body == OURS:
            self._events.append(Pong(at_ns=at_ns))
        elif kind in (HEADERS, RST_STREAM, GOAWAY):
            self.others.append((kind, length))
        if (kind in (DATA, HEADERS) and flags & END_STREAM) or kind == RST_STREAM:
            self._events.append(Message(stream=stream, body=None, first_ns=at_ns, last_ns=at_ns))

    def _take_data(self, stream: int, body: bytes, at_ns: int, end_ns: int) -> None:
        self._taken[stream] += len(body)
        if self._taken[stream] > WINDOW // 4:  # seldom: the device wakes up for it
            room = struct.pack("!I", self._taken.pop(stream))
            self._socket.sendall(
                _frame(WINDOW_UPDATE, 0, stream, room) + _frame(WINDOW_UPDATE, 0, 0, room)
            )
        gathered, first_ns = self._partial.pop(stream, (bytearray(), at_ns))
        gathered += body
        while len(gathered) >= 5:
            end = 5 + int.from_bytes(gathered[1:5])
            if len(gathered) < end:
                break
            whole = bytes(gathered[5:end])
            self._events.append(
                Message(stream=stream, body=whole, first_ns=first_ns, last_ns=end_ns)
            )
            del gathered[:end]
            first_ns = at_ns
        if gathered:
            self._partial[stream] = gathered, first_ns

    def _take_settings(self, body: bytes) -> None:
        for name, value in struct.iter_unpack("!HI", body):
            if name == 4:
                for stream in self._room:
                    self._room[stream] += value - self._first_room
                self._first_room = value
        self._socket.sendall(_frame(SETTINGS, ACK, 0, b""))

    def _take_room(self, stream: int, more: int) -> None:
        if stream:
            self._room[stream] = self._room.get(stream, self._first_room) + more
        else:
            self._whole_room += more
        for each in list(self._queued):
            if frames := self._flushed(each):
                self._socket.sendall(frames)

    def _read(self, count: int) -> tuple[bytes, int]:
        """So many bytes, and when the first of them came."""
        whole, stamp = b"", 0
        while len(whole) < count:
            part, beside, _, _ = self._socket.recvmsg(count - len(whole), 256)
            if not part:
                raise Gone("the device closed the connection")
            for level, kind, data in beside:
                if not stamp and (level, kind) == (socket.SOL_SOCKET, STAMPED):
                    seconds, rest = struct.unpack("qq", data[:16])
                    stamp = seconds * 10**9 + rest
            whole += part
        return whole, stamp or time.time_ns()


def is_visit(body: bytes) -> bool:
    """Whether a first message is that of a visit: its field 1 is a hello, elsewhere a number."""
    return body[:1] == b"\x0a"


def opened(definition: bytes) -> bytes:
    """A round to push."""
    message = collector_pb2.OpenedRound(definition=definition)
    return collector_pb2.VisitResponse(opened_round=message).SerializeToString()


def _frame(kind: int, flags: int, stream: int, body: bytes) -> bytes:
    return len(body).to_bytes(3) + struct.pack("!BBI", kind, flags, stream) + body
