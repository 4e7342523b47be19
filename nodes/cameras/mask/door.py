"""The one way by which a camera's pixels leave a device: masked, or by an owner who asks for none.

Everything behind the door takes a `Cleared`: the model's input, and so features; pages, films and
windows. A `Frame` is no `Cleared`, for the type checker and at run time, and only a door makes one.
The regions of a `Masked` come from a run of the detector on this very frame.

The door fails closed. Without a detector, with one that is late, raises, gives no boxes, or finds
nothing and not even the face of `nodes.cameras.mask.proof`: nothing leaves. (A guard that is
alarmed holds back what the layers made of a cleared frame: `nodes.cameras.guard`.) No detector
finds everything: a mask lowers what leaks, and cannot rule it out.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from nodes.cameras.frame import Frame
from nodes.cameras.mask.proof import MaskProof
from nodes.cameras.mask.regions import MaskRule, checked, filled, pixels
from nodes.stage.worker import Worker

log = logging.getLogger("swarm.edge")

PROVE_EVERY = 30.0  # seconds, where the detector finds something in each frame
MOST_GIVEN_UP = 4  # threads that hang in a detector
_SEAL = object()  # only this module has it


class MaskDetector(Protocol):
    """Finds what must not leave, on this device."""

    def find(self, image: np.ndarray) -> np.ndarray:
        """image: uint8 [height, width, 3], RGB. Returns float [n, 4]: left, top, right, bottom as
        shares of the width and the height. Called by one thread; may raise anything."""
        ...


class Cleared:
    """A frame that may leave the device. Raises `TypeError` where anybody but a door makes one."""

    __slots__ = ("frame",)

    def __init__(self, frame: Frame, seal: object) -> None:
        if seal is not _SEAL:
            raise TypeError(f"only a Door makes a {type(self).__name__}")
        self.frame = frame


class Masked(Cleared):
    """frame: with its regions filled by one value. regions: left, top, right, bottom in pixels,
    right and bottom exclusive; of this frame and of some before it. found: boxes in this frame, as
    the detector gave them."""

    __slots__ = ("found", "regions")

    def __init__(
        self,
        frame: Frame,
        regions: tuple[tuple[int, int, int, int], ...],
        found: np.ndarray,
        seal: object,
    ) -> None:
        super().__init__(frame, seal)
        self.regions = regions
        self.found = found


class Unmasked(Cleared):
    """A frame as the camera gave it: of an edge without `--mask`."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Withheld:
    """why: `no-detector`, `late`, `hung`, `error` or `unproven`; detail: for people."""

    why: str
    detail: str


def image_of(cleared: Cleared) -> np.ndarray:
    """The pixels that may leave: whoever makes anything of a frame takes them from here. uint8
    [height, width, 3], RGB. Raises `TypeError` for a frame that has not passed a door."""
    if not isinstance(cleared, Cleared):
        raise TypeError(f"a {type(cleared).__name__} has not passed the door: it may not leave")
    return cleared.frame.image


class OpenDoor:
    """Of an edge without a mask."""

    async def clear(self, frame: Frame) -> Unmasked | Withheld:
        return Unmasked(frame, _SEAL)

    def status(self) -> dict[str, object]:
        return {}

    def close(self) -> None:
        pass


