"""Alerts reach whoever is on call: a real Prometheus and Alertmanager with the files of deploy, a
real mesh, and what happens to it. Prints how long each alert took."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from programs import needed
from support.commands import ROOT, Command, Commands, commands
from support.meshes import READY, digits, split_digits
from support.ports import free_port
from support.waiting import eventually

import swarm
from nodes.event_loop import die_with_parent
from nodes.up.kept_model import push_to_serve
from shards.samples import Samples
from shards.split.split import SplitResult
from shards.zoo import digits_training
from swarm.fleet.service import FleetWatch
from swarm.link import jetstream
from swarm.subjects import api

pytestmark = [
    pytest.mark.integration,
    pytest.mark.processes,
    pytest.mark.benchmark,
    pytest.mark.timeout(400),
]
MONITORING = ROOT / "deploy" / "monitoring"
PROMISED = 30.0  # seconds from the cause to the message
ROLES = ("shard-1", "shard-2", "shard-3", "fallback")


@dataclass
class Pager:
    """Receives what Alertmanager sends. told: (moment, place, status, alert's labels, summary)."""

    told: list[tuple[float, str, str, dict[str, str], str]] = field(default_factory=list)

    def first(self, place: str, name: str, since: float, **labels: str) -> float | None:
        """Seconds from `since` to the first such alert that fires."""
        for at, where, status, has, _ in self.told:
            fits = has["alertname"] == name and labels.items() <= has.items()
            if at >= since and (where, status) == (place, "firing") and fits:
                return at - since
        return None

    async def hears(
        self, place: str, name: str, since: float, within: float = PROMISED, **labels: str
    ) -> float:
        """Seconds until it was told there; fails behind `within`."""
        await eventually(
            lambda: self.first(place, name, since, **labels) is not None,
            f"{name} as {place}; told: {self.told}",
            within + 15,
        )
        took = self.first(place, name, since, **labels)
        assert took is not None
        print(f"| {name} {labels or ''} | {place} | {took:.1f} s |")
        assert took < within
        return took

    def summaries(self, name: str) -> set[str]:
        return {summary for *_, has, summary in self.told if has["alertname"] == name}


@contextmanager
def pager(port: int) -> Iterator[Pager]:
    made = Pager()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            for alert in body["alerts"]:
                summary = alert["annotations"]["summary"]
                place = self.path.strip("/")
                entry = (time.monotonic(), place, alert["status"], alert["labels"], summary)
                made.told.append(entry)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield made
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


@contextmanager
def program(log: Path, *command: str) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, preexec_fn=die_with_parent)
        try:
            yield process
        finally:
            process.send_signal(signal.SIGCONT)
            process.terminate()
            process.wait(30)


@contextmanager
def monitoring(folder: Path, exporter: int) -> Iterator[Pager]:
    """Deploy's Prometheus and Alertmanager, with ports of this test in the place of theirs."""
    prometheus = needed("prometheus", "prometheus")
    alertmanager = needed("prometheus-alertmanager", "prometheus-alertmanager")
    ports = {"9464": exporter, "9093": free_port(), "9095": free_port()}
    for name in ("prometheus.yml", "alertmanager.yml"):
        text = (MONITORING / name).read_text()
        for standard, own in ports.items():
            text = text.replace(f"127.0.0.1:{standard}", f"127.0.0.1:{own}")
        (folder / name).write_text(text)
    for name in ("recording.rules.yml", "alerts.rules.yml"):
        (folder / name).write_text((MONITORING / name).read_text())
    web, am = f"127.0.0.1:{free_port()}", f"127.0.0.1:{ports['9093']}"
    with (
        pager(ports["9095"]) as received,
        program(
            folder / "alertmanager.log",
            alertmanager,
            f"--config.file={folder / 'alertmanager.yml'}",
            f"--storage.path={folder / 'am'}",
            f"--web.listen-address={am}",
            "--cluster.listen-address=",
        ),
        program(
            folder / "prometheus.log",
            prometheus,
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address={web}",
        ),
    ):
        yield received


@dataclass
class Scene:
    """A server, nodes that nobody starts again, an exporter, and who is on call."""

    url: str
    server: subprocess.Popen[bytes]
    run: Commands
    nodes: dict[str, Command]
    exporter: Command
    received: Pager

    def start(self, role: str) -> None:
        arguments = ["--role", role, "--nats", self.url, "--model", "digits", "--allow-unsigned"]
        self.nodes[role] = self.run.start("nodes.cli.node", *arguments)

    def kill(self, *roles: str) -> float:
        """SIGKILL; returns the moment."""
        for role in roles:
            self.nodes[role].signal(signal.SIGKILL)
        return time.monotonic()

    async def ready(self, count: int) -> None:
        async with (
            swarm.connect(self.url) as mesh,
            FleetWatch(mesh.link, mesh.subjects, events=0) as watch,
        ):
            assert await watch.until(lambda p, now: p.by_state(now).get("ready", 0) >= count, READY)

    async def hears(self, place: str, name: str, since: float, **labels: str) -> float:
        return await self.received.hears(place, name, since, **labels)


