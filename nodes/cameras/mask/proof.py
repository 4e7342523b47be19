"""A picture in which the detector must find something: the proof that it still finds anything.

A detector that answers "nothing" may be right, or broken: the answer alone does not tell. The face
here is drawn, of nobody.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from swarm.errors import InvalidArgument

SIZE = (240, 320)  # height, width
FACE = (0.36, 0.25, 0.64, 0.75)  # left, top, right, bottom of the drawn face, as shares
LEAST_COVERED = 0.3  # overlap of a box with the drawn face, over their union


def drawn_face() -> np.ndarray:
    """uint8 [240, 320, 3], RGB."""
    import cv2

    image = np.full((*SIZE, 3), (90, 110, 130), np.uint8)
    center, r = (160, 120), 50
    skin, hair, lips = (224, 172, 140), (60, 40, 30), (170, 70, 70)
    x, y = center

    def oval(at: tuple[float, float], size: tuple[float, float], color: tuple[int, ...]) -> None:
        middle, axes = (round(at[0]), round(at[1])), (round(size[0]), round(size[1]))
        cv2.ellipse(image, middle, axes, 0, 0, 360, color, -1, cv2.LINE_AA)

    oval((x, y - r * 0.25), (r * 0.95, r * 1.15), hair)
    cv2.rectangle(image, (x - 18, y + 40), (x + 18, y + 80), (190, 146, 119), -1)
    oval(center, (r * 0.8, r * 1.1), skin)
    for side in (-1, 1):
        eye = (x + side * r * 0.33, y - r * 0.15)
        oval(eye, (r * 0.17, r * 0.09), (245, 245, 245))
        oval(eye, (r * 0.08, r * 0.08), (40, 25, 20))
        oval((eye[0], eye[1] - r * 0.22), (r * 0.22, r * 0.05), hair)
    oval((x, y + r * 0.27), (r * 0.13, r * 0.06), (157, 120, 98))
    oval((x, y + r * 0.55), (r * 0.3, r * 0.1), lips)
    return cv2.GaussianBlur(image, (0, 0), 1.0)


class MaskProof:
    """image: uint8 [height, width, 3], RGB. place: where something is to be found, as shares; None
    for anywhere."""

    def __init__(self, image: np.ndarray, place: tuple[float, ...] | None) -> None:
        self.image = image
        self.place = place

    @classmethod
    def of(cls, path: str = "") -> MaskProof:
        """The picture in a file; "" is the drawn face. Raises `InvalidArgument`."""
        if not path:
            return cls(drawn_face(), FACE)
        import cv2

        try:
            data = np.frombuffer(Path(path).read_bytes(), np.uint8)
        except OSError as error:
            raise InvalidArgument(f"--mask-proof: {error}") from None
        image = cv2.imdecode(data, cv2.IMREAD_COLOR) if len(data) else None
        if image is None:
            raise InvalidArgument(f"--mask-proof {path}: no picture that can be read")
        return cls(cv2.cvtColor(image, cv2.COLOR_BGR2RGB), None)

    def is_shown_by(self, boxes: np.ndarray) -> bool:
        """Whether the detector finds, by its boxes of the picture, float64 [n, 4]."""
        if self.place is None:
            return len(boxes) > 0
        return any(_overlap(box, np.asarray(self.place)) >= LEAST_COVERED for box in boxes)


def _overlap(one: np.ndarray, two: np.ndarray) -> float:
    sides = np.minimum(one[2:], two[2:]) - np.maximum(one[:2], two[:2])
    both = float(np.prod(np.maximum(sides, 0.0)))
    areas = float(np.prod(one[2:] - one[:2]) + np.prod(two[2:] - two[:2])) - both
    return both / areas if areas > 0 else 0.0
