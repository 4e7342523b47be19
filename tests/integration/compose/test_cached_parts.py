"""A part whose answers its node keeps, in a mesh of real nodes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.compositions import composed_mesh
from support.meshes import close, digits

pytestmark = [
    pytest.mark.integration,
    pytest.mark.processes,
    pytest.mark.asyncio(loop_scope="session"),
]
TWO_VIEWS = """
[inputs]
images = { datatype = "FP32", shape = [-1, 1, 8, 8] }

[[part]]
name = "each"
map = "large"
inputs = { image = "images" }
most = 8
cache = { bytes = "1MB", age_s = 600 }

[[part]]
name = "first"
select = { of = "images", stop = 1 }

[[part]]
name = "one"
model = "small"
inputs = { image = "first.selected" }
cache = { bytes = "1MB", age_s = 600 }

[outputs]
logits = "each.logits"
one = "one.logits"
"""


async def test_rows_that_were_asked_before_are_not_asked_again(tmp_path: Path) -> None:
    images, expected = digits()
    async with composed_mesh(tmp_path, TWO_VIEWS) as local:
        for places, kept in (([0, 1], 0), ([1, 2, 0], 2), ([1, 0, 2], 3)):
            answer = await local.mesh.infer("cascade", {"images": images[places]}, 20.0)
            assert close(answer.outputs["logits"], expected[places])
            (hop,) = answer.hops
            assert hop.extra["cached"]["each"]["rows"] == kept
            assert hop.extra["cached"]["each"]["of"] == len(places)
        assert hop.extra["cached"]["one"]["rows"] == 1
        assert np.array_equal(
            answer.outputs["one"],
            (await local.mesh.infer("small", {"image": images[1:2]}, 20.0)).outputs["logits"],
        )
        assert answer.cached_ms is None  # it was run, though some of its parts were not
        session = await local.mesh.infer("cascade", {"images": images[:2]}, 20.0, "mine")
        assert "cached" not in session.hops[0].extra