@asynccontextmanager
async def scene(
    folder: Path, roles: tuple[str, ...] = ROLES, result: SplitResult | None = None
) -> AsyncIterator[Scene]:
    """result: the version of `digits`, of as many stages as there are roles of shards."""
    port, exported = free_port(), free_port()
    url = f"nats://127.0.0.1:{port}"
    config = folder / "nats.conf"
    store = json.dumps(str(folder / "js"))
    config.write_text(f"port: {port}\nhost: 127.0.0.1\njetstream {{ store_dir: {store} }}\n")
    with (
        program(folder / "nats.log", "nats-server", "-c", str(config)) as server,
        commands(folder / "commands") as run,
    ):
        result = result or split_digits()
        async with swarm.connect(url) as mesh:
            manifest, files = result.manifest.to_json(), result.files
            await push_to_serve(mesh, manifest, files, lambda size: None)
        exporter = run.start(
            "nodes.cli.main", "metrics-exporter", "--port", str(exported), "--nats", url, "--json"
        )
        await asyncio.to_thread(exporter.ready_line)
        made = Scene(url, server, run, {}, exporter, Pager())
        for role in roles:
            made.start(role)
        await made.ready(len(roles))
        # Before that, stages lack nodes indeed, for as long as a busy machine takes.
        with monitoring(folder, exported) as received:
            made.received = received
            # Prometheus has seen it well, and has told nobody of anything that is no trouble.
            await asyncio.sleep(12)
            assert [entry for entry in received.told if entry[1] == "page"] == []
            try:
                yield made
            finally:
                for node in made.nodes.values():
                    if node.process.poll() is None:
                        node.signal(signal.SIGCONT)
                exporter.signal(signal.SIGCONT)


async def lanes_of(mesh: swarm.Mesh, stage: int) -> list[str]:
    """The streams of a stage of digits@1."""
    listed = await jetstream.call(mesh.link, api("STREAM.NAMES"), {})
    return [name for name in listed["streams"] if f"digits=1=stage{stage}" in name]


async def delete_lane(mesh: swarm.Mesh, stage: int) -> None:
    [name] = await lanes_of(mesh, stage)
    await jetstream.call(mesh.link, api("STREAM.DELETE", name), {})


async def test_a_dead_shard_is_a_ticket_and_a_stage_without_nodes_pages(tmp_path: Path) -> None:
    async with scene(tmp_path) as story:
        began = story.kill("shard-2")
        await story.hears("ticket", "SwarmNodeDied", began, role="shard-2")
        await story.hears("ticket", "SwarmStageOnFallback", began, stage="2")
        assert story.received.first("page", "SwarmStageWithoutNodes", began) is None
        began = story.kill("fallback")
        await story.hears("page", "SwarmStageWithoutNodes", began, stage="2", model="digits")
        assert "stage 2 of digits has no ready node" in story.received.summaries(
            "SwarmStageWithoutNodes"
        )
        status = await asyncio.to_thread(story.run.swarm, "status", "--nats", story.url)
        assert status.process.returncode == 3
        assert "stage 2 of digits@1 has no ready node" in status.stdout
        lenient = await asyncio.to_thread(
            story.run.swarm, "status", "--any-node", "--nats", story.url
        )
        assert lenient.process.returncode == 0
        # Clients of the library see it too.
        images, _ = digits()
        began = time.monotonic()
        async with swarm.connect(story.url) as mesh:
            until = began + PROMISED + 5
            while time.monotonic() < until:
                with contextlib.suppress(swarm.SwarmError):
                    await mesh.infer("digits", {"image": images[:1]}, 0.5)
                if story.received.first("page", "SwarmClientErrorRatio", began) is not None:
                    break
                await asyncio.sleep(0.2)
        took = story.received.first("page", "SwarmClientErrorRatio", began)
        print(f"| SwarmClientErrorRatio | page | {took} s |")
        assert took is not None
        assert took < PROMISED
        began = story.kill("shard-1", "shard-3")
        await story.hears("page", "SwarmStageWithoutNodes", began, stage="1")
        await story.hears("page", "SwarmStageWithoutNodes", began, stage="3")


async def test_inputs_that_a_guard_does_not_know_are_a_ticket(tmp_path: Path) -> None:
    fit = pytest.importorskip("shards.guard.fit", reason="the feature `guard` is not there")
    made, (images, _) = split_digits(stages=2), digits_training()
    manifest, reference = fit.guarded(
        made.manifest, made.files.__getitem__, Samples({"image": images})
    )
    (file,) = manifest.parts["guard"]["files"]
    files = {**made.files, file["file"]: reference.to_bytes()}
    guarded = replace(made, manifest=manifest, files=files)
    async with scene(tmp_path, ("shard-1", "shard-2"), guarded) as story:
        async with swarm.connect(story.url) as mesh:
            for number in range(100):
                await mesh.infer("digits", {"image": images[number : number + 1]}, 10.0)
            began = time.monotonic()
            for number in range(40):
                await mesh.infer("digits", {"image": 1 - images[number : number + 1]}, 10.0)
        await story.hears("ticket", "SwarmUnfamiliarInputs", began, model="digits", version="1")
        status = await asyncio.to_thread(story.run.swarm, "status", "--nats", story.url)
        assert "of 140 rows; bound: 5.0%; above it since: 2" in status.stdout


async def test_a_hung_node_a_dead_server_and_a_dead_exporter_are_told(tmp_path: Path) -> None:
    async with scene(tmp_path) as story, swarm.connect(story.url) as mesh:
        # Where nodes may make streams, they mend this before it wakes somebody.
        deleted = time.monotonic()
        await delete_lane(mesh, 2)
        began = time.monotonic()
        story.nodes["shard-3"].signal(signal.SIGSTOP)
        await story.hears("ticket", "SwarmStageOnFallback", began, stage="3")
        story.nodes["shard-3"].signal(signal.SIGCONT)
        assert len(await lanes_of(mesh, 2)) == 1
        assert story.received.first("page", "SwarmLaneWrong", deleted) is None
        began = time.monotonic()
        os.kill(story.server.pid, signal.SIGKILL)
        await story.hears("page", "SwarmServerUnreachable", began)
        began = time.monotonic()
        story.exporter.signal(signal.SIGKILL)
        await story.hears("page", "SwarmTelemetryAbsent", began)
