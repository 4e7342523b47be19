"""Gateways of a mesh, for tests: started, found, asked as clients without a library ask."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

from nodes.up.mesh import LocalMesh
from nodes.up.supervisor import NodeProcess
from support.meshes import READY
from support.waiting import eventually


async def gateway_of(local: LocalMesh, *flags: str) -> NodeProcess:
    """A gateway node that is ready, with these doors: `--http 0 --grpc 0`. Unless flags say
    otherwise it ends at once: nobody goes on for it."""
    own = {"--gateway-settle": "0", "--gateway-connection-age": "0"}
    more = [word for flag, value in own.items() if flag not in flags for word in (flag, value)]
    node = local.start("gateway", "", *flags, *more)
    await local.ready(READY)
    wanted = [flag[2:] for flag in flags if flag in ("--http", "--grpc")]
    await eventually(lambda: set(wanted) <= set(doors(local, node)), "its doors are open", READY)
    return node


def doors(local: LocalMesh, node: NodeProcess) -> dict[str, Any]:
    """The open doors of a gateway, as its last status has them."""
    found: dict[str, Any] = (local.status_of(node) or {}).get("gateway", {}).get("doors", {})
    return found


def address(local: LocalMesh, node: NodeProcess, door: str = "http") -> str:
    return str(doors(local, node)[door]["address"])


def ask(url: str, body: Any = None, **headers: str) -> tuple[int, dict[str, str], Any]:
    """GET, or POST with a JSON body: the code, the headers in lower case, the answer."""
    data = None if body is None else json.dumps(body).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(url, data, named)
    try:
        with urllib.request.urlopen(request, timeout=READY) as answer:
            code, got, raw = answer.status, answer.headers, answer.read()
    except urllib.error.HTTPError as error:
        code, got, raw = error.code, error.headers, error.read()
    document = json.loads(raw) if raw.strip() else None
    return code, {name.lower(): value for name, value in got.items()}, document
