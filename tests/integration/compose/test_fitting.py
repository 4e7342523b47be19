"""A threshold is fitted with the models of a mesh of real nodes, and the fitted file is built."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio
from support.commands import said
from support.meshes import LOOPBACK, add_model, mesh_of, split_digits

from nodes.up.mesh import LocalMesh
from shards.compose.composition import from_toml
from shards.split.split import split
from shards.zoo import digits_heldout, digits_lite_model

pytestmark = [
    pytest.mark.integration,
    pytest.mark.processes,
    pytest.mark.asyncio(loop_scope="session"),
]

CASCADE = """
[inputs]
image = { datatype = "FP32", shape = [1, 1, 8, 8] }
[[part]]
name = "small"
model = "lite"
inputs = { image = "image" }
[[part]]
name = "large"
model = "digits"
inputs = { image = "image" }
[[part]]
name = "label"
choose = { by = "small.logits", measure = "margin", below = 4 }  # a guess
then = "large"
otherwise = "small"
[outputs]
logits = "label.logits"
"""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def local() -> AsyncIterator[LocalMesh]:
    async with mesh_of(split_digits(stages=1), "shard-1") as made:
        lite = split(digits_lite_model(), name="lite", stages=1, bandwidth=LOOPBACK)
        await add_model(made, lite, "shard-1")
        yield made


async def fitted(local: LocalMesh, folder: Path, *arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output, standard error."""
    file, samples = folder / "cascade.toml", folder / "held.npz"
    if not file.exists():
        images, labels = digits_heldout()
        file.write_text(CASCADE)
        np.savez(samples, image=images, labels=labels)
        np.savez(folder / "unlabelled.npz", image=images)
    told = await asyncio.to_thread(
        said,
        *("compose", "fit", str(file), "--samples", str(samples)),
        *("--nats", local.url, "--mesh", local.name, *arguments),
    )
    return told.code, told.stdout, told.stderr


async def test_the_cheapest_threshold_of_an_accuracy_is_written(
    local: LocalMesh, tmp_path: Path
) -> None:
    output = tmp_path / "fitted.toml"
    code, text, errors = await fitted(
        local, tmp_path, "--accuracy", "0.975", "--json", "-o", str(output)
    )
    assert code == 0, errors
    told = json.loads(text)
    assert told["models"] == {"small": "lite@1", "large": "digits@1"}
    assert told["samples"] == {"fitted_on": 378, "held_out": 162}
    chosen, held = told["chosen"], told["held_out"]
    assert chosen["accuracy"] >= 0.975
    assert 0 < chosen["share"] < 0.2, "few samples need the large model"
    assert held["low"] <= held["accuracy"] <= held["high"]
    assert told["ways"]["small"]["accuracy"] < 0.975 < told["ways"]["large"]["accuracy"]
    before, after = from_toml(CASCADE), from_toml(output.read_text())
    assert after.parts["label"] != before.parts["label"]
    assert "# a guess" in output.read_text()
    # It is built as any other.
    built = await asyncio.to_thread(
        said,
        *("compose", "build", str(output), "-o", str(tmp_path / "built")),
        *("--nats", local.url, "--mesh", local.name),
    )
    assert built.code == 0, built.stderr


async def test_a_target_that_cannot_be_met_writes_nothing_and_tells_the_best(
    local: LocalMesh, tmp_path: Path
) -> None:
    output = tmp_path / "fitted.toml"
    for target in (("--accuracy", "1"), ("--cost", "0.001ms")):
        code, _, errors = await fitted(local, tmp_path, *target, "-o", str(output))
        assert code != 0
        assert "the best is" in errors
        assert not output.exists()


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ((), "one of --accuracy 0.97 and --cost"),
        (("--accuracy", "0.9", "--cost", "1ms"), "one of --accuracy 0.97 and --cost"),
        (("--accuracy", "0.9", "--part", "small"), "there are label"),
        (("--accuracy", "0.9", "--judge", "label"), "there are logits"),
        (("--accuracy", "0.9", "--samples", "unlabelled.npz"), "no array 'labels'"),
        (("--accuracy", "0.9", "-o", "no/such/folder.toml"), "no such folder"),
        (("--accuracy", "0.9", "-o", "cascade.toml"), "is there already"),
    ],
)
async def test_what_cannot_be_fitted_is_refused_with_the_remedy(
    local: LocalMesh, tmp_path: Path, arguments: tuple[str, ...], why: str
) -> None:
    files = (".npz", ".toml")
    placed = [str(tmp_path / word) if word.endswith(files) else word for word in arguments]
    code, _, errors = await fitted(local, tmp_path, *placed)
    assert code != 0
    assert why in " ".join(errors.split())
