"""A gateway opens its doors once it is ready, tells of them, and closes them before it leaves."""

from __future__ import annotations

import asyncio
import signal
import urllib.request
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from support.commands import node_said
from support.gateways import address, ask, doors, gateway_of
from support.meshes import READY, all_ready, digits, dismiss, mesh_of, split_digits
from support.ports import free_port
from support.triton_clients import triton_loads
from support.waiting import eventually

from nodes.up.mesh import LocalMesh

pytestmark = [
    pytest.mark.integration,
    pytest.mark.processes,
    pytest.mark.asyncio(loop_scope="module"),
]


def figures(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=READY) as answer:
        return str(answer.read().decode())


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def local() -> AsyncIterator[LocalMesh]:
    async with mesh_of(split_digits(stages=1), "shard-1") as local:
        yield local


async def test_a_gateway_tells_where_it_is_asked_and_answers_by_code(local: LocalMesh) -> None:
    node = await gateway_of(local, "--http", "0", "--metrics-port", str(port := free_port()))
    url = address(local, node)
    assert (await asyncio.to_thread(ask, f"{url}/v2/health/ready"))[0] == 200
    code, _, metadata = await asyncio.to_thread(ask, f"{url}/v2/models/digits")
    assert (code, metadata["name"]) == (200, "digits")
    assert (await asyncio.to_thread(ask, f"{url}/v2/models/absent"))[0] == 404

    def counts() -> dict[str, int]:
        return doors(local, node)["http"]["by_code"]

    await eventually(lambda: counts().get("404") == 1 and counts()["200"] >= 2, "they are counted")
    told = await asyncio.to_thread(figures, port)
    assert 'swarm_gateway_requests_total{code="404",door="http"' in told
    assert "swarm_gateway_connections{" in told
    assert await dismiss(local, [node]) == [0]


async def test_a_gateway_that_ends_says_so_answers_on_and_leaves_no_port_open(
    local: LocalMesh,
) -> None:
    node = await gateway_of(local, "--http", "0", "--gateway-settle", "2")
    url = address(local, node)
    node.wanted = False
    node.signal(signal.SIGTERM)

    def answer() -> tuple[int, dict[str, str]]:
        code, headers, _ = ask(f"{url}/v2/health/ready")
        return code, headers

    async def is_draining() -> bool:
        code, headers = await asyncio.to_thread(answer)
        return code == 503 and headers["connection"] == "close"

    await eventually(is_draining, "its readiness is denied")
    assert (await asyncio.to_thread(ask, f"{url}/v2/models/digits"))[0] == 200
    await eventually(lambda: not node.alive, "it leaves", READY)
    with pytest.raises(OSError, match="refused"):
        await asyncio.to_thread(ask, f"{url}/v2/health/live")
    assert await dismiss(local, [node]) == [0]


async def test_clients_of_http_and_of_grpc_do_not_see_a_shard_killed(local: LocalMesh) -> None:
    [shard] = local.supervisor.nodes
    fallback = local.start("fallback", "digits")
    gateway = await gateway_of(local, "--http", "0", "--grpc", "0")
    asked = {
        protocol: address(local, gateway, protocol).removeprefix("http://")
        for protocol in ("http", "grpc")
    }
    images, logits = digits()

    def by_fallback() -> int:
        stages = (local.status_of(fallback) or {"stages": []})["stages"]
        return sum(stage["counters"]["served"] for stage in stages)

    async with triton_loads(
        asked, "digits", ("image", images[:1]), ("logits", logits[:1]), 50.0
    ) as loads:
        shard.signal(signal.SIGKILL)
        assert await local.until(lambda: by_fallback() > 0, READY)
        await all_ready(local)
    for load in loads:
        assert load.asked
        assert load.errors == []
    assert await dismiss(local, [fallback, gateway]) == [0, 0]


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--role", "gateway", "--http", "0.0.0.0:0"], "--gateway-open"),
        (["--role", "gateway", "--http", "0.0.0.0:0", "--gateway-callers", "x"], "--gateway-cert"),
        (["--role", "gateway", "--grpc", "here:port"], "no place to listen"),
        (["--role", "gateway", "--http", "0", "--gateway-cert", "x"], "go together"),
        (["--role", "fallback", "--model", "digits", "--http", "0"], "--role gateway"),
    ],
)
async def test_a_door_that_is_open_by_mistake_is_refused(flags: list[str], says: str) -> None:
    done = await asyncio.to_thread(node_said, *flags)
    assert done.code == 2
    assert says in done.stderr
