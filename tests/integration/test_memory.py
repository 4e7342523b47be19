"""What a node has loaded lies in huge pages, and answers as before."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from meshes import add_model, digits, split_digits

from nodes.life.hugepages import collapse_memory
from nodes.local.mesh import local_mesh

pytestmark = [pytest.mark.integration, pytest.mark.processes]


def resident(pid: int) -> dict[str, int]:
    """Bytes by kind."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    return {name: int(rest.split()[0]) << 10 for name, rest in (line.split(":") for line in lines)}


@contextlib.contextmanager
def no_huge_pages() -> Iterator[None]:
    """For processes that are started meanwhile: the setting is inherited."""
    pr_set_thp_disable = 41
    assert ctypes.CDLL(None).prctl(pr_set_thp_disable, 1, 0, 0, 0) == 0
    try:
        yield
    finally:
        ctypes.CDLL(None).prctl(pr_set_thp_disable, 0, 0, 0, 0)


async def test_what_a_node_has_loaded_is_in_huge_pages_when_it_is_ready() -> None:
    if collapse_memory() == 0:
        pytest.skip("this system gives no huge pages to who asks for them")
    images, logits = digits()
    async with local_mesh() as local:
        nodes = await add_model(local, split_digits(), "shard-1", "shard-2", "shard-3")
        for node in nodes:
            assert resident(node.pid)["AnonHugePages"] >= 8 << 20
        with no_huge_pages():
            plain = local.start("shard-1", "digits")
        await local.ready(20.0)
        assert resident(plain.pid)["AnonHugePages"] == 0
        assert resident(nodes[0].pid)["Rss"] - resident(plain.pid)["Rss"] < 16 << 20
        result = await local.mesh.infer("digits", {"image": images[:1]}, budget=5.0)
        np.testing.assert_allclose(result.outputs["logits"], logits[:1], rtol=1e-4, atol=1e-5)
        assert [node.restarts for node in nodes] == [0, 0, 0]
