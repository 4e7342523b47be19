"""`swarm bench guard`: what a guard takes for strange, of a camera's day and of spoilt pictures.

A guard watches UltraFace's first layers (its cut of 64 channels), one frame a second. It learns the
first frames of a day, and watches the rest: each alarm there is a false one. Then 19 ways to spoil
a picture are shown to it, of frames that come after those; AUROC is over them and as many clean
ones. Last, a small patch on a face, which hides the face from the detector.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from bench.cameras.camera_day import CORRUPTIONS, day
from bench.cameras.faces import TASK
from bench.faces import astronaut, paste
from bench.report.frame import Benchmark, Progress
from bench.report.tables import new_table
from bench.rivals.ultraface import ultraface_file
from nodes.cameras.guard.guard import CutGuard, GuardRule
from nodes.cameras.guard.statistics import pooled
from nodes.console import out
from shards.runtimes.load import load_stage
from shards.split.split import split

CUT = "283"  # of UltraFace: [1, 64, 30, 40]
SPOILT = 40  # frames of each corruption
MOST_FALSE = 0.002  # of the clean frames
LEAST_AUROC = 0.95  # the mean of all corruptions


@dataclass(frozen=True)
class GuardPlan:
    """seconds: of each day. seeds: of the rooms."""

    seconds: int = 7200
    seeds: tuple[int, ...] = (31, 32)
    warm_up: int = GuardRule().warm_up
    ultraface: str = ""


def first_layers(ultraface: str = "") -> Callable[[np.ndarray], np.ndarray]:
    """UltraFace up to its cut: from a picture to [1, 64, 30, 40]."""
    made = split(ultraface_file(ultraface).read_bytes(), name="faces", stages=1, edge_cut=CUT)
    stage = load_stage(made.manifest, 0, lambda name: made.files[name])

    def run(image: np.ndarray) -> np.ndarray:
        (cut,) = stage.run(TASK.prepare(image)).values()
        return cut

    return run


def auroc(usual: np.ndarray, strange: np.ndarray) -> float:
    """How often a strange picture is further than a usual one."""
    pairs = strange[:, None] - usual[None, :]
    return float((pairs > 0).mean() + 0.5 * (pairs == 0).mean())


def patched(image: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """A face with a patch of 20 pixels of random colours on its nose."""
    copy = image.copy()
    x, y = float(random.uniform(200, 440)), float(random.uniform(200, 280))
    paste(copy, astronaut(), (x, y), 150)
    row, column = round(y) - 10, round(x) - 10
    copy[row : row + 20, column : column + 20] = random.integers(0, 256, (20, 20, 3))
    return copy


def watch(plan: GuardPlan, seed: int, progress: Progress) -> dict[str, Any]:
    run = first_layers(plan.ultraface)
    guard = CutGuard(GuardRule(warm_up=plan.warm_up))
    far = alarmed = watched = 0
    seconds: list[float] = []
    for at, image in enumerate(day(seed, plan.seconds)):
        if at % 200 == 0:
            progress(f"room {seed}: second {at} of {plan.seconds} …")
        cut = run(image)
        began = time.perf_counter()
        verdict = guard.look(cut, float(at))
        seconds.append(time.perf_counter() - began)
        if verdict.distance is not None:
            watched += 1
            far += verdict.distance > 1
            alarmed += verdict.is_alarmed
    fitted = guard.fitted
    assert fitted is not None
    progress(f"room {seed}: spoilt pictures …")
    random = np.random.default_rng([seed, 9])
    later = list(day(seed, 2 * SPOILT, plan.seconds))
    usual = np.array([fitted.distance(pooled(run(image))) for image in later[1::2]])
    rows = {}
    for name, spoil in {**CORRUPTIONS, "a patch on a face": patched}.items():
        strange = np.array(
            [fitted.distance(pooled(run(spoil(image, random)))) for image in later[::2]]
        )
        rows[name] = [auroc(usual, strange), float((strange > fitted.threshold).mean())]
    return {
        "watched": watched,
        "far": far,
        "alarmed": alarmed,
        "us": median(seconds) * 1e6,
        "rows": rows,
    }


def measure(plan: GuardPlan, progress: Progress) -> dict[str, Any]:
    days = [watch(plan, seed, progress) for seed in plan.seeds]
    rows = {
        name: [round(float(np.mean([each["rows"][name][i] for each in days])), 3) for i in (0, 1)]
        for name in days[0]["rows"]
    }
    watched = sum(each["watched"] for each in days)
    return {
        "seeds": list(plan.seeds),
        "frames_watched": watched,
        "far": sum(each["far"] for each in days),
        "alarmed": sum(each["alarmed"] for each in days),
        "us": round(median(each["us"] for each in days), 1),
        "auroc": round(float(np.mean([rows[name][0] for name in CORRUPTIONS])), 4),
        "detected": round(float(np.mean([rows[name][1] for name in CORRUPTIONS])), 3),
        "by_corruption": rows,
        "figures": {},
    }


def show(document: dict[str, Any]) -> None:
    table = new_table("spoilt pictures", "picture", "AUROC", "too far")
    for name, (area, share) in document["by_corruption"].items():
        table.add_row(name, f"{area:.3f}", f"{share:.2f}")
    out.print(table)
    out.print(
        f"AUROC {document['auroc']:.3f} over {len(CORRUPTIONS)} ways; of "
        f"{document['frames_watched']} clean frames {document['far']} were too far, and "
        f"{document['alarmed']} under an alarm; {document['us']:.0f} µs a frame"
    )


def misses(document: dict[str, Any]) -> list[str]:
    missed = []
    if document["alarmed"] > MOST_FALSE * document["frames_watched"]:
        missed.append(f"{document['alarmed']} clean frames of {document['frames_watched']} alarmed")
    if document["auroc"] < LEAST_AUROC:
        missed.append(f"AUROC {document['auroc']:.3f}, {LEAST_AUROC} is the target")
    return missed


GUARD = Benchmark("guard", measure, show, misses=misses)
