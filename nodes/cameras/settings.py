"""The settings of an edge with cameras."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from nodes.settings import check, setting, tuning
from swarm.errors import InvalidArgument
from swarm.subjects import token

camera = partial(setting, "camera")


@dataclass(frozen=True)
class CameraOptions:
    """Raises `InvalidArgument`."""

    view: str = camera(
        "",
        "Show what the cameras see, with results and ages, on a page: PORT, or ADDRESS:PORT of "
        "this machine itself (127.0.0.1:8090). Frames that --mask holds back are not shown.",
    )
    save: str = camera(
        "", "Write the drawn frames to this video file; one for each camera: NAME-CAMERA.mp4."
    )
    show: bool = camera(False, "Show the drawn frames in a window of this machine's display.")
    gate: str = camera(
        "off",
        "Skip frames that show nothing new: the last result stands for them, with its age. "
        "ssim-min, block, thumbnail or phash; a number behind a colon is the threshold: "
        "ssim-min:0.3.",
    )
    mask: str = camera(
        "off",
        "Fill regions of each frame before anything is made of it: an ONNX file, or NAME[@VERSION] "
        "of a detector in the mesh, which runs on this device. Without the detector nothing "
        "leaves. Features are the picture: without --mask they can tell who is in it.",
    )
    guard: str = camera(
        "off",
        "ood: learn what this camera's pictures are like, then tell of others. Needs a model with "
        "edge layers.",
    )
    most_skipped: int = tuning(10, "edge: frames in a row that --gate may skip.", least=0)
    gate_oldest: float = tuning(
        1000.0, "edge: milliseconds that a result may stand for others.", unit="ms", least=0
    )
    mask_threshold: float = tuning(
        0.3, "edge: the least score of what --mask fills.", least=0.01, most=1
    )
    mask_margin: float = tuning(
        0.25,
        "edge: what --mask fills around each box, as a share of its width and height.",
        least=0,
        most=10,
    )
    mask_frames: int = tuning(
        5,
        "edge: frames whose boxes --mask fills together, the newest among them.",
        least=1,
        most=300,
    )
    mask_within: float = tuning(
        1000.0,
        "edge: milliseconds that the detector of --mask has for a frame; a later one is withheld.",
        unit="ms",
        least=1,
    )
    mask_proof: str = tuning(
        "",
        "edge: a picture in which the detector of --mask must find something, to be believed when "
        "it finds nothing; empty: a drawn face.",
    )
    guard_action: str = tuning(
        "flag",
        "edge: while alarmed. flag: results say so. drop: nothing leaves, as always with --mask. "
        "whole: no frame is skipped, no lighter model's answer taken. review: a person gets the "
        "picture, on swarm.<mesh>.review.<node>.",
        one_of=("flag", "drop", "whole", "review"),
    )
    guard_warm_up: int = tuning(225, "edge: frames that --guard is fitted to.", least=16)
    guard_file: str = tuning(
        "",
        "edge: signed file of what --guard has learned, for one camera: read at the start, written "
        "after the warm-up. Needs --identity or --state-dir.",
    )
    crops: str = tuning(
        "",
        "edge: NAME[@VERSION] of a model in the mesh that is asked about each object that was "
        "found, by its crop; an object that looks as before keeps its answer.",
    )
    crops_most: int = tuning(
        8, "edge: objects of a frame that --crops asks about.", least=1, most=64
    )
    crops_alike: float = tuning(
        0.95,
        "edge: the least similarity (SSIM) with which an object keeps its answer.",
        least=0,
        most=1,
    )
    crops_oldest: float = tuning(
        10_000.0, "edge: milliseconds that an object may keep its answer.", unit="ms", least=0
    )
    explain: bool = tuning(
        False, "edge: show where a frame's milliseconds went, each second, on standard error."
    )

    def __post_init__(self) -> None:
        check(self)

    @property
    def masks(self) -> bool:
        return self.mask not in ("", "off")


MOST_EDGES = 16


@dataclass(frozen=True)
class JoinOptions:
    """within, wait: seconds. Raises `InvalidArgument`."""

    of: str = tuning(
        "", "join: names of edges' results (their --sink), separated by commas; in this order."
    )
    within: float = tuning(
        50.0,
        "join: milliseconds between two captures that show one moment.",
        unit="ms",
        least=0,
    )
    wait: float = tuning(
        200.0,
        "join: milliseconds that a result waits for the others; then it goes on without them.",
        unit="ms",
        least=1,
    )
    match: str = tuning(
        "",
        "join: match boxes of detectors, and ask no fusion model. class: by class and time. "
        "FILE.json: by where they stand on a plane that all edges see, which the file tells.",
    )

    def __post_init__(self) -> None:
        check(self)
        for edge in self.edges:
            token(edge, "result name (--of NAME,NAME)")
        if self.of and not 2 <= len(set(self.edges)) == len(self.edges) <= MOST_EDGES:
            raise InvalidArgument(
                f"--of {self.of}: it is 2 to {MOST_EDGES} different names, separated by commas"
            )

    @property
    def edges(self) -> tuple[str, ...]:
        return tuple(each for each in self.of.split(",") if each)
