"""A link that can be cut without a signal to either end: two network namespaces and a bridge.

    here (server, requester) ─ veth ─ [switch: bridge] ─ veth ─ [device: the node]

Taking the bridge down drops every frame while both ends keep their carrier, as when a switch or a
radio in the middle fails: neither end gets a reset or an unreachable host.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from nodes.event_loop import die_with_parent
from nodes.up.mesh import LocalMesh
from nodes.up.supervisor import NodeProcess
from support.interfaces import interfaces_change
from swarm.errors import Unavailable

BRIDGE = "switch0"


def why_not() -> str:
    """The reason why namespaces cannot be made here, or an empty string."""
    if sys.platform != "linux":
        return "network namespaces are Linux's"
    if shutil.which("ip") is None:
        return "the `ip` command is missing (iproute2)"
    if os.geteuid() != 0:
        return "network namespaces need root"
    name = f"swarm-probe-{os.getpid()}"
    try:
        _ip("netns", "add", name)
    except Unavailable as error:
        return str(error)
    try:
        _ip("-n", name, "link", "add", BRIDGE, "type", "bridge")
    except Unavailable as error:
        return str(error)
    finally:
        _ip("netns", "del", name)
    return ""


@dataclass(frozen=True)
class CutLink:
    """A link between this namespace and `node_namespace`."""

    server_address: str
    node_address: str
    node_namespace: str
    switch_namespace: str

    def cut(self) -> None:
        """Drop every frame, in both directions."""
        _ip("-n", self.switch_namespace, "link", "set", BRIDGE, "down")

    def heal(self) -> None:
        _ip("-n", self.switch_namespace, "link", "set", BRIDGE, "up")


@contextmanager
def cut_link() -> Iterator[CutLink]:
    """Make the link, and remove all of it at the end. Raises `Unavailable`."""
    number = os.getpid()
    switch, device = f"swarm-switch-{number}", f"swarm-device-{number}"
    # 10.213.x.y/29 by process id: two benchmarks at once do not share a subnet.
    base = (number % 8192) * 8
    network = f"10.213.{base >> 8}"
    here, there = f"{network}.{(base & 255) + 1}", f"{network}.{(base & 255) + 2}"
    ours, theirs, up, down = (f"sw{number % 10_000_000}{end}" for end in "abcd")
    try:
        with interfaces_change():
            _ip("netns", "add", switch)
            _ip("netns", "add", device)
            _ip("-n", switch, "link", "add", BRIDGE, "type", "bridge")
            for near, far, owner in ((ours, theirs, ""), (up, down, device)):
                _ip("link", "add", near, "type", "veth", "peer", "name", far, "netns", switch)
                _ip("-n", switch, "link", "set", far, "master", BRIDGE, "up")
                if owner:
                    _ip("link", "set", near, "netns", owner)
            _ip("addr", "add", f"{here}/29", "dev", ours)
            _ip("link", "set", ours, "up")
            _ip("-n", device, "addr", "add", f"{there}/29", "dev", up)
            _ip("-n", device, "link", "set", up, "up")
            _ip("-n", device, "link", "set", "lo", "up")
            _ip("-n", switch, "link", "set", BRIDGE, "up")
        yield CutLink(here, there, device, switch)
    finally:
        with interfaces_change():
            # The kernel removes a namespace's interfaces some time after it: ours goes at once.
            subprocess.run(["ip", "link", "del", ours], capture_output=True, check=False)
            for name in (device, switch):
                subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


@dataclass
class NamespacedNode(NodeProcess):
    """A node process inside a network namespace."""

    namespace: str = field(default="", kw_only=True)

    def start(self) -> None:
        assert self.log_path is not None
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                # `ip netns exec` becomes the node: same process id, so signals reach it.
                [
                    *("ip", "netns", "exec", self.namespace),
                    *(sys.executable, "-m", "nodes.cli.node", *self.arguments),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,
                preexec_fn=die_with_parent,
                env=os.environ | {"PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"},
            )
        self.started = time.monotonic()


def start_in(
    namespace: str, local: LocalMesh, role: str, model: str, *flags: str, url: str = ""
) -> NamespacedNode:
    """A node of a local mesh, behind the link. It is not started again when it ends. url: of its
    server, "" for the mesh's own."""
    arguments = ["--role", role, "--model", model, "--nats", url or local.url]
    arguments += ["--mesh", local.name, "--trust", local.trusted, *flags]
    count = sum(isinstance(node, NamespacedNode) for node in local.supervisor.nodes)
    path = local.logs / f"{role}-far-{count + 1}.log"
    node = NamespacedNode(role, arguments, path, namespace=namespace)
    local.supervisor.add(node)
    node.wanted = False
    return node


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise Unavailable(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
