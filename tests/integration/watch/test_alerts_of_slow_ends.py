"""What ends, falls or fills up slowly is told to whoever is on call: a mesh under rights, with TLS,
beside a real Prometheus and Alertmanager with the files of deploy; one state after the other.
Prints how long each alert took."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path

import pytest
from support.commands import Command, Commands
from support.cut_link import NamespacedNode
from support.link_proxy import LinkProxy
from support.meshes import READY, digits, split_digits
from support.ports import free_port
from support.slow_link import SlowLink, slow_link, unavailable
from support.waiting import eventually
from test_alerts import PROMISED, Pager, delete_lane, monitoring

import swarm
from nodes.access import AccessOptions
from nodes.up.mesh import LocalMesh, local_mesh, push
from nodes.up.supervisor import NodeProcess
from nodes.versions.upkeep import upkeep_by_operator
from swarm.ids import ulid
from swarm.rollout import plan_of
from swarm.rollout.rollouts import roll_out

pytestmark = [
    pytest.mark.integration,
    pytest.mark.processes,
    pytest.mark.weekly,
    pytest.mark.timeout(500),
    pytest.mark.skipif(unavailable() is not None, reason=str(unavailable())),
]

DAY = 86400.0
LOSS = 0.15  # of the packets, each way
ROOM = 192 << 20  # bytes of the disk that all of the mesh lies on
LOSSY_FOR, LOST_FOR = 120.0, 30.0  # `for` of the rules: they wait for what may pass
ENOUGH_PACKETS = 90.0  # seconds in which a node that only gossips sends a thousand

# A build of ONNX Runtime with CUDA, on a machine whose device does not start.
NO_DEVICE = """
import importlib.abc, importlib.util, sys

class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != "onnxruntime":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        run = spec.loader.exec_module

        def exec_module(module):
            run(module)
            there = module.get_available_providers()
            module.get_available_providers = lambda: ["CUDAExecutionProvider", *there]

        spec.loader.exec_module = exec_module
        return spec

sys.meta_path.insert(0, Finder())
"""


@pytest.fixture
def small_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where all temporary folders of this test are made."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={ROOM}", "tmpfs", str(disk)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("a small disk needs the right to mount one")
    monkeypatch.setattr(tempfile, "tempdir", str(disk))
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def fill(disk: Path) -> Path:
    """Leave half a megabyte."""
    path = disk / "filler"
    with path.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, _free(disk) - (512 << 10))
    return path


def _free(disk: Path) -> int:
    told = os.statvfs(disk)
    return told.f_bavail * told.f_frsize


def ends_soon(local: LocalMesh, name: str, role: str, seconds: float) -> AccessOptions:
    """Credentials that end then, and a client's certificate that ends a day before."""
    assert local.rights is not None
    authority = local.rights.authority
    authority.add(name, role, ["digits"], valid=seconds)
    folder = authority.directory / "brief"
    folder.mkdir(mode=0o700, exist_ok=True)
    until = timedelta(seconds=seconds - DAY)
    ca, cert, key = authority.certificates.issue_client(folder, name, until)
    return AccessOptions(
        credentials=str(authority.credentials(name)),
        tls_ca=str(ca),
        tls_cert=str(cert),
        tls_key=str(key),
    )


async def server_ends_soon(local: LocalMesh, *hosts: str) -> None:
    """Another certificate of the server, for ten days."""
    assert local.rights is not None
    assert local.server is not None
    authority = local.rights.authority
    folder = authority.directory / "server"
    authority.certificates.issue_server(folder, hosts, timedelta(days=10))
    await local.server.reload()


def start(
    local: LocalMesh, role: str, access: AccessOptions, *more: str, **where: str
) -> NodeProcess:
    """A node with credentials of its own; where: `namespace` and the `url` that is right there."""
    url = where.get("url", local.url)
    arguments = ["--role", role, "--model", "digits", "--nats", url, "--mesh", local.name]
    arguments += ["--trust", local.trusted, *access.arguments(), *more]
    log = local.logs / f"{role}-{len(local.supervisor.nodes)}.log"
    if "namespace" in where:
        inside = where["namespace"]
        return local.supervisor.add(NamespacedNode(role, arguments, log, namespace=inside))
    return local.supervisor.add(NodeProcess(role, arguments, log))


@asynccontextmanager
async def asked(local: LocalMesh) -> AsyncIterator[swarm.Mesh]:
    """A requester that asks a few times a second."""
    assert local.rights is not None
    images, _ = digits()
    options = local.rights.issue("requester", "digits").options()

    async def ask(mesh: swarm.Mesh) -> None:
        while True:
            with suppress(swarm.SwarmError):  # a canary that is to break its guard may fail
                await mesh.infer("digits", {"image": images[:1]}, 2.0)
            await asyncio.sleep(0.1)

    async with swarm.connect(local.url, local.name, **options) as mesh:
        asking = [asyncio.create_task(ask(mesh)) for _ in range(3)]
        try:
            yield mesh
        finally:
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)


