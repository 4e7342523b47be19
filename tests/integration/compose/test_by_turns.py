"""What kept answers and an index save, by turns with the same model without: figures, no promise of
the clock. `pytest -m benchmark -n 0 -s`."""

from __future__ import annotations

import statistics
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from composed import cache_first, gallery
from support.compositions import compose, composed_mesh
from support.meshes import READY, add_model, digits, mesh_of, split_digits

import swarm
from shards.compose.nearest import made_index

pytestmark = [pytest.mark.benchmark, pytest.mark.processes]
IMAGES, LOGITS = digits()
KNOWN = 120


async def timed(
    mesh: swarm.Mesh, model: str, place: int, took: dict[str, list[float]]
) -> swarm.Result:
    began = time.perf_counter()
    result = await mesh.infer(model, {"image": IMAGES[place : place + 1]}, 20.0)
    took.setdefault(model, []).append((time.perf_counter() - began) * 1e3)
    return result


async def test_kept_answers_by_turns() -> None:
    plain = split_digits(stages=2)
    parts = {**plain.manifest.parts, "cache": {"bytes": 1 << 20, "age_s": 600.0}}
    cached = replace(plain, manifest=replace(plain.manifest, parts=parts))
    named = replace(plain, manifest=replace(plain.manifest, model="plain"))
    places = np.minimum(np.random.default_rng(0).zipf(1.3, 1000) - 1, len(IMAGES) - 1)
    took: dict[str, list[float]] = {}
    hits: list[bool] = []
    async with mesh_of(cached, "shard-1", "shard-2") as local:
        await add_model(local, named, "shard-1", "shard-2")
        for place in places:
            await timed(local.mesh, "plain", place, took)
            answer = await timed(local.mesh, "digits", place, took)
            hits.append(answer.cached_ms is not None)
    of_hits = [ms for ms, hit in zip(took["digits"], hits, strict=True) if hit]
    share, plainly = sum(hits) / len(hits), statistics.median(took["plain"])
    ratio = statistics.median(of_hits) / plainly
    print(f"\nhits {share:.3f}; p50 of a hit {ratio:.2f} of the plain model's {plainly:.2f} ms")
    assert share > 0.7


async def test_cache_first_retrieval_by_turns(tmp_path: Path) -> None:
    (tmp_path / "gallery").mkdir()
    made_index(gallery(tmp_path, KNOWN), "l2sq", tmp_path / "gallery")
    bounds = {"never": "-1.0", "same": "1e-5", "near": "60.0", "always": "1e9"}
    places = np.random.default_rng(0).integers(0, len(IMAGES), 300)
    took: dict[str, list[float]] = {}
    hits, right = dict.fromkeys(bounds, 0), dict.fromkeys(bounds, 0)
    async with composed_mesh(tmp_path) as local:
        for name, bound in bounds.items():
            await compose(local, tmp_path, cache_first(bound), name)
            local.start("shard-1", name)
        await local.ready(READY)
        for place in places:
            for name in bounds:
                answer = await timed(local.mesh, name, place, took)
                hits[name] += "large" not in answer.hops[0].extra["parts"]
                right[name] += int(answer.outputs["logits"].argmax() == LOGITS[place].argmax())
    never = statistics.median(took["never"])
    for name, bound in bounds.items():
        ratio = statistics.median(took[name]) / never
        print(
            f"\nbelow {bound}: hits {hits[name] / 300:.3f}, p50 {ratio:.2f} of {never:.2f} ms, "
            f"the large model's label {right[name] / 300:.3f}"
        )
    assert hits["never"] == 0
    assert hits["same"] < hits["near"] < hits["always"] == 300
    assert right["never"] == right["same"] == 300
