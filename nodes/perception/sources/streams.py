"""Videos and streams by PyAV: files, RTSP, HTTP (MJPEG), UDP (MPEG-TS).

FFmpeg holds a frame back until the next one arrives, and one more for each decoding thread. The
options below take both away where the protocol allows it: measured from the sender's array to ours,
640 x 480 at 30 frames/s, H.264 without B-frames: UDP 4 ms (103 by defaults), RTSP 40 ms (137).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import av
import av.error
import numpy as np

from nodes.perception.sources.address import Address, Kind
from nodes.perception.sources.feed import (
    MOST_PIXELS,
    BadPicture,
    CameraLost,
    Taken,
    check_size,
)
from nodes.perception.sources.pictures import pixels_of_jpeg
from nodes.perception.sources.upright import QUARTERS, turn_of, upright
from swarm.errors import InvalidArgument

OPEN_WITHIN, READ_WITHIN = 5.0, 3.0  # seconds
_LIVE = {"fflags": "nobuffer", "analyzeduration": "0", "probesize": "32"}
# An MPEG-TS packet is one frame where the sender writes its length (`omit_video_pes_length=0`):
# without the parser, nothing waits for the beginning of the next one.
_UDP = _LIVE | {"fflags": "nobuffer+noparse+nofillin"}
# The queue of packets before the decoder, in 188 bytes: 4 MB; a torn one is no reason to end.
_UDP_QUERY = "fifo_size=21845&overrun_nonfatal=1"
_RTSP = {"fflags": "nobuffer", "rtsp_transport": "tcp", "max_delay": "0"}
_RTSP |= {"reorder_queue_size": "0", "analyzeduration": "0", "probesize": "4096"}
OPTIONS = {Kind.UDP: _UDP, Kind.RTSP: _RTSP, Kind.HTTP: _LIVE, Kind.FILE: {}}


class StreamFeed:
    """A `Feed`. A file plays at its own pace, unless `waits` says that its consumer sets the pace.

    Raises `CameraLost` where the stream cannot be opened now, `InvalidArgument` for a file that
    is no video.
    """

    def __init__(self, address: Address, waits: bool = False) -> None:
        self._address = address
        self._is_file = address.kind is Kind.FILE
        self._paced = self._is_file and not waits
        self._container = _open(address)
        self._stream = self._container.streams.video[0]
        context = self._stream.codec_context
        if not self._is_file:
            context.thread_type = "NONE"
            context.thread_count = 1
            context.flags |= av.codec.context.Flags.low_delay
        context.options = {"max_pixels": str(MOST_PIXELS)}
        # A file says how its pictures lie beside its packets, which FFmpeg tells of its own frames.
        self._is_jpeg = context.name == "mjpeg" and not self._is_file
        self._aspect: Fraction | None = self._stream.sample_aspect_ratio
        self._first_aspect: Fraction | None = None  # of the codec
        self._packets: Iterator[Any] = self._container.demux(self._stream)
        self._decoded: deque[Taken] = deque()
        self._began: tuple[float, float] | None = None  # the clock's and the file's time

    def read(self) -> Taken | None:
        while not self._decoded:
            packet = self._packet()
            if packet is None or (packet.size == 0 and self._is_jpeg):
                if not self._is_file:
                    raise CameraLost("the stream has ended")
                return None
            self._take(packet)
        taken = self._decoded.popleft()
        return self._at_its_moment(taken) if self._paced else taken

    def close(self) -> None:
        self._decoded.clear()
        self._container.close()

    def _packet(self) -> Any:
        """The next packet of the stream, None at its end."""
        try:
            return next(self._packets, None)
        except av.error.InvalidDataError as error:
            self._packets = self._container.demux(self._stream)  # an error has ended the last one
            raise BadPicture(f"the stream is torn: {error.strerror}") from None
        except (av.error.FFmpegError, OSError) as error:
            if self._is_file:
                return None
            if isinstance(error, av.error.ExitError):
                raise CameraLost(f"no packet for {READ_WITHIN:g} s") from None
            raise CameraLost(f"the stream stopped: {error.strerror or error}") from None

    def _take(self, packet: Any) -> None:
        captured = time.monotonic()
        shown = float(packet.pts * packet.time_base) if packet.pts is not None else 0.0
        if self._is_jpeg:
            data = bytes(packet)
            self._decoded.append(
                Taken(lambda: pixels_of_jpeg(data), shown if self._paced else captured)
            )
            return
        began = time.perf_counter()
        try:
            frames = packet.decode()
        except (av.error.FFmpegError, ValueError) as error:
            raise BadPicture(f"a packet is no picture: {error}") from None
        spent = time.perf_counter() - began
        for frame in frames:
            check_size(frame.width, frame.height)
            moment = frame.time if self._paced and frame.time is not None else captured
            self._decoded.append(Taken(_Pixels(frame, self._aspect_now()), moment, spent))

    def _aspect_now(self) -> Fraction | None:
        """A pixel's width by its height: the container's word, until the codec changes its own."""
        aspect: Fraction | None = self._stream.codec_context.sample_aspect_ratio
        if self._first_aspect is None:
            self._first_aspect = aspect
        return self._aspect if self._aspect and aspect == self._first_aspect else aspect

    def _at_its_moment(self, taken: Taken) -> Taken:
        """Wait until a file's picture is due: it is captured then."""
        now = time.monotonic()
        if self._began is None:
            self._began = (now, taken.captured)
        began, first = self._began
        due = began + taken.captured - first
        if not now - 1.0 < due < now + 10.0:  # the file's clock jumps
            self._began, due = (now, taken.captured), now
        time.sleep(max(0.0, due - now))
        return Taken(taken.pixels, max(due, now), taken.spent)


class _Pixels:
    """Converts a decoded frame."""

    def __init__(self, frame: Any, aspect: Fraction | None) -> None:
        self._frame = frame
        self._aspect = aspect

    def __call__(self) -> np.ndarray:
        pixels: np.ndarray = self._frame.to_ndarray(format="rgb24")
        matrix = self._frame.side_data.get("DISPLAYMATRIX")
        return upright(pixels, QUARTERS if matrix is None else turn_of(bytes(matrix)), self._aspect)


def _open(address: Address) -> Any:
    where, options = address.where, dict(OPTIONS[address.kind])
    if address.kind is Kind.UDP:
        where = where.replace("udp://@", "udp://")
        where += ("&" if "?" in where else "?") + _UDP_QUERY
    elif address.kind is Kind.RTSP and where.endswith("?listen"):
        where = where.removesuffix("?listen")
        options |= {"rtsp_flags": "listen", "listen_timeout": str(int(OPEN_WITHIN))}
    try:
        container = av.open(where, options=options, timeout=(OPEN_WITHIN, READ_WITHIN))
    except (av.error.FFmpegError, OSError, ValueError) as error:
        why = f"{getattr(error, 'strerror', None) or error}"
        if address.kind is Kind.FILE:
            raise InvalidArgument(f"{address.shown} is no video that FFmpeg reads: {why}") from None
        if isinstance(error, av.error.ExitError):
            raise CameraLost(f"no stream within {OPEN_WITHIN:g} s") from None
        raise CameraLost(f"it cannot be opened: {why}") from None
    if not container.streams.video:
        container.close()
        if address.kind is Kind.FILE:
            raise InvalidArgument(f"{address.shown} has no pictures")
        raise CameraLost("the stream has no pictures")
    return container
