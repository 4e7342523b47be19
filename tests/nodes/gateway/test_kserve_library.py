"""KServe's SDK drives the gateway unmodified, in an environment of its own."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from support.foreign_library import python_with, run
from support.gateways import address, gateway_of
from support.meshes import close, digits, mesh_of, split_digits

pytestmark = [
    pytest.mark.integration,
    pytest.mark.processes,
    pytest.mark.benchmark,
    pytest.mark.asyncio,
]

CLIENT = Path(__file__).with_name("kserve_client.py")
LIBRARY = "kserve>=0.15,<1"  # its client alone: servers are extras


async def test_kserves_sdk_asks_by_json_by_bytes_and_by_grpc(tmp_path: Path) -> None:
    python = await python_with(LIBRARY, tmp_path)
    images, logits = digits()
    np.savez(tmp_path / "inputs.npz", image=images[:1])
    async with mesh_of(split_digits(stages=1), "shard-1") as local:
        node = await gateway_of(local, "--http", "0", "--grpc", "0")
        where = [address(local, node), address(local, node, "grpc"), "digits"]
        code, out, err = await run(python, str(CLIENT), *where, str(tmp_path / "inputs.npz"))
    assert code == 0, err
    report = json.loads(out.splitlines()[-1])
    assert report["health"] == [True] * 6
    for way in ("json", "binary", "grpc"):
        assert close(np.array([report[way]], np.float32), logits[:1]), way
    assert "404 Not Found" in report["refused"]
