"""A real detector: split at any number of stages, it finds the same face."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from shard_graphs import chained, same, whole
from skimage import data, transform

from shards.split.split import split

ROOT = Path(os.environ.get("SWARM_TEST_MODELS", Path(__file__).parents[3] / "shared/models"))
MODEL = ROOT / "ultraface" / "version-RFB-320.onnx"

# Read off the picture by eye, in its 512 x 512 pixels: both eyes and the mouth; the head with its
# hair, from the left, top, right to the chin.
LANDMARKS = ((203, 101), (246, 103), (225, 146))
HEAD = (153, 15, 302, 185)

pytestmark = pytest.mark.skipif(
    not MODEL.exists(), reason=f"{MODEL} is absent (SWARM_TEST_MODELS names the models' folder)"
)


@pytest.fixture(scope="module")
def picture() -> np.ndarray:
    """scikit-image's bundled astronaut, as the detector wants it: [1,3,240,320], -1..1."""
    pixels = transform.resize(data.astronaut(), (240, 320), anti_aliasing=True) * 255
    return ((pixels - 127) / 128).transpose(2, 0, 1)[None].astype(np.float32)


def faces(outputs: dict[str, np.ndarray]) -> np.ndarray:
    """Boxes (left, top, right, bottom; 0..1) above 0.7, the best of each overlapping group."""
    scores, boxes = outputs["scores"][0, :, 1], outputs["boxes"][0]
    found: list[np.ndarray] = []
    for index in np.argsort(-scores):
        if scores[index] < 0.7:
            break
        if all(_overlap(boxes[index], box) < 0.3 for box in found):
            found.append(boxes[index])
    return np.array(found)


def _overlap(one: np.ndarray, two: np.ndarray) -> float:
    low, high = np.maximum(one[:2], two[:2]), np.minimum(one[2:], two[2:])
    both = float(np.prod(np.clip(high - low, 0, None)))
    return both / (float(np.prod(one[2:] - one[:2]) + np.prod(two[2:] - two[:2])) - both)


@pytest.mark.parametrize("stages", [1, 3])
def test_the_split_detector_finds_the_astronauts_face(stages: int, picture: np.ndarray) -> None:
    feeds = {"input": picture}
    result = split(MODEL, name="ultraface", stages=stages)
    assert result.manifest.stages == stages
    got = chained(result, feeds, "all")
    expected = whole(MODEL.read_bytes(), feeds, "all")
    (face,) = faces(got)
    np.testing.assert_allclose(face, faces(expected)[0], atol=1e-4)
    left, top, right, bottom = face * 512
    for across, down in LANDMARKS:
        assert left < across < right
        assert top < down < bottom
    assert HEAD[0] < left
    assert HEAD[1] < top
    assert right < HEAD[2]
    assert bottom < HEAD[3]


def test_an_edge_and_two_stages_compute_the_same_as_the_whole(picture: np.ndarray) -> None:
    result = split(MODEL, name="ultraface", stages=2, edge_layers=15, profile=False)
    assert [shard.stage for shard in result.manifest.shards] == [0, 1, 2]
    # The initializers are inputs in this file, which keeps the runtime from fusing the original:
    # compare with the same shards run as one.
    one = split(MODEL, name="ultraface", stages=1, profile=False)
    feeds = {"input": picture}
    same(chained(one, feeds), chained(result, feeds))


def test_an_edge_sends_less_than_the_picture_and_never_the_picture(picture: np.ndarray) -> None:
    result = split(MODEL, name="ultraface", stages=2, edge_layers=15, profile=False)
    sent = {spec.name for spec in result.manifest.shard(0).sends}
    assert "input" not in sent
    assert sum(spec.nbytes for spec in result.manifest.shard(0).sends) < picture.nbytes