def exporter_of(local: LocalMesh, run: Commands, port: int) -> Command:
    assert local.rights is not None
    access = local.rights.issue("dashboard").arguments()
    words = ["--port", str(port), "--nats", local.url, "--mesh", local.name, *access, "--json"]
    exporter = run.start("nodes.cli.main", "metrics-exporter", *words)
    exporter.ready_line()
    return exporter


async def test_what_ends_soon_falls_back_goes_missing_or_fills_up_is_told(
    small_disk: Path, tmp_path: Path, run: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(NO_DEVICE)
    port = free_port()
    with slow_link(50, round_trip=0.004, loss=LOSS) as link:
        async with local_mesh(secure=True) as local:
            assert local.server is not None
            await server_ends_soon(local, "127.0.0.1", "localhost", link.address)
            for version in ("1", "2"):
                result = split_digits(version)
                await push(local, result.manifest.to_json(), result.files)
            await local.mesh.registry.promote("digits", "1")
            for role in ("shard-2", "fallback"):
                local.start(role, "digits")
            with monkeypatch.context() as patch:
                patch.setenv("PYTHONPATH", str(tmp_path))
                local.start("shard-3", "digits", "--device", "cuda")
            start(local, "shard-1", ends_soon(local, "brief", "shard-1", 12 * DAY))
            await asyncio.to_thread(exporter_of, local, run, port)
            async with LinkProxy(local.server.port, link.address) as proxy:
                await local.ready(READY)
                with monitoring(tmp_path, port) as told:
                    began = time.monotonic()
                    lossy = start_behind(local, link, proxy)
                    await what_ends(told, began)
                    await told.hears(
                        "ticket", "SwarmDeviceLost", began, PROMISED + LOST_FOR, stage="3"
                    )
                    pages = [entry for entry in told.told if entry[1] == "page"]
                    assert pages == []
                    await a_lane(local, told)
                    async with asked(local):
                        await a_canary(local, told)
                        bound = ENOUGH_PACKETS + LOSSY_FOR + PROMISED
                        await told.hears("ticket", "SwarmLinkLossy", began, bound)
                    lossy.wanted = False
                    lossy.signal(signal.SIGTERM)
                    await a_full_disk(small_disk, told)
                    assert told.summaries("SwarmExporterSeesLess") == set()


def start_behind(local: LocalMesh, link: SlowLink, proxy: LinkProxy) -> NodeProcess:
    """A second node of stage 1, behind the link that loses packets."""
    assert local.rights is not None
    access = local.rights.issue("shard-1", "digits")
    url = f"nats://{link.address}:{proxy.port}"
    return start(local, "shard-1", access, url=url, namespace=link.inside[-1])


async def what_ends(told: Pager, began: float) -> None:
    for what in ("credentials", "certificate", "server"):
        await told.hears("ticket", "SwarmExpiresSoon", began, what=what)
    summaries = told.summaries("SwarmExpiresSoon")
    assert any("the credentials of brief" in each and "11d" in each for each in summaries)
    assert any("the certificate of brief" in each and "10d" in each for each in summaries)
    assert any("the server's certificate of" in each and "9d" in each for each in summaries)


async def a_lane(local: LocalMesh, told: Pager) -> None:
    """Under rights no node can make it again: the operator does what the alert says."""
    began = time.monotonic()
    await delete_lane(local.mesh, 2)
    await told.hears("page", "SwarmLaneWrong", began)
    [summary] = told.summaries("SwarmLaneWrong")
    assert "stage 2 of digits" in summary
    # What `swarm model promote digits@1` does, with the operator's key of this mesh.
    await local.mesh.registry.promote("digits", "1")
    await upkeep_by_operator(local.mesh, ["digits"])
    await eventually(
        resolved(told, "SwarmLaneWrong", began), f"the page ends; told: {told.told}", READY
    )


def resolved(told: Pager, name: str, since: float) -> Callable[[], bool]:
    return lambda: any(
        status == "resolved" and labels["alertname"] == name and at > since
        for at, _, status, labels, _ in told.told
    )


async def a_canary(local: LocalMesh, told: Pager) -> None:
    """Nothing is that fast: every request of the new version breaks the guard."""
    plan = plan_of(ulid(), "2", "30%", "10%/5m", "p99<10us", samples=10)
    began = time.monotonic()
    await roll_out(local.mesh.registry, "digits", plan)
    await told.hears("ticket", "SwarmRolledBack", began, 2 * PROMISED, version="2")


async def a_full_disk(disk: Path, told: Pager) -> None:
    began = time.monotonic()
    filler = fill(disk)
    try:
        await told.hears("page", "SwarmStoreFull", began)
    finally:
        filler.unlink()
