"""Which files, folders and commands make a node a service of a machine: pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files

USER = "swarm"
SETTINGS = "etc/swarm"
UNITS = "etc/systemd/system"
UNIT = f"{UNITS}/swarm-node@.service"
DATA = ("var/lib/swarm", "var/cache/swarm")  # made by systemd at the first start
PROGRAM = "/opt/swarm/bin/swarm-node"  # in the unit as it is shipped
CREDENTIALS = """\
# The service's user alone can read the credentials, whatever the file's mode here.
[Service]
LoadCredential=creds:/etc/swarm/%i.creds
Environment=SWARM_CREDENTIALS=%d/creds
"""


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """path: below the root. mode: of the file. kept: one that is there already stays as it is."""

    path: str
    content: str
    mode: int = 0o644
    kept: bool = False


@dataclass(frozen=True, slots=True)
class Installation:
    """What makes a machine run a node, in order. enabled: units that start at boot."""

    files: tuple[WrittenFile, ...]
    enabled: tuple[str, ...]


def installation(
    role: str, program: str, settings: Mapping[str, str], credentials: str = "", trusted: str = ""
) -> Installation:
    """program: path of `swarm-node`. settings: keys of the node's file. credentials, trusted: the
    contents of a .creds file and of a file of trusted keys, "" for none."""
    unit = (files("nodes.install") / "swarm-node@.service").read_text(encoding="utf-8")
    keys = dict(settings)
    written = [WrittenFile(UNIT, unit.replace(PROGRAM, program))]
    if trusted:
        keys["trust"] = "/etc/swarm/trusted"
        written.append(WrittenFile(f"{SETTINGS}/trusted", trusted))
    # JSON's strings are TOML's basic strings.
    lines = [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in keys.items()]
    text = "# Settings of every node of this machine: nodes/settings.md\n" + "\n".join(lines) + "\n"
    written.append(WrittenFile(f"{SETTINGS}/node.toml", text, kept=True))
    if credentials:
        written += [
            WrittenFile(f"{SETTINGS}/{role}.creds", credentials, 0o600),
            WrittenFile(f"{UNITS}/swarm-node@{role}.service.d/credentials.conf", CREDENTIALS),
        ]
    return Installation(tuple(written), (f"swarm-node@{role}.service",))
