"""Videos and streams by PyAV: files, RTSP, UDP (MPEG-TS), and of HTTP MJPEG, playlists and files.

FFmpeg holds a frame back until the next one arrives, and one more for each decoding thread. The
options below take both away where the protocol allows it: measured from the sender's array to ours,
640 x 480 at 30 frames/s, H.264 without B-frames: UDP 4 ms (103 by defaults), RTSP 40 ms (137).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import av
import av.error
import cv2
import numpy as np

from nodes.cameras.sources.address import Address, SourceKind
from nodes.cameras.sources.feed import (
    MOST_PIXELS,
    BadPicture,
    CameraLost,
    TakenPicture,
    check_size,
)
from nodes.cameras.sources.pictures import pixels_of_jpeg
from swarm.errors import InvalidArgument, SwarmError, Unavailable

# A decoded picture as people see it: with square pixels, turned and mirrored as the video says.
#
# A phone writes the sensor's rows as they come, and a display matrix beside them; a camera of the
# days of television writes pixels that are no squares. Players follow both, and boxes have to fit
# what players show.


QUARTERS = (1, 0, 0, 1)  # of a picture that lies as it is stored: (a, b, c, d) of the matrix
_MATRIX = np.dtype("=i4")  # nine of them in the machine's order, as `av_display_rotation_get` reads


def turn_of(matrix: bytes) -> tuple[int, int, int, int]:
    """The quarter turn and mirroring, each of -1, 0, 1, that is nearest to FFmpeg's display matrix:
    a point (x, y) is shown at (a x + c y, b x + d y). `QUARTERS` for one that says nothing."""
    if len(matrix) != 9 * _MATRIX.itemsize:
        return QUARTERS
    values = np.frombuffer(matrix, _MATRIX)
    a, b, c, d = (int(values[at]) for at in (0, 1, 3, 4))
    if abs(a) + abs(d) >= abs(b) + abs(c):
        return (_sign(a), 0, 0, _sign(d)) if a and d else QUARTERS
    return (0, _sign(b), _sign(c), 0) if b and c else QUARTERS


def upright(
    image: np.ndarray, turn: tuple[int, int, int, int], aspect: Fraction | None
) -> np.ndarray:
    """[height, width, 3], uint8. aspect: a pixel's width by its height, None or 0 where
    unknown; the side that is too short grows, so that nothing is lost. Raises `BadPicture` for too
    many pixels."""
    if aspect and aspect > 0 and aspect != 1:
        height, width = image.shape[:2]
        if aspect > 1:
            width = max(1, round(width * aspect))
        else:
            height = max(1, round(height / aspect))
        check_size(width, height)
        image = cv2.resize(image, (width, height), interpolation=cv2.INTER_LINEAR)
    a, b, c, d = turn
    if not a:
        image = image.transpose(1, 0, 2)
    if min(a, c) < 0:
        image = image[:, ::-1]
    if min(b, d) < 0:
        image = image[::-1]
    return image


def _sign(value: int) -> int:
    return 1 if value > 0 else -1


OPEN_WITHIN, READ_WITHIN = 5.0, 3.0  # seconds
_LIVE = {"fflags": "nobuffer", "analyzeduration": "0", "probesize": "32"}
# An MPEG-TS packet is one frame where the sender writes its length (`omit_video_pes_length=0`):
# without the parser, nothing waits for the beginning of the next one.
_UDP = _LIVE | {"fflags": "nobuffer+noparse+nofillin"}
# The queue of packets before the decoder, in 188 bytes: 4 MB; a torn one is no reason to end.
_UDP_QUERY = "fifo_size=21845&overrun_nonfatal=1"
_RTSP = {"fflags": "nobuffer", "rtsp_transport": "tcp", "max_delay": "0"}
_RTSP |= {"reorder_queue_size": "0", "analyzeduration": "0", "probesize": "4096"}
OPTIONS = {
    SourceKind.UDP: _UDP,
    SourceKind.RTSP: _RTSP,
    SourceKind.HTTP: _LIVE,
    SourceKind.FILE: {},
}
PLAYLIST = "hls"  # FFmpeg's name of its format
SEGMENT_WITHIN = 15.0  # seconds: a playlist's next part may take as long as it lasts


class IsPicture(SwarmError):
    """What HTTP gave is one picture, and no stream."""


class StreamFeed:
    """A `CameraFeed`. plays: a file keeps its own pace; else its consumer sets the pace.

    A live playlist comes in parts of some seconds, and is played at its own pace, too. Raises
    `CameraLost` where the stream cannot be opened now, `InvalidArgument` for a file that is no
    video, `IsPicture` for one picture of HTTP.
    """

    polls = False

    def __init__(self, address: Address, plays: bool = False) -> None:
        self._address = address
        self._container, self.ends = _opened(address)
        self._paced = plays if self.ends else self._container.format.name == PLAYLIST
        self._file = Path(urlsplit(address.where).path).name if self.ends else ""
        self._stream = self._container.streams.video[0]
        context = self._stream.codec_context
        if not self.ends:
            context.thread_type = "NONE"
            context.thread_count = 1
            context.flags |= av.codec.context.Flags.low_delay
        context.options = {"max_pixels": str(MOST_PIXELS)}
        # A file says how its pictures lie beside its packets, which FFmpeg tells of its own frames.
        self._is_jpeg = context.name == "mjpeg" and not self.ends
        self._aspect: Fraction | None = self._stream.sample_aspect_ratio
        self._first_aspect: Fraction | None = None  # of the codec
        self._packets: Iterator[Any] = self._container.demux(self._stream)
        self._decoded: deque[TakenPicture] = deque()
        self._began: tuple[float, float] | None = None  # the clock's and the stream's time
        self._first: float | None = None  # the stream's time of its first frame

    def read(self) -> TakenPicture | None:
        while not self._decoded:
            packet = self._packet()
            if packet is None or (packet.size == 0 and self._is_jpeg):
                if not self.ends:
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
            why = f"the stream stopped: {error.strerror or error}"
            if isinstance(error, av.error.ExitError):
                why = f"no packet for {READ_WITHIN:g} s"
            # A file that stops in the middle was not played whole, and would begin anew.
            raise (Unavailable if self.ends else CameraLost)(why) from None

    def _take(self, packet: Any) -> None:
        captured = time.monotonic()
        if self._is_jpeg:
            self._decoded.append(TakenPicture(partial(pixels_of_jpeg, bytes(packet)), captured))
            return
        began = time.perf_counter()
        try:
            frames = packet.decode()
        except (av.error.FFmpegError, ValueError) as error:
            raise BadPicture(f"a packet is no picture: {error}") from None
        spent = time.perf_counter() - began
        for frame in frames:
            check_size(frame.width, frame.height)
            pixels = _Pixels(frame, self._aspect_now())
            self._decoded.append(
                TakenPicture(pixels, captured, spent, self._file, self._at(frame.time))
            )

    def _at(self, shown: float | None) -> float | None:
        """Seconds since the first frame, where frames have a time of their own."""
        if shown is None or not (self.ends or self._paced):
            return None
        if self._first is None:
            self._first = shown
        return shown - self._first

    def _aspect_now(self) -> Fraction | None:
        """A pixel's width by its height: the container's word, until the codec changes its own."""
        aspect: Fraction | None = self._stream.codec_context.sample_aspect_ratio
        if self._first_aspect is None:
            self._first_aspect = aspect
        return self._aspect if self._aspect and aspect == self._first_aspect else aspect

    def _at_its_moment(self, taken: TakenPicture) -> TakenPicture:
        """Wait until a picture is due: it is captured then."""
        now = time.monotonic()
        if taken.at is None:
            return taken
        if self._began is None:
            self._began = (now, taken.at)
        began, first = self._began
        due = began + taken.at - first
        if not now - 1.0 < due < now + 10.0:  # the stream's clock jumps, or it came too late
            self._began, due = (now, taken.at), now
        time.sleep(max(0.0, due - now))
        return replace(taken, captured=max(due, now), at=taken.at if self.ends else None)


class _Pixels:
    """Converts a decoded frame."""

    def __init__(self, frame: Any, aspect: Fraction | None) -> None:
        self._frame = frame
        self._aspect = aspect

    def __call__(self) -> np.ndarray:
        pixels: np.ndarray = self._frame.to_ndarray(format="rgb24")
        matrix = self._frame.side_data.get("DISPLAYMATRIX")
        return upright(pixels, QUARTERS if matrix is None else turn_of(bytes(matrix)), self._aspect)


def _opened(address: Address) -> tuple[Any, bool]:
    """A container with pictures, and whether it has an end."""
    if address.kind is not SourceKind.HTTP:
        return _open(address, OPTIONS[address.kind]), address.kind is SourceKind.FILE
    if not urlsplit(address.where).path.lower().endswith(".m3u8"):
        container = _open(address, OPTIONS[SourceKind.HTTP])
        form = container.format.name
        if form == "image2" or form.endswith("_pipe"):
            container.close()
            raise IsPicture(f"{address.shown} is a picture")
        if container.duration is None and form != PLAYLIST:
            return container, False
        container.close()  # the options of live cameras read too little of a file's beginning
    container = _open(address, {}, SEGMENT_WITHIN)
    return container, container.duration is not None


def _open(address: Address, options: Mapping[str, str], within: float = READ_WITHIN) -> Any:
    where, options = address.where, dict(options)
    if address.kind is SourceKind.UDP:
        where = where.replace("udp://@", "udp://")
        where += ("&" if "?" in where else "?") + _UDP_QUERY
    elif address.kind is SourceKind.RTSP and where.endswith("?listen"):
        where = where.removesuffix("?listen")
        options |= {"rtsp_flags": "listen", "listen_timeout": str(int(OPEN_WITHIN))}
    try:
        container = av.open(where, options=options, timeout=(OPEN_WITHIN, within))
    except (av.error.FFmpegError, OSError, ValueError) as error:
        why = f"{getattr(error, 'strerror', None) or error}"
        if address.kind is SourceKind.FILE:
            raise InvalidArgument(f"{address.shown} is no video that FFmpeg reads: {why}") from None
        if isinstance(error, av.error.ExitError):
            raise CameraLost(f"no stream within {OPEN_WITHIN:g} s") from None
        raise CameraLost(f"it cannot be opened: {why}") from None
    if not container.streams.video:
        container.close()
        if address.kind is SourceKind.FILE:
            raise InvalidArgument(f"{address.shown} has no pictures")
        raise CameraLost("the stream has no pictures")
    return container
