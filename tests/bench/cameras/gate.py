"""`swarm bench gate`: what a gate skips, and how often the result that it repeats is wrong.

Twelve clips are drawn from seeds and sent through H.264. The detector computes each frame, once;
then each gate decides, and the last computed result stands for what it skips. A frame is wrong when
its own result has the clip's face and the repeated one lacks it (IoU 0.5), or has it where the
frame shows none. What the detector takes for a face in a background comes and goes with the noise:
that is its own fault, and does not count.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Any

import numpy as np

from bench.cameras.clips import CLIPS, FRAMES, clip
from bench.cameras.faces import face_detector, in_pixels
from bench.faces import Box, overlap
from bench.report.frame import Benchmark, Progress
from bench.report.tables import new_table
from nodes.cameras.frame import Frame
from nodes.cameras.gate.gate import Gate, GateRule, ResultValidity
from nodes.console import out

RATE = 30.0
SAME_FACE = 0.5
ITS_FACE = 0.3  # a detector's box has no hair, the clip's has
RULES = (
    "ssim-min:0.3",
    "ssim-min:0.7",
    "block:20",
    "block:30",
    "thumbnail:20",
    "thumbnail:40",
    "phash:1",
    "phash:2",
)
BLIND = (2, 3, 5)
MOST_WRONG = 0.005  # of the default's frames; the target
DEFAULT = RULES[0]
CPU_ROUNDS = 2


@dataclass(frozen=True)
class GatePlan:
    """seeds: of the clips. frames: of each clip. most_skipped: of every gate."""

    seeds: tuple[int, ...] = (11, 12)
    clips: tuple[str, ...] = tuple(CLIPS)
    frames: int = FRAMES
    most_skipped: int = 10
    ultraface: str = ""


@dataclass
class Counts:
    """Of one gate: frames, by the clip's name."""

    frames: dict[str, int] = field(default_factory=dict)
    skipped: dict[str, int] = field(default_factory=dict)
    wrong: dict[str, int] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)

    def add(self, name: str, computes: Sequence[bool], found: Sequence[np.ndarray | None]) -> None:
        """found: the face in each frame's own result."""
        last = found[0]
        wrong = 0
        for is_computed, own in zip(computes, found, strict=True):
            last = own if is_computed else last
            wrong += not is_same(last, own)
        self.frames[name] = self.frames.get(name, 0) + len(found)
        self.skipped[name] = self.skipped.get(name, 0) + computes.count(False)
        self.wrong[name] = self.wrong.get(name, 0) + wrong

    def row(self, name: str) -> dict[str, Any]:
        frames = sum(self.frames.values())
        worst = max(self.wrong, key=lambda each: self.wrong[each])
        return {
            "gate": name,
            "us": round(median(self.seconds) * 1e6, 1) if self.seconds else 0.0,
            "skipped": round(sum(self.skipped.values()) / frames, 4),
            "wrong": round(sum(self.wrong.values()) / frames, 5),
            "worst_clip": worst if self.wrong[worst] else "",
            "by_clip": {
                each: [
                    round(self.skipped[each] / self.frames[each], 3),
                    round(self.wrong[each] / self.frames[each], 4),
                ]
                for each in self.frames
            },
        }


def is_same(one: np.ndarray | None, two: np.ndarray | None) -> bool:
    """Whether two results show the clip's face at one place, or both show none."""
    if one is None or two is None:
        return one is two
    return overlap(one.tolist(), two.tolist()) >= SAME_FACE


def of_truth(boxes: np.ndarray, truth: Box | None) -> np.ndarray | None:
    """The box of the clip's face among those of a result, in pixels."""
    if truth is None:
        return None
    return next((box for box in boxes if overlap(box.tolist(), truth) >= ITS_FACE), None)


