"""`swarm bench gate`, `crops`, `mask`, `guard`, `cameras`; the parser that `hostile` attacks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.commands import Rounds, Told, known_words, numbers_of
from bench.feature import Feature
from nodes.cli.command import option

if TYPE_CHECKING:
    from bench.hostile.target import Target


def gate(
    tell: Told,
    seeds: str = option("11,12", "Of the clips, with commas."),
    frames: int = option(150, "Of each of twelve clips.", min=2),
    clips: str = option("", "Names of clips, with commas; all when empty."),
    most_skipped: int = option(10, "Frames in a row.", min=0),
    ultraface: str = option("", "The detector's ONNX file or folder."),
) -> int:
    """What a camera's gate skips, and how often the result that it repeats is wrong."""
    from bench.cameras.clips import CLIPS
    from bench.cameras.gate import GATE, GatePlan

    names = tuple(known_words(clips, CLIPS) if clips else CLIPS)
    plan = GatePlan(tuple(numbers_of(seeds, "--seeds")), names, frames, most_skipped, ultraface)
    return tell.run(GATE, plan)


def crops(
    tell: Told,
    cards: int = option(32, "Shown one after the other.", min=2, max=32),
    noise: float = option(3.0, "Of a pixel, of 255.", min=0),
    tremble: float = option(1.0, "Of a box's sides, in pixels.", min=0),
) -> int:
    """How often an object that a camera sees keeps its answer, and how often that is wrong."""
    from bench.cameras.crops import CROPS, CropsPlan

    return tell.run(CROPS, CropsPlan(cards, noise, tremble))


def mask(
    tell: Told,
    frames: int = option(3000, "That pass the door.", min=1),
    seed: int = option(21, "Of the clips."),
    faces: int = option(100, "People; 0: no such part.", min=0, max=100),
    ultraface: str = option("", "The detector's ONNX file or folder."),
) -> int:
    """What leaves a camera with a mask: faces that stay, by two other detectors, too."""
    from bench.cameras.mask import MASK, MaskPlan

    plan = MaskPlan(frames, seed=seed, faces=faces, ultraface=ultraface)
    return tell.run(MASK, plan)


def guard(
    tell: Told,
    seconds: int = option(7200, "Of each room's day.", min=120),
    seeds: str = option("31,32", "Of the rooms, with commas."),
    warm_up: int = option(225, "Frames that are learned.", min=16),
    ultraface: str = option("", "The detector's ONNX file or folder."),
) -> int:
    """What a guard takes for strange: false alarms of a day, and 19 ways to spoil a picture."""
    from bench.cameras.guard import GUARD, GuardPlan

    plan = GuardPlan(seconds, tuple(numbers_of(seeds, "--seeds")), warm_up, ultraface)
    return tell.run(GUARD, plan)


def cameras(
    tell: Told,
    frames: int = option(300, "That the camera sends for each way.", min=90),
    rounds: Rounds = 1,
    protocols: str = option("udp,rtsp", "udp, rtsp."),
    core: bool = option(False, "Instead: frames/s a core, by what edges send it."),
    ultraface: str = option("", "The detector's ONNX file or folder."),
) -> int:
    """How old a camera's frame is at its result, beside an OpenCV loop in one process."""
    from bench.cameras.cameras import CAMERAS, CamerasPlan
    from bench.cameras.core_cameras import CORE, CorePlan

    if core:
        return tell.run(CORE, CorePlan(rounds=rounds, ultraface=ultraface))
    names = tuple(known_words(protocols, ("udp", "rtsp")))
    plan = CamerasPlan(frames, rounds, names, ultraface=ultraface)
    return tell.run(CAMERAS, plan)


def _targets() -> tuple[Target, ...]:
    from bench.cameras.targets import TARGETS

    return TARGETS


FEATURE = Feature((gate, crops, mask, guard, cameras), _targets)
