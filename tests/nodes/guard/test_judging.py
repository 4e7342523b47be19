"""A guard at a stage: what the hop says, and that no fault of it costs an answer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from support.meshes import split_digits

from nodes.guard.judging import GuardedStage, prepare
from nodes.versions.loaded import Loading
from shards.errors import ArtifactError, InputError
from shards.guard.fit import first_stage, guarded
from shards.guard.told import ToldGuard
from shards.samples import Samples
from shards.zoo import digits_training
from swarm.wire.hops import pack_hop, unpack_hops
from swarm.wire.messages import Result

HOP = {"stage": 1, "node": "n", "queue_us": 1, "compute_us": 1, "batch": 1}


def judging(refuse: bool = False) -> tuple[GuardedStage, Any]:
    result, (train, _) = split_digits(stages=2), digits_training()
    manifest, reference = guarded(
        result.manifest, result.files.__getitem__, Samples({"image": train}), refuse=refuse
    )
    told = ToldGuard.of(manifest.parts["guard"])
    return GuardedStage("digits", "1", told, reference), first_stage(
        manifest, result.files.__getitem__
    )


def look(made: GuardedStage, run: Any, images: np.ndarray) -> dict[str, Any]:
    tensors = run({"image": images})
    sent = {name: each for name, each in tensors.items() if name != "image"}
    return made.looked({"image": images}, sent)


@pytest.mark.parametrize("rows", [1, 3, 32, 33, 500])
def test_a_hop_names_rows_as_far_as_it_has_room_and_travels_packed(rows: int) -> None:
    made, run = judging()
    images = np.repeat(digits_training()[0][:1], rows + 1, axis=0)
    images[1:] = 1 - images[1:]
    said = look(made, run, images)
    (hop,) = unpack_hops(pack_hop({**HOP, **said}))
    result = Result("r", hops=(hop,))
    assert result.unfamiliarity == said["unfamiliarity"] > 1
    named = result.unfamiliar_rows.split(",")
    assert named[:3] == [str(row) for row in range(1, rows + 1)][:3]
    assert (named[-1] == "…") == (rows > 32)
    assert (
        made.status()["guards"][0] | {"rows": rows + 1, "unfamiliar": rows}
        == made.status()["guards"][0]
    )


def test_a_request_that_cannot_be_judged_is_answered_and_counted() -> None:
    made, run = judging()
    images = digits_training()[0][:1]
    assert made.looked({"image": images}, {}) == {}, "a tensor is missing"
    assert look(made, run, images)["unfamiliarity"] <= 1
    [row] = made.status()["guards"]
    assert (row["failed"], row["rows"]) == (1, 1)


@pytest.mark.parametrize("value", [np.nan, np.inf, 3e38])
def test_a_refusal_names_the_input_and_its_row(value: float) -> None:
    made, run = judging(refuse=True)
    images = digits_training()[0][:2].copy()
    assert "unfamiliarity" in look(made, run, images)
    images[1, 0, 0, 0] = value
    with pytest.raises(InputError, match=r"'image'.*row 1"):
        look(made, run, images)


async def test_a_node_refuses_a_version_whose_reference_is_not_the_manifests() -> None:
    result, (train, _) = split_digits(stages=2), digits_training()
    manifest, reference = guarded(
        result.manifest, result.files.__getitem__, Samples({"image": train})
    )
    info = SimpleNamespace(model="digits", version="1")
    data = reference.to_bytes()
    loading = SimpleNamespace(manifest=manifest, info=info, fetch=lambda name: data)
    assert isinstance(await prepare(cast(Loading, loading)), GuardedStage)
    loading.fetch = lambda name: data[:-1] + b"x"
    with pytest.raises(ArtifactError, match="SHA-256"):
        await prepare(cast(Loading, loading))


@pytest.mark.parametrize(
    "extra",
    [
        {},
        {"unfamiliarity": "far"},
        {"unfamiliarity": float("nan")},
        {"unfamiliarity": float("inf")},
        {"unfamiliarity": -1},
        {"unfamiliarity": [1], "unfamiliar_rows": 7},
    ],
)
def test_what_a_stranger_says_in_a_hop_is_read_within_bounds(extra: dict[str, Any]) -> None:
    result = Result.decode(b"".join(Result("r", "m", "1").parts()))
    doc = {**HOP, **extra}
    result.hops = tuple(unpack_hops(pack_hop(doc)))
    assert (result.unfamiliarity, result.unfamiliar_rows) == (0.0, "")