def gated(rule: GateRule, images: Sequence[np.ndarray], seconds: list[float]) -> list[bool]:
    """Whether each frame is computed. seconds: is added what each decision took."""
    gate, computes = Gate(rule), []
    for at, image in enumerate(images):
        frame = Frame(image, at / RATE, at)
        began = time.perf_counter()
        computes.append(gate.look(frame, ResultValidity("1")).computes)
        seconds.append(time.perf_counter() - began)
    return computes


def cpu_seconds(images: Sequence[np.ndarray], detect: Callable[[np.ndarray], Any]) -> float:
    """CPU seconds for a minute of video, of computing every frame."""
    began = time.process_time()
    for image in images:
        detect(image)
    return (time.process_time() - began) / len(images) * RATE * 60


def cpu_seconds_gated(
    rule: GateRule, images: Sequence[np.ndarray], detect: Callable[[np.ndarray], Any]
) -> float:
    gate = Gate(rule)
    began = time.process_time()
    for at, image in enumerate(images):
        if gate.look(Frame(image, at / RATE, at), ResultValidity("1")).computes:
            detect(image)
    return (time.process_time() - began) / len(images) * RATE * 60


def measure(plan: GatePlan, progress: Progress) -> dict[str, Any]:
    detector = face_detector(file=plan.ultraface)
    rules = [GateRule.of(text, plan.most_skipped) for text in RULES]
    counts = {text: Counts() for text in (*RULES, *(f"every {n}." for n in BLIND))}
    cpu: dict[str, list[float]] = {"every frame": [], DEFAULT: []}
    usual = rules[0]
    assert usual is not None
    for seed in plan.seeds:
        for name in plan.clips:
            progress(f"seed {seed}: {name} …")
            drawn = clip(name, seed, plan.frames)
            images = drawn.images
            found = [
                of_truth(in_pixels(detector.find(image), image), face)
                for image, face in zip(images, drawn.faces, strict=True)
            ]
            for text, rule in zip(RULES, rules, strict=True):
                assert rule is not None
                each = counts[text]
                each.add(name, gated(rule, images, each.seconds), found)
            for n in BLIND:
                counts[f"every {n}."].add(name, [i % n == 0 for i in range(len(images))], found)
            ways = {
                "every frame": partial(cpu_seconds, images, detector.find),
                DEFAULT: partial(cpu_seconds_gated, usual, images, detector.find),
            }
            for turn in range(CPU_ROUNDS):
                for way in (*ways,) if turn % 2 == 0 else (*ways,)[::-1]:
                    cpu[way].append(ways[way]())
    rows = [each.row(text) for text, each in counts.items()]
    mean = {way: float(np.mean(values)) for way, values in cpu.items()}
    return {
        "seeds": list(plan.seeds),
        "frames": sum(counts[DEFAULT].frames.values()),
        "most_skipped": plan.most_skipped,
        "rows": rows,
        "cpu_seconds_a_minute": {way: round(value, 2) for way, value in mean.items()},
        "cpu_share": round(mean[DEFAULT] / mean["every frame"], 3),
        "figures": {},
    }


def show(document: dict[str, Any]) -> None:
    title = f"{document['frames']} frames, seeds {document['seeds']}"
    table = new_table(title, "gate", "µs", "skipped", "wrong", "worst in")
    for row in document["rows"]:
        table.add_row(
            row["gate"],
            f"{row['us']:.0f}",
            f"{row['skipped']:.2f}",
            f"{row['wrong']:.2%}",
            row["worst_clip"],
        )
    out.print(table)
    cpu = document["cpu_seconds_a_minute"]
    spent = ", ".join(f"{way} {value:.1f}" for way, value in cpu.items())
    out.print(f"CPU seconds a minute of video: {spent} ({document['cpu_share']:.2f} times)")


def misses(document: dict[str, Any]) -> list[str]:
    row = next(row for row in document["rows"] if row["gate"] == DEFAULT)
    if row["wrong"] <= MOST_WRONG:
        return []
    return [f"{DEFAULT}: {row['wrong']:.2%} of the frames are wrong, {MOST_WRONG:.1%} may be"]


GATE = Benchmark("gate", measure, show, misses=misses)
