"""What an edge knows of one of its cameras: its steps, its last answer, its figures."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field, replace
from typing import Any

from nodes.cameras.anatomy import Anatomy
from nodes.cameras.crops.crops import Crops
from nodes.cameras.gate.gate import Gate, GateRule, ResultValidity
from nodes.cameras.guard.guard import GuardAction, GuardRule
from nodes.cameras.guard.watch import CameraGuard, GuardFiles
from nodes.cameras.mask.door import Cleared, Door, MaskingDoor, OpenDoor
from nodes.cameras.mask.proof import MaskProof
from nodes.cameras.mask.regions import MaskRule
from nodes.cameras.settings import CameraOptions
from nodes.cameras.sources.camera import Camera
from nodes.stage.counters import histogram, latencies
from shards.cameras.results import Detections
from shards.cameras.task import Result as Found
from shards.cameras.tracking import Tracks, follow
from swarm.errors import Status
from swarm.flow.latency import LatencyWindow
from swarm.wire.messages import Result

RATE_OVER = 3.0  # seconds


@dataclass(frozen=True, slots=True)
class SeenFrame:
    """A frame with its answer. cleared: None where the frame may not leave the device. found: None
    where there is no answer, or no task that reads it. moment: of the frame. crops: what a
    second model says of its objects."""

    sequence: int
    result: Result
    anatomy: Anatomy
    cleared: Cleared | None = None
    found: Found | None = None
    moment: float = 0.0
    crops: tuple[dict[str, Any], ...] = ()

    @property
    def is_good(self) -> bool:
        return self.result.status is Status.OK


@dataclass
class Eye:
    """One camera. age: from a frame's capture to its result. last: the newest answer. computing:
    the frame whose answer the gate's next verdict stands for. sent: frames, answered or failed by
    now. repeated: frames for which the gate let an answer stand."""

    source: Camera
    door: Door
    gate: Gate | None = None
    guard: CameraGuard | None = None
    age: LatencyWindow = field(default_factory=LatencyWindow)
    sent: int = 0
    answered: int = 0
    failed: int = 0
    repeated: int = 0
    crops: Crops | None = None
    tracks: Tracks = field(default_factory=Tracks)
    tracked: int = -1  # the newest frame whose objects have ids
    last: SeenFrame | None = None
    computing: asyncio.Task[SeenFrame] | None = None
    _moments: deque[float] = field(default_factory=lambda: deque(maxlen=4096))  # of answers

    @property
    def is_alarmed(self) -> bool:
        return self.guard is not None and self.guard.verdict.is_alarmed

    def standing(self, version: str) -> ResultValidity:
        """What the last answer has to hold for. version: that the mesh desires."""
        if self.last is None:
            return ResultValidity(version, False, self.is_alarmed)
        result = self.last.result
        weights = max((hop.weights for hop in result.hops), default=0)
        name = f"{version}/{weights}" if weights else version
        return ResultValidity(name, result.degraded, self.is_alarmed)

    @property
    def asks_whole(self) -> bool:
        """Whether an alarm asks for the whole model's answer to each frame."""
        return self.guard is not None and self.guard.rule.action is GuardAction.WHOLE

    def follow(self, seen: SeenFrame) -> SeenFrame:
        """The answer with its objects' ids, unless it is older than one that came before."""
        if seen.sequence <= self.tracked or not isinstance(seen.found, Detections):
            return seen
        self.tracked = seen.sequence
        self.tracks, found = follow(self.tracks, seen.found, seen.moment)
        return replace(seen, found=found)

    def saw(self, seen: SeenFrame) -> None:
        """An answer came; it may be older than one that came before."""
        self.age.add(seen.anatomy.read - seen.anatomy.captured, seen.anatomy.read)
        self.answered += seen.is_good
        self.failed += not seen.is_good
        if seen.is_good:
            self._moments.append(seen.anatomy.read)
        if self.last is None or seen.sequence > self.last.sequence:
            self.last = seen
        if self.gate is not None and not seen.is_good:
            self.gate.failed()

    def status(self, now: float) -> dict[str, Any]:
        """For status documents. `age_ms`: of the last ten seconds; `age_s`: since the start."""
        doc = {**self.source.status(), "sent": self.sent}
        doc |= {"age_ms": latencies(self.age, now), "age_s": histogram(self.age)}
        steps = {"gate": self.gate, "mask": self.door, "guard": self.guard}
        found = {name: step.status() for name, step in steps.items() if step is not None}
        if self.crops is not None:
            found["crops"] = dict(self.crops.counts)
        return doc | {name: status for name, status in found.items() if status}

    def shown(self, now: float) -> dict[str, Any]:
        """For the page: figures of the last ten seconds, and the parts of the last frame."""
        told = self.status(now)
        keys = ("name", "state", "error", "dropped", "decode_ms", "age_ms")
        doc = {key: told[key] for key in keys}
        if self.last is not None and not self.last.is_good and not doc["error"]:
            doc["error"] = self.last.result.message
        while self._moments and now - self._moments[0] > RATE_OVER:
            self._moments.popleft()
        doc["rate"] = len(self._moments) / RATE_OVER
        doc["spent_ms"] = {} if self.last is None else self.last.anatomy.parts()
        return doc

    @property
    def was_read(self) -> bool:
        """Whether it gave pictures, and did not break off."""
        return self.sent + self.repeated > 0 and self.source.status()["state"] != "failed"

    def summary(self) -> str:
        """How its frames ended, for people."""
        told = self.source.status()
        parts = [f"{told['frames']} frames read", f"{self.answered} answered"]
        more = {
            "skipped by --gate": self.repeated,
            "passed over by --rate": told["passed"],
            "dropped for newer ones": told["dropped"],
            "spoilt": told["torn"],
            "under way": self.sent - self.answered - self.failed,
        }
        parts += [f"{count} {word}" for word, count in more.items() if count]
        text = ", ".join([*parts, f"{self.failed} failed"])
        why = f" ({told['state']}: {told['error']})" if told["error"] else ""
        return f"camera {self.source.name} at {told['where']}: {text}{why}"

    async def close(self) -> None:
        self.door.close()
        await self.source.close()


def eye_of(source: Camera, options: CameraOptions, files: GuardFiles | None = None) -> Eye:
    """A camera with the steps that the settings ask for. Raises `InvalidArgument`."""
    rule = GateRule.of(options.gate, options.most_skipped, options.gate_oldest)
    guard = GuardRule.of(options.guard, options.guard_action, options.guard_warm_up)
    door = _door(options)
    return Eye(
        source,
        door,
        None if rule is None else Gate(rule),
        None if guard is None else CameraGuard(guard, isinstance(door, MaskingDoor), files),
    )


def _door(options: CameraOptions) -> Door:
    if not options.masks:
        return OpenDoor()
    rule = MaskRule(
        options.mask_threshold, options.mask_margin, options.mask_frames, options.mask_within
    )
    return MaskingDoor(rule, MaskProof.of(options.mask_proof))
