"""A trained detector on real pictures: inside the graph or outside, one file of a face or many."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from shard_graphs import chained
from skimage import data, transform

from shards.cameras import Detections, Task
from shards.cameras.wish import Wish
from shards.split.split import split

ROOT = Path(os.environ.get("SWARM_TEST_MODELS", Path(__file__).parents[4] / "shared/models"))
MODEL = ROOT / "ultraface" / "version-RFB-320.onnx"

pytestmark = pytest.mark.skipif(
    not MODEL.exists(), reason=f"{MODEL} is absent (SWARM_TEST_MODELS names the models' folder)"
)


def group() -> np.ndarray:
    """Sixteen faces, 128 pixels each, on one picture of 512 x 512."""
    faces = data.lfw_subset()[:16]
    large = [transform.resize(face, (128, 128)) for face in faces]
    rows = [np.concatenate(large[i : i + 4], axis=1) for i in range(0, 16, 4)]
    gray = (np.concatenate(rows) * 255).astype(np.uint8)
    return np.repeat(gray[:, :, None], 3, axis=2)


PICTURES = {
    "astronaut": data.astronaut(),
    "astronaut, small": data.astronaut()[::2, ::2],
    "astronaut, mirrored": data.astronaut()[:, ::-1],
    "group": group(),
    "coffee": data.coffee(),
    "cat": data.chelsea(),
    "rocket": data.rocket(),
}


def test_it_finds_the_same_faces_to_the_bit_inside_the_graph_and_outside_and_split() -> None:
    made = [
        split(MODEL, name="u", stages=stages, profile=False, addition=Wish("detect", bake=bake))
        for bake, stages in ((False, 1), (True, 1), (True, 3))
    ]
    tasks = [Task.of(result.manifest.parts.get("task")) for result in made]
    assert [task.postprocess.decode for task in tasks] == ["ultraface"] * 3
    assert [task.baked for task in tasks] == [False, True, True]
    counts = {}
    for name, image in PICTURES.items():
        found = []
        for result, task in zip(made, tasks, strict=True):
            for level in ("basic", "all"):
                outputs = chained(result, task.prepare(image), level, bare=True)
                read = task.read(outputs, image.shape)
                assert isinstance(read, Detections)
                found.append(read)
        counts[name] = len(found[0])
        for other in found[::2]:
            np.testing.assert_array_equal(found[0].boxes, other.boxes)
            np.testing.assert_array_equal(found[0].scores, other.scores)
        # Full optimisation rounds the network itself in another way, wherever it is cut.
        for other in found[1::2]:
            np.testing.assert_allclose(found[0].boxes, other.boxes, atol=1e-6)
            np.testing.assert_allclose(found[0].scores, other.scores, atol=1e-6)
    assert counts["astronaut"] == counts["astronaut, mirrored"] == 1
    assert counts["group"] >= 8
    assert 0 in counts.values()
