"""Somebody who follows the pages with hosts of their own: each step is pasted from its page."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from pasting import Host, host, line, lines
from playing import Machine, Mount, Played
from support.commands import ROOT
from support.meshes import digits, split_digits
from support.waiting import eventually_now

from shards.manifest import write_dir

pytestmark = [pytest.mark.netns, pytest.mark.timeout(500)]
OPERATIONS = "deploy/operations.md"
DEPLOY, UPGRADE = "deploy/README.md", "nodes/upgrade/README.md"
PUSH_AND_WAVE = ("release push", "fleet upgrade --to", "fleet upgrade  ")
NODES = "nodes/README.md"
CLUSTER = "deploy/cluster/README.md"
LEADER = "JetStream cluster new metadata leader"
TRUST = re.compile(r"swarm keys trust U\w+")
FIVE_MINUTES = (
    'uv run python -c "from shards',
    "uv run nats-server",
    "uv run swarm-node --role edge",
    "uv run swarm model split /tmp/digits.onnx --stages 3 --version 2",
)
THREE = ("nats-1", "nats-2", "nats-3")


@pytest.fixture
def work(tmp_path: Path) -> Mount:
    """A split model, and an image to ask about."""
    folder = tmp_path / "work"
    result = split_digits()
    write_dir(folder / "digits-split", result.manifest, result.files)
    np.savez(folder / "x.npz", image=digits()[0][:1])
    return Mount(folder, "/home/work", True)


def says(played: Played, text: str) -> Callable[[], bool]:
    def said() -> bool:
        assert played.process.poll() is None, played.log
        return text in played.log

    return said


@pytest.mark.benchmark
def test_a_cluster_of_three_servers_answers_while_one_of_them_is_lost(
    playground: Machine, work: Mount
) -> None:
    servers = {name: host(playground, name) for name in THREE}
    desk = host(playground, "desk", work)
    devices = [host(playground, f"device-{n}") for n in (1, 2, 3)]
    playground.named(
        {name: [name] for name in (*servers, "desk", *(device.name for device in devices))}
    )
    running = []
    for n, server in enumerate(servers.values(), 1):
        start = line(CLUSTER, "nats-server -c server-1.conf")
        given = {"server-1.conf  ": f"server-{n}.conf  "}
        running.append(server.leave_running("cd deploy/cluster", start, given=given))
    for each in running:
        eventually_now(says(each, "Server is ready"), "a server of three")
    eventually_now(lambda: any(LEADER in each.log for each in running), "they agree on a leader")
    servers_of_all = line(CLUSTER, "export SWARM_NATS=")
    desk.paste(servers_of_all, "cd work", line(CLUSTER, "swarm model push"))
    nodes = serve(devices, servers_of_all, line(CLUSTER, "swarm-node --role shard-1"), "shard-1")
    ask = [servers_of_all, "cd work", line(CLUSTER, "swarm infer")]
    assert "1 of 1 answered" in desk.paste(*ask)
    running[0].end(signal.SIGKILL)
    assert "1 of 1 answered" in desk.paste(*ask)
    assert nodes


@pytest.mark.benchmark
def test_a_hub_and_a_site_which_submits_while_its_link_is_cut(
    playground: Machine, work: Mount
) -> None:
    hub, site, desk = (host(playground, name, work) for name in ("hub.example.org", "site", "desk"))
    devices = [host(playground, f"device-{n}") for n in (1, 2, 3)]
    playground.named({each.name: [each.name] for each in (hub, site, desk, *devices)})
    at_hub = "export SWARM_NATS=nats://hub.example.org"
    server = hub.leave_running("cd deploy/sites", line(OPERATIONS, "nats-server -c hub.conf"))
    leaf = site.leave_running("cd deploy/sites", line(OPERATIONS, "nats-server -c leaf.conf"))
    eventually_now(says(server, "Server is ready"), "the hub")
    eventually_now(says(leaf, "Leafnode connection created"), "the link")
    desk.paste(at_hub, "cd work", line(OPERATIONS, "swarm model push"))
    serve(devices, at_hub, line(OPERATIONS, "swarm-node --role shard-1"), "shard-1")
    forwarder = desk.leave_running(at_hub, line(OPERATIONS, "swarm-node --role gateway --site"))
    camera = site.leave_running(line(OPERATIONS, "swarm-node --role edge"))
    trusted(site, camera)
    eventually_now(says(camera, '"status":"OK"'), "answers of a camera at the site")
    asked = site.paste("cd work", line(OPERATIONS, "swarm infer"))
    assert "1 of 1 answered" in asked
    site.paste(line(OPERATIONS, "swarm site add"))
    eventually_now(says(forwarder, "ready: serving"), "who answers what is submitted")
    playground.cut(site.name)
    site.paste("cd work", line(OPERATIONS, "swarm submit"))
    playground.mend(site.name)
    results = line(OPERATIONS, "swarm results")
    assert "logits" in site.paste(f"until {results}; do sleep 1; done"), "the answer"


@pytest.mark.benchmark
def test_a_closed_mesh_whose_node_is_revoked_and_whose_certificates_are_rotated(
    playground: Machine, work: Mount
) -> None:
    users = {"cam-0": "shard-1", "cam-1": "shard-2", "cam-2": "shard-3", "cam-3": "fallback"}
    home, robot = (host(playground, name, work) for name in ("nats.example.org", "robot"))
    devices = [host(playground, name) for name in users]
    playground.named({each.name: [each.name] for each in (home, robot, *devices)})
    init, server = line(NODES, "swarm auth init"), line(NODES, "swarm auth server")
    home.paste(
        init, server, line(NODES, "swarm auth add desk"), line(NODES, "swarm auth add robot")
    )
    started = home.leave_running(line(NODES, "cd nats &&"))
    for name, role in users.items():
        home.paste(line(NODES, "swarm auth add cam-1"), given={"cam-1": name, "shard-2": role})
    for each in (robot, *devices):
        shutil.copy(home.home / "auth" / "users" / f"{each.name}.creds", each.home)
        shutil.copy(home.home / "nats" / "ca.pem", each.home)
    eventually_now(says(started, "Server is ready"), "the server")
    home.paste(line(NODES, "swarm model push"), given={"./digits-split": "work/digits-split"})
    nodes = {}
    for device in devices:
        given = {"cam-1.creds": f"{device.name}.creds", "shard-2": users[device.name]}
        nodes[device.name] = device.leave_running(line(NODES, "swarm-node --role"), given=given)
    for device in devices:
        trusted(device, nodes[device.name])
    for node in nodes.values():
        eventually_now(says(node, "ready: serving"), "a node that serves")
    ask = partial(robot.paste, line(NODES, "swarm infer"), given={"x.npz": "work/x.npz"})
    assert "1 of 1 answered" in ask()

    home.paste(line(NODES, "swarm auth revoke"))
    assert nodes.pop("cam-1").process.wait(30) == 2
    assert "1 of 1 answered" in ask(), "by the fallback"

    before = certificate(home)
    playground.beside(started, line(NODES, "swarm auth certs --rotate"))
    assert certificate(home) != before
    eventually_now(says(started, "Reloaded"), "the server has the new certificate")
    assert "1 of 1 answered" in ask()
    assert all(node.process.poll() is None for node in nodes.values())


def certificate(server: Host) -> bytes:
    return (server.home / "nats" / "server.pem").read_bytes()


@pytest.mark.benchmark
def test_the_five_minutes_of_the_front_page(playground: Machine) -> None:
    person = host(playground, "laptop")
    pasted = [one for begin in FIVE_MINUTES for one in lines("README.md", begin)]
    # The environment of the image stands for the one that uv makes of the clone.
    told = person.paste('uv() { shift; "$@"; }', *pasted, within=240)
    assert told.count("1 of 1 answered") == 2
    assert told.count("500 of 500 answered") == 2
    assert told.count('"status":"OK"') == 60
    assert "digits@2" in told


@pytest.mark.weekly
@pytest.mark.timeout(800)
def test_a_release_is_made_and_a_device_goes_to_it(
    playground: Machine, work: Mount, tmp_path: Path
) -> None:
    made = release(tmp_path / "clone")
    desk = host(playground, "desk", work, Mount(made, "/home/release", True))
    server, device = host(playground, "server"), host(playground, "device")
    playground.named({each.name: [each.name] for each in (desk, server, device)})
    started = server.leave_running("nats-server -c deploy/nats-server.conf")
    eventually_now(says(started, "Server is ready"), "the server")
    here = "export SWARM_NATS=nats://server"
    keys = desk.paste(here, line(DEPLOY, "swarm keys new"), "swarm model push work/digits-split")
    (device.home / "releases.txt").write_text(re.findall(r"^U\w+$", keys, re.M)[0] + "\n")
    updater = device.leave_running(
        here, line(UPGRADE, "swarm fleet updater"), given={"--role shard-1": "--role fallback"}
    )
    eventually_now(says(updater, "its log is /var/lib/"), "where the node's log is")
    log = device.kept / re.findall(r"its log is /var/lib/(\S+)", updater.log)[0]
    eventually_now(lambda: TRUST.search(log.read_text()), "the line to type")
    device.paste(TRUST.findall(log.read_text())[0])
    push, wave, stands = (line(DEPLOY, f"swarm {what}") for what in PUSH_AND_WAVE)
    desk.paste(here, push)
    desk.paste(here, wave, given={"--step 10%/5m --guard slo": "--step 100%/1s"})
    eventually_now(
        lambda: "the wave to 0.2.0 is done" in desk.paste(here, stands), "the wave", 300, every=2
    )
    assert "1 of 1 answered" in desk.paste(here, "swarm infer digits --input work/x.npz")


def release(clone: Path) -> Path:
    """The files of a release of this tree as version 0.2.0, made by the page's lines, with the
    registry of packages."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in names.splitlines():
        target = clone / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, target)
    project = clone / "pyproject.toml"
    project.write_text(
        re.sub(r'^version = ".*"', 'version = "0.2.0"', project.read_text(), flags=re.M)
    )
    build, download = line(DEPLOY, "deploy/release.sh dist"), line(DEPLOY, "pip download")
    # The environment of the tests has no pip; the Python that it was made from has.
    download = download.replace("pip", f"{sys.base_prefix}/bin/python3 -m pip", 1)
    done = subprocess.run(
        ["bash", "-euc", f"{build}\n{download}"], cwd=clone, capture_output=True, text=True,
        timeout=400, check=False, env=os.environ | {"XDG_CONFIG_HOME": str(clone / "config")},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return clone / "release"


def serve(devices: list[Host], environment: str, start: str, role: str) -> list[Played]:
    """Start a shard a device, trust the key that it asks for, and wait until each one serves."""
    nodes = []
    for n, device in enumerate(devices, 1):
        nodes.append(device.leave_running(environment, start, given={role: f"shard-{n}"}))
    for device, node in zip(devices, nodes, strict=True):
        trusted(device, node)
    for node in nodes:
        eventually_now(says(node, "ready: serving"), "a node that serves")
    return nodes


def trusted(device: Host, node: Played) -> None:
    """Type the line that a node prints which lacks the key."""
    eventually_now(says(node, "swarm keys trust"), "the line to type")
    device.paste(TRUST.findall(node.log)[0])
