"""A composition in a mesh of real nodes: declared, pushed, asked, and its node killed."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio
from composed import second
from support.commands import said
from support.compositions import compose
from support.meshes import add_model, close, digits, mesh_of, split_digits

from nodes.up.mesh import LocalMesh
from swarm.errors import InvalidArgument

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
model = "second@1"
inputs = { image = "image" }

[[part]]
name = "large"
model = "digits"
inputs = { image = "image" }

[[part]]
name = "label"
choose = { by = "small.logits", measure = "margin", below = 4 }
then = "large"
otherwise = "small"

[outputs]
logits = "label.logits"
chosen = "label.logits"
"""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def local(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalMesh]:
    """Two models, and two nodes that serve the cascade of them."""
    async with mesh_of(split_digits(stages=2), "shard-1", "shard-2") as made:
        await add_model(made, second(), "shard-1")
        folder = tmp_path_factory.mktemp("cascade")
        await compose(made, folder, CASCADE)
        for _ in range(2):
            made.start("shard-1", "cascade")
        await made.ready(60.0)
        yield made


async def test_a_cascade_answers_as_its_models_do(local: LocalMesh) -> None:
    images, expected = digits()
    asked: set[frozenset[str]] = set()
    for image, logits in zip(images[:40], expected[:40], strict=True):
        answer = await local.mesh.infer("cascade", {"image": image[None]}, 5.0)
        assert close(answer.outputs["logits"], logits[None])
        assert list(answer.outputs) == ["logits", "chosen"], "in the order of the version"
        (hop,) = answer.hops
        parts = set(hop.extra["parts"])
        two = np.partition(logits, -2)[-2:]
        assert parts == {"label", "small"} | ({"large"} if two[1] - two[0] < 4 else set())
        asked.add(frozenset(parts))
    assert len(asked) == 2, "some are sure, and some are not"


async def test_what_the_composition_does_not_take_is_refused(local: LocalMesh) -> None:
    with pytest.raises(InvalidArgument, match="image"):
        await local.mesh.infer("cascade", {"image": np.zeros((1, 1, 9, 9), np.float32)}, 5.0)


async def test_a_killed_node_of_a_composition_loses_no_request(local: LocalMesh) -> None:
    images, expected = digits()
    victim = next(n for n in local.supervisor.nodes if "cascade" in n.arguments)

    async def ask(number: int) -> bool:
        place = number % len(images)
        answer = await local.mesh.infer("cascade", {"image": images[place][None]}, 20.0)
        return close(answer.outputs["logits"], expected[place][None])

    asked = []
    for number in range(300):
        asked.append(asyncio.create_task(ask(number)))
        if number == 100:
            assert victim.process is not None
            victim.process.send_signal(signal.SIGKILL)
        await asyncio.sleep(0.005)  # the pace of the requests
    assert all(await asyncio.gather(*asked))


async def test_check_names_the_part_that_does_not_fit(local: LocalMesh, tmp_path: Path) -> None:
    file = tmp_path / "wrong.toml"
    file.write_text(CASCADE.replace("[1, 1, 8, 8]", "[1, 1, 9, 9]"))
    told = await asyncio.to_thread(
        said, "compose", "check", str(file), "--nats", local.url, "--mesh", local.name
    )
    assert told.code != 0
    assert f"{file}:6: part 'small'" in told.stderr
    file.write_text(CASCADE.replace("second@1", "second@7"))
    told = await asyncio.to_thread(
        said, "compose", "check", str(file), "--nats", local.url, "--mesh", local.name
    )
    assert told.code != 0
    assert f"{file}:6: part 'small'" in told.stderr
    assert "second" in told.stderr
    file.write_text(CASCADE)
    told = await asyncio.to_thread(
        said,
        *("compose", "check", str(file), "--nats", local.url, "--mesh", local.name, "--json"),
    )
    assert json.loads(told.stdout)["outputs"] == dict.fromkeys(("logits", "chosen"), "FP32[?,10]")
