"""A real Prometheus scrapes a real mesh: a node's own endpoint, and the exporter's."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from programs import needed
from support.commands import ROOT, Commands
from support.meshes import READY, dismiss, good_request
from support.ports import free_port
from support.waiting import eventually

from nodes.up.mesh import LocalMesh

pytestmark = [
    pytest.mark.integration,
    pytest.mark.processes,
    pytest.mark.asyncio(loop_scope="session"),
]
MONITORING = ROOT / "deploy" / "monitoring"


def ask(port: int, query: str) -> list[dict[str, Any]]:
    """The series that a query gives now."""
    url = f"http://127.0.0.1:{port}/api/v1/query?{urlencode({'query': query})}"
    with urllib.request.urlopen(url, timeout=5) as answer:
        result: list[dict[str, Any]] = json.load(answer)["data"]["result"]
    return result


def says(port: int, query: str) -> bool:
    try:
        return bool(ask(port, query))
    except OSError:
        return False  # it starts


@contextmanager
def prometheus(program: str, config: Path, port: int) -> Iterator[None]:
    """A Prometheus with its data beside its configuration."""
    with (config.parent / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            [
                program,
                f"--config.file={config}",
                f"--storage.tsdb.path={config.parent / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log,
            stderr=log,
        )
        try:
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)


async def test_a_real_prometheus_scrapes_a_real_mesh(
    digits_mesh: LocalMesh, run: Commands, tmp_path: Path
) -> None:
    program = needed("prometheus", "prometheus")
    own, server = free_port(), free_port()
    gateway = digits_mesh.start("gateway", "", "--metrics-port", str(own))
    await digits_mesh.ready(READY)
    exporter = run.start(
        "nodes.cli.main", "metrics-exporter", "--port", "0", "--json", "--nats", digits_mesh.url
    )
    await asyncio.to_thread(exporter.ready_line)
    told = json.loads(exporter.stdout)["url"].split("/")[2]
    config = tmp_path / "prometheus.yml"
    jobs = [
        {"job_name": name, "static_configs": [{"targets": [target]}]}
        for name, target in (("node", f"127.0.0.1:{own}"), ("fleet", told))
    ]
    rules = [str(MONITORING / f"{name}.rules.yml") for name in ("recording", "alerts")]
    every = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
    config.write_text(json.dumps({"global": every, "rule_files": rules, "scrape_configs": jobs}))
    with prometheus(program, config, server):
        for _ in range(5):
            await good_request(digits_mesh.mesh)
        for query in (
            'up{job="node"} == 1',
            'up{job="fleet"} == 1',
            'swarm_node_up{job="node", role="gateway"} == 1',
            'count(swarm_node_up{job="fleet"} == 1) >= 5',
            'swarm_hop_compute_seconds_count{job="fleet", role="shard-2"} > 0',
            'swarm_process_resident_memory_bytes{job="fleet"} > 1e6',
            'process_resident_memory_bytes{job="node"} > 1e6',
            "swarm:latency_budget_seconds",
        ):
            await eventually(partial(says, server, query), query, READY)
    await dismiss(digits_mesh, [gateway])