class MaskingDoor:
    """Of an edge with a mask. Frames pass one at a time, in the order in which they come.

    detector: None withholds everything until `use` brings one. now: seconds, monotonic.
    """

    def __init__(
        self,
        rule: MaskRule,
        proof: MaskProof,
        detector: MaskDetector | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.rule = rule
        self.masked = 0
        self.withheld: dict[str, int] = {}  # frames by reason
        self._proof = proof
        self._detector = detector
        self._now = now
        self._proven = -PROVE_EVERY
        self._window: deque[np.ndarray] = deque(maxlen=rule.frames)
        self._one = asyncio.Lock()
        self._worker: Worker | None = None
        self._submitted = 0.0  # `time.monotonic()` of the thread's last job
        self._given_up = 0
        self._last: Withheld | None = None

    def use(self, detector: MaskDetector | None) -> None:
        """Ask this detector from the next frame on; it has to prove itself first."""
        self._detector = detector
        self._proven = -PROVE_EVERY

    async def clear(self, frame: Frame) -> Masked | Withheld:
        """The frame with its regions filled, or why it may not leave. Never raises for a detector's
        failure."""
        async with self._one:
            outcome = await self._cleared(frame)
        if isinstance(outcome, Masked):
            self.masked += 1
            if self._last is not None:
                log.warning("frames leave again, masked")
            self._last = None
            return outcome
        self.withheld[outcome.why] = self.withheld.get(outcome.why, 0) + 1
        if self._last is None or self._last.why != outcome.why:
            log.error("no frame leaves this device: %s", outcome.detail)
        self._last = outcome
        return outcome

    async def _cleared(self, frame: Frame) -> Masked | Withheld:
        if (detector := self._detector) is None:
            return Withheld("no-detector", "the detector of --mask is not loaded")
        try:
            found = await self._found(detector, frame.image)
        except TimeoutError:
            return Withheld("late", f"the detector took more than {self.rule.within:g} s")
        except _Hung as error:
            return Withheld("hung", str(error))
        except _Unproven as error:
            return Withheld("unproven", str(error))
        except Exception as error:  # of a detector, which may raise anything
            return Withheld("error", f"the detector failed: {type(error).__name__}: {error}")
        self._window.append(found)
        height, width = frame.image.shape[:2]
        boxes = np.concatenate(list(self._window))
        regions = pixels(boxes, self.rule.margin, height, width)
        picture = replace(frame, image=filled(frame.image, regions))
        return Masked(picture, tuple(regions), found, _SEAL)

    async def _found(self, detector: MaskDetector, image: np.ndarray) -> np.ndarray:
        """The boxes in a picture, by a detector that has proven to find. Raises `TimeoutError`,
        `_Hung`, `_Unproven`, and the detector's own errors."""
        began = self._now()
        is_due = began - self._proven >= PROVE_EVERY

        def look() -> tuple[np.ndarray, bool]:
            boxes = checked(np.asarray(detector.find(image)))
            if len(boxes) and not is_due:
                return boxes, False
            # "Nothing" is believed only of a detector that finds something a moment later.
            proof = checked(np.asarray(detector.find(self._proof.image)))
            if not self._proof.is_shown_by(proof):
                raise _Unproven("the detector does not find the face that it is tested with")
            return boxes, True

        boxes, is_proven = await self._in_thread(look)
        if is_proven:
            self._proven = began
        return boxes

    async def _in_thread(
        self, work: Callable[[], tuple[np.ndarray, bool]]
    ) -> tuple[np.ndarray, bool]:
        loop = asyncio.get_running_loop()
        worker = self._usable_worker(loop)
        future: asyncio.Future[tuple[np.ndarray, bool]] = loop.create_future()

        def done(result: Any, error: Exception | None, _seconds: float) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

        self._submitted = time.monotonic()
        worker.submit(work, done)
        async with asyncio.timeout(self.rule.within):
            return await future

    def _usable_worker(self, loop: asyncio.AbstractEventLoop) -> Worker:
        """A thread that is idle. Raises `_Hung` where there is none: a frame does not wait behind
        another one's run."""
        worker = self._worker
        if worker is not None and worker.queued > 0:
            if time.monotonic() - self._submitted < 2 * self.rule.within:
                raise _Hung("the detector is still busy with an earlier frame")
            if self._given_up >= MOST_GIVEN_UP:
                raise _Hung(f"the detector hung {MOST_GIVEN_UP + 1} times: start this node anew")
            worker.abandon()
            self._given_up += 1
            worker = None
        if worker is None:
            worker = self._worker = Worker(loop, "mask")
        return worker

    def status(self) -> dict[str, object]:
        """For status documents."""
        return {
            "masked": self.masked,
            "withheld": dict(self.withheld),
            "state": "closed" if self._last is not None else "open",
            "why": "" if self._last is None else self._last.detail,
        }

    def close(self) -> None:
        """End the detector's thread."""
        if self._worker is not None:
            self._worker.close()


class _Hung(RuntimeError):
    """The detector's thread is not free."""


class _Unproven(RuntimeError):
    """The detector does not find what is certainly there."""


Door = OpenDoor | MaskingDoor
