"""The answers that `swarm demo --camera` has seen, held against the camera's truth. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nodes.cameras.demo.scene import CELL, WIDTH, card
from nodes.demo.record import TakeoverRecord, percentile

NEAR = 2 * CELL / WIDTH  # of a box's side, as a share: two of the model's pixels
# Frames that the picture may be older than its arrival says: a busy machine encodes late.
LATE = 15


@dataclass
class CameraRecord:
    """rate: frames a second. began: the moment of frame 0, of `time.monotonic()`."""

    rate: float
    began: float
    ages: list[float] = field(default_factory=list)  # ms, of computed frames
    waits: list[float] = field(default_factory=list)  # ms, before the kill
    decode: list[float] = field(default_factory=list)  # ms
    seen: set[tuple[str, int]] = field(default_factory=set)
    repeated: int = 0
    wrong: int = 0
    failed: int = 0
    takeover: TakeoverRecord = field(default_factory=TakeoverRecord)

    @property
    def answered(self) -> int:
        return len(self.seen)

    def take(self, line: dict[str, Any], now: float) -> None:
        """A result's line, which arrived now."""
        if "repeats" in line:
            self.repeated += 1
            return
        self.seen.add((line["source"], line["sequence"]))
        if line["status"] != "OK":
            self.failed += 1
            return
        self.ages.append(line["age_ms"])
        if not self.takeover.killed_at:
            self.waits.append(line["age_ms"])
        self.decode.append(line["decode_ms"])
        captured = now - line["age_ms"] / 1e3
        self.wrong += not is_true(line.get("detections", []), (captured - self.began) * self.rate)
        self.takeover.answered(line["hops"], now)


def is_true(detections: list[dict[str, Any]], number: float) -> bool:
    """Whether these are the one card that the camera showed. number: of the frame, by the moment
    of its arrival."""
    if len(detections) != 1:
        return False
    (found,) = detections
    for at in range(max(0, round(number) - LATE), max(0, round(number) + 1) + 1):
        shown = card(at)
        is_near = np.abs(np.array(found["box"]) - shown.box).max() <= NEAR
        if is_near and found["class"] == shown.digit:
            return True
    return False


def summarise(record: CameraRecord, sent: int, most_age: float) -> dict[str, Any]:
    """The figures of the end; times in milliseconds. sent: frames, by the edge's last status."""
    ages, all_frames = record.ages, record.answered + record.repeated
    return {
        "sent": sent,
        "answered": record.answered - record.failed,
        "lost": sent - record.answered + record.failed,
        "wrong": record.wrong,
        "skipped_share": round(record.repeated / max(1, all_frames), 3),
        "age_p50_ms": percentile(ages, 50),
        "age_p99_ms": percentile(ages, 99),
        "age_p99_before_the_kill_ms": percentile(record.waits, 99),
        "age_max_ms": percentile(ages, 100),
        "age_allowed_ms": most_age,
        "decode_p50_ms": percentile(record.decode, 50),
    } | record.takeover.figures()


def broken(doc: dict[str, Any]) -> list[str]:
    """The promises that did not hold, as sentences."""
    found = []
    if not doc["sent"]:
        found.append("no frame was sent")
    if doc["lost"]:
        found.append(f"{doc['lost']} frames that were sent have no answer")
    if doc["wrong"]:
        found.append(f"{doc['wrong']} answers are not what the camera showed")
    if doc["age_max_ms"] > doc["age_allowed_ms"]:
        allowed = doc["age_allowed_ms"]
        found.append(f"a frame was {doc['age_max_ms']:g} ms old at its result, of {allowed:g}")
    if doc["takeover_ms"] is None or doc["return_ms"] is None:
        found.append("the takeover or the return did not happen in time")
    return found
