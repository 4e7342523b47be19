"""A source: a thread that reads a feed, opens it anew when it is lost, and keeps the newest frame.

    camera ─► feed.read() ─► slot of one ─► latest()
              the thread                    the event loop

The thread decodes what the consumer waits for. What it does not wait for is decoded when it asks:
pictures that give way cost what the codec needs for the next ones, and no more.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from nodes.cameras.frame import Frame
from nodes.cameras.sources.address import Address, SourceKind
from nodes.cameras.sources.feed import BadPicture, CameraFeed, CameraLost, TakenPicture, check_size
from nodes.cameras.sources.slot import FrameSlot
from swarm.errors import InvalidArgument, SwarmError
from swarm.flow.backoff import Backoff
from swarm.flow.latency import Usual

# Which of a source's pictures `--rate` lets through. Pure.


EARLY = 0.25  # of the pause between two, by which a picture may come before it is due


class Thinning:
    """At most `rate` pictures a second, evenly; 0: each."""

    def __init__(self, rate: float) -> None:
        self._pause = 1 / rate if rate else 0.0
        self._due: float | None = None

    def takes(self, moment: float) -> bool:
        """Whether a picture of this moment goes on, in seconds of the source's clock. The mean rate
        is held where pictures come unevenly; a pause is not made up for."""
        if not self._pause:
            return True
        due = self._due
        # A clock that goes back begins anew.
        if due is None or moment < due - 2 * self._pause:
            due = moment
        if moment < due - EARLY * self._pause:
            return False
        self._due = max(due + self._pause, moment)
        return True


log = logging.getLogger("swarm.camera")

AUTO, BLOCK, DROP = "auto", "block", "drop-oldest"  # of `--on-full`
FIRST_PAUSE, LONGEST_PAUSE = 0.25, 5.0  # seconds before a lost camera is opened anew
# Seconds without a picture though packets come, after which the stream is opened anew: a key frame
# comes each ten seconds at the latest (250 frames are x264's default), or the codec has changed.
NO_PICTURE_FOR = 12.0
SPOILT_PAUSE = 0.005  # seconds between two in a row that are no pictures
MOST_SAID = 32  # different faults of one camera
CLOSE_WITHIN = 0.5  # seconds that the thread gets to end; one that waits for a packet ends later
LOOK_EVERY = 0.1  # seconds in which a waiting thread sees that it has to end


class Camera:
    """Frames of one camera, the latest only: a slow consumer never gets an old frame.

    `arrived` and `latest` are called by one consumer. A camera that fails is opened again, with
    backoff, and says so in `status`; it never ends a node. open_feed: opens the camera, in its
    thread; raises `CameraLost` where it may be tried again, `InvalidArgument` where it may
    not. on_full: `block` and `auto` make the reader of what has an end wait for the consumer,
    so that no picture is dropped. rate: pictures a second that go on, at the most; 0: each.
    """

    def __init__(
        self,
        address: Address,
        open_feed: Callable[[Address], CameraFeed],
        on_full: str = AUTO,
        rate: float = 0.0,
    ) -> None:
        self.name = address.name
        self._address = address
        self._open = open_feed
        self._on_full = on_full
        self._waits = False  # known once it is open
        self._rate, self._thinning = rate, Thinning(rate)
        self._passed = 0
        self._slot = FrameSlot(asyncio.get_running_loop())
        self._stop = threading.Event()
        self._decode = Usual()
        self._state, self._error = "waiting", ""
        self._torn = self._reconnects = 0
        self._said: set[str] = set()
        self._thread = threading.Thread(target=self._run, name=f"camera {self.name}", daemon=True)
        self._thread.start()

    @property
    def waits(self) -> bool:
        """Whether no frame gives way to another one, so that all are given, in their order."""
        return self._waits

    async def arrived(self) -> bool:
        """Wait until a frame is there that was not given yet. False at the end of a file."""
        return await self._slot.arrived()

    async def latest(self) -> Frame | None:
        """The newest frame that was not given yet: waits for one. None at the end of a file."""
        while await self._slot.arrived():
            if (taken := self._slot.take()) is None:
                continue
            sequence, picture = taken
            try:
                image, spent = await self._decoded(picture)
            except BadPicture as error:
                self._spoilt(error)
                continue
            self._decode.add(spent)
            decode_ms = spent * 1e3
            return Frame(
                image, picture.captured, sequence, self.name, decode_ms, picture.file, picture.at
            )
        return None

    def status(self) -> dict[str, object]:
        """state: `running`, `waiting`, `failed`, `ended`. frames: that came; passed: over, by
        `--rate`; torn: packets and files that were no picture."""
        return {
            "name": self.name,
            "where": self._address.shown,
            "state": self._state,
            "frames": self._slot.put_count,
            "dropped": self._slot.dropped,
            "passed": self._passed,
            "torn": self._torn,
            "decode_ms": round(self._decode.ewma * 1e3, 3),
            "reconnects": self._reconnects,
            "error": self._error,
        }

    async def close(self) -> None:
        """Give the device or the connection back. May be called twice."""
        self._stop.set()
        await asyncio.to_thread(self._thread.join, CLOSE_WITHIN)

    @staticmethod
    async def _decoded(picture: TakenPicture) -> tuple[np.ndarray, float]:
        """The image, and all seconds of its decoding. Raises `BadPicture`."""
        if isinstance(picture.pixels, _Ready):
            return picture.pixels.image, picture.spent
        return await asyncio.to_thread(_decode, picture)

    # --- in the thread --------------------------------------------------------------------

    def _run(self) -> None:
        pause = Backoff(FIRST_PAUSE, LONGEST_PAUSE)
        try:
            while not self._stop.is_set():
                try:
                    feed = self._open(self._address)
                except CameraLost as error:
                    self._lost(error)
                    self._stop.wait(pause.next())
                    continue
                try:
                    self._begin(feed)
                    if self._read(feed, pause):
                        self._become("ended")
                        return
                except CameraLost as error:
                    self._lost(error)
                    self._stop.wait(pause.next())
                finally:
                    feed.close()
        except SwarmError as error:
            self._fail(str(error))
        except Exception as error:
            log.exception("camera %s", self.name)
            self._fail(repr(error))
        finally:
            self._slot.end()

    def _begin(self, feed: CameraFeed) -> None:
        """Before the first picture. Raises `InvalidArgument`."""
        if self._on_full == BLOCK and not feed.ends:
            raise InvalidArgument(waits_for_nobody(self._address))
        self._waits = feed.ends and self._on_full != DROP
        self._thinning = Thinning(0.0 if feed.polls else self._rate)
        # A file that plays by itself begins when somebody looks.
        while feed.ends and not (self._slot.was_asked or self._stop.is_set()):
            self._stop.wait(LOOK_EVERY)

    def _read(self, feed: CameraFeed, pause: Backoff) -> bool:
        """Read until the end. Whether it was the feed's, and no wish. Raises `CameraLost`, and
        `InvalidArgument` for a file without any further picture."""
        seen, is_spoilt = time.monotonic(), False
        while not self._stop.is_set():
            taken = None
            try:
                taken = feed.read()
                if taken is not None and not self._thinning.takes(_moment(taken)):
                    self._passed += 1
                    self._slot.pass_over()
                    continue
                if taken is not None and self._slot.is_waited_for:
                    image, spent = _decode(taken)
                    taken = replace(taken, pixels=_Ready(image), spent=spent)
            except BadPicture as error:
                self._spoilt(error)
                if taken is not None:
                    self._slot.pass_over()
                # A folder of pictures has an end, whatever they are.
                is_endless = self._address.kind is not SourceKind.PICTURES
                if is_endless and time.monotonic() > seen + NO_PICTURE_FOR:
                    text = f"no picture for {NO_PICTURE_FOR:g} s: {error}"
                    lost = InvalidArgument if feed.ends else CameraLost
                    raise lost(text) from None
                if is_spoilt:  # a source that has ended may say so at each read, at once
                    self._stop.wait(SPOILT_PAUSE)
                is_spoilt = True
                continue
            if taken is None:
                self._until_taken()
                return True
            if self._state != "running":
                self._become("running")
            is_spoilt = False
            pause.reset()
            if self._waits:
                self._until_taken()
            self._slot.put(taken)
            seen = time.monotonic()
        return False

    def _until_taken(self) -> None:
        while not self._stop.is_set() and not self._slot.until_empty(LOOK_EVERY):
            pass

    def _become(self, state: str) -> None:
        self._state, self._error = state, ""
        log.info("camera %s: %s", self.name, state)

    def _lost(self, error: CameraLost) -> None:
        if self._stop.is_set():
            return
        if self._state == "running":
            self._reconnects += 1
        if self._state != "waiting" or not self._error:  # said once for each loss
            log.warning("camera %s at %s is lost: %s", self.name, self._address.shown, error)
        self._state, self._error = "waiting", str(error)

    def _spoilt(self, error: BadPicture) -> None:
        """A packet that is no picture: counted, and said once of each kind."""
        self._torn += 1
        text = str(error)
        if text not in self._said and len(self._said) < MOST_SAID:
            self._said.add(text)
            log.warning("camera %s: %s; the next pictures count", self.name, text)

    def _fail(self, why: str) -> None:
        self._state, self._error = "failed", why
        log.error("camera %s at %s: %s", self.name, self._address.shown, why)


class _Ready:
    """An image that the reader has decoded."""

    def __init__(self, image: np.ndarray) -> None:
        self.image = image

    def __call__(self) -> np.ndarray:
        return self.image


def _decode(taken: TakenPicture) -> tuple[np.ndarray, float]:
    """Raises `BadPicture`, whatever the library of the codec says."""
    began = time.perf_counter()
    try:
        image = taken.pixels()
    except BadPicture:
        raise
    except Exception as error:
        raise BadPicture(f"it cannot be decoded: {error!r:.200}") from None
    if image.ndim != 3 or image.shape[2] != 3 or image.dtype != np.uint8:
        raise BadPicture(f"pixels of shape {image.shape} and type {image.dtype}")
    check_size(image.shape[1], image.shape[0])
    return np.ascontiguousarray(image), taken.spent + time.perf_counter() - began


def _moment(taken: TakenPicture) -> float:
    return taken.captured if taken.at is None else taken.at


def waits_for_nobody(address: Address) -> str:
    """What is wrong with `--on-full block`."""
    return (
        f"--on-full block: {address.name} is a camera, which waits for nobody; a file or a "
        "folder of pictures can"
    )
