"""The text detector and the recogniser that rapidocr has in its package, on a picture that is drawn
here: lines of text, one of them turned."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.cameras.heads.case import Answer, Case, Row

SIDE = 736  # of the picture: rapidocr resizes no picture of this size
LINES = ("Invoice 2026-1127", "Total: 1,284.50 EUR", "swarm mesh", "Turn left at 7")
HEIGHT, LEAST_WIDTH = 48, 320  # of what the recogniser takes


def cases() -> list[Case]:
    return [
        Case(
            "rapidocr: PP-OCR det",
            "detect",
            build_detector,
            {"decode": "db", "size": (SIDE, SIDE)},
            picture=page,
        ),
        *(
            Case(
                f"rapidocr: PP-OCR rec, {text!r}",
                "read",
                build_reader,
                {"size": _size(written(text))},
                picture=partial(written, text),
            )
            for text in LINES
        ),
    ]


def _size(line: np.ndarray) -> tuple[int, int]:
    """As wide as rapidocr makes the recogniser's picture for a line."""
    return max(LEAST_WIDTH, int(HEIGHT * line.shape[1] / line.shape[0])), HEIGHT


def written(text: str) -> np.ndarray:
    """A line, dark on light, 40 pixels high."""
    import cv2

    (width, _), _ = cv2.getTextSize(text, cv2.FONT_HERSHEY_SIMPLEX, 1, 2)
    image = np.full((40, width + 20, 3), 235, np.uint8)
    cv2.putText(image, text, (10, 29), cv2.FONT_HERSHEY_SIMPLEX, 1, (20, 20, 60), 2, cv2.LINE_AA)
    return image


def page() -> np.ndarray:
    """The lines, one below the other, the last one turned by 20 degrees."""
    import cv2

    image = np.full((SIDE, SIDE, 3), 235, np.uint8)
    for at, text in enumerate(LINES[:-1]):
        line = written(text)
        image[80 + 110 * at : 120 + 110 * at, 60 : 60 + line.shape[1]] = line
    line = written(LINES[-1])
    turn = cv2.getRotationMatrix2D((line.shape[1] / 2, 20), 20, 1)
    turn[:, 2] += (250, 520)
    cv2.warpAffine(line, turn, (SIDE, SIDE), image, borderMode=cv2.BORDER_TRANSPARENT)
    return image


def _engine() -> Any:
    from rapidocr import RapidOCR

    return RapidOCR(params={"Global.log_level": "error"})


def build_detector(folder: Path, image: np.ndarray) -> tuple[Path, Answer]:
    engine = _engine()

    def answer(picture: np.ndarray) -> list[Row]:
        pixels = np.ascontiguousarray(picture[..., ::-1])
        engine(pixels, use_cls=False, use_rec=False)  # loads its detector
        # Its detector sorts the boxes, and not their scores: they are taken before that.
        detector = engine.text_det
        values = detector.session(detector.get_preprocess()(pixels))
        boxes, scores = detector.postprocess_op(values, pixels.shape[:2])
        return [
            Row(0, float(score), corners=np.asarray(box, np.float32))
            for box, score in zip(boxes, scores, strict=True)
        ]

    return _file("det"), answer


def build_reader(folder: Path, image: np.ndarray) -> tuple[Path, Answer]:
    from rapidocr.ch_ppocr_rec.typings import TextRecInput

    engine = _engine()

    def answer(picture: np.ndarray) -> list[Row]:
        crop = np.ascontiguousarray(picture[..., ::-1])
        engine(crop, use_det=False, use_cls=False)  # loads its recogniser
        found = engine.text_rec(TextRecInput(img=crop, return_word_box=False))
        return [Row(score=float(found.scores[0]), text=found.txts[0])]

    return _file("rec"), answer


def _file(part: str) -> Path:
    import rapidocr

    found = (Path(rapidocr.__file__).parent / "models").glob(f"*_{part}_*.onnx")
    return sorted(found)[0]
