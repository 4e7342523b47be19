"""The configurations of a server alone and of linked sites, as they are delivered."""

from __future__ import annotations

import subprocess
import urllib.request
from pathlib import Path

import pytest
from support.commands import ROOT
from support.waiting import eventually_now

from nodes.up.embedded_cluster import free_ports
from nodes.up.embedded_server import find_binary

pytestmark = pytest.mark.integration
CONFIGURATIONS = ["nats-server.conf", "sites/hub.conf", "sites/leaf.conf"]


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_the_server_takes_the_configuration(name: str) -> None:
    path = ROOT / "deploy" / name
    tried = subprocess.run(
        [find_binary(), "-c", str(path), "-t"], capture_output=True, text=True, timeout=30
    )
    assert tried.returncode == 0, tried.stderr


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_a_server_is_ready_and_alive_by_itself_a_site_without_its_hub_too(
    name: str, tmp_path: Path
) -> None:
    client, probes, leaves = free_ports(3)
    text = (ROOT / "deploy" / name).read_text().replace("/var/lib/nats", str(tmp_path / "store"))
    for before, after in (
        ("\nport: 4222", f"\nport: {client}"),
        ("127.0.0.1:8222", f"127.0.0.1:{probes}"),
        ("  port: 7422", f"  port: {leaves}"),
        ("//hub.example.org:7422", f"//127.0.0.1:{leaves}"),
    ):
        text = text.replace(before, after)
    (tmp_path / "server.conf").write_text(text)
    command = [find_binary(), "-c", str(tmp_path / "server.conf")]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for probe in ("/healthz", "/healthz?js-server-only=true"):
            url = f"http://127.0.0.1:{probes}{probe}"
            eventually_now(lambda url=url: is_well(url), probe)
    finally:
        process.kill()
        process.wait()


def is_well(url: str) -> bool:
    """Whether a probe gives 200."""
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
