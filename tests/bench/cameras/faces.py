"""The face detector of these benchmarks: UltraFace, whole, in this process."""

from __future__ import annotations

import numpy as np

from bench.rivals.ultraface import ultraface_file
from nodes.cameras.mask.loading import TaskDetector
from shards.cameras.task import Postprocess, Preprocess, Task
from shards.runtimes.ort import OrtRuntime

USUAL = 0.7  # the score from which a detector's users believe it
TASK = Task(
    "detect",
    Preprocess("input", 320, 240, scale=1.0, mean=(127.0,), std=(128.0,)),
    Postprocess("ultraface", ("boxes", "scores"), threshold=USUAL, iou=0.3),
    ("face",),
)


def face_detector(threshold: float = USUAL, file: str = "") -> TaskDetector:
    """Raises `NoModel` where the model is absent."""
    runtime = OrtRuntime(ultraface_file(file).read_bytes())
    return TaskDetector([runtime], TASK, threshold)


def in_pixels(boxes: np.ndarray, image: np.ndarray) -> np.ndarray:
    """float32 [n, 4] of shares as pixels."""
    height, width = image.shape[:2]
    return boxes * np.array([width, height, width, height], np.float32)
