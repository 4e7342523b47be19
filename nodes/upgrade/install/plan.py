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
DATA = tuple(
    f"var/{kind}/{user}" for kind in ("lib", "cache") for user in ("swarm", "swarm-updater")
)  # made by systemd at the first start
PROGRAM = "/opt/swarm/bin/swarm-node"  # in the unit as it is shipped
UPDATER, COMMAND = "swarm-updater", "/opt/swarm/bin/swarm"  # its user and unit; its program
UPDATER_UNIT = f"{UNITS}/{UPDATER}.service"
GIVEN = f"/run/credentials/{UPDATER}.service"  # where systemd shows it credentials
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
    """What makes a machine run a node, in order. enabled: units that start at boot. user: as which
    they run."""

    files: tuple[WrittenFile, ...]
    enabled: tuple[str, ...]
    user: str = USER


def installation(
    role: str, program: str, settings: Mapping[str, str], credentials: str = "", trusted: str = ""
) -> Installation:
    """program: path of `swarm-node`. settings: keys of the node's file. credentials, trusted: the
    contents of a .creds file and of a file of trusted keys, "" for none."""
    unit = (files("nodes.upgrade.install") / "swarm-node@.service").read_text(encoding="utf-8")
    keys = dict(settings)
    written = [WrittenFile(UNIT, unit.replace(PROGRAM, program))]
    if trusted:
        keys["trust"] = "/etc/swarm/trusted"
        written.append(WrittenFile(f"{SETTINGS}/trusted", trusted))
    text = _toml("Settings of every node of this machine: nodes/settings.md", keys)
    written.append(WrittenFile(f"{SETTINGS}/node.toml", text, kept=True))
    if credentials:
        written += [
            WrittenFile(f"{SETTINGS}/{role}.creds", credentials, 0o600),
            WrittenFile(f"{UNITS}/swarm-node@{role}.service.d/credentials.conf", CREDENTIALS),
        ]
    return Installation(tuple(written), (f"swarm-node@{role}.service",))


def updater_installation(
    role: str,
    program: str,
    settings: Mapping[str, str],
    trusted: str,
    credentials: str = "",
    own_credentials: str = "",
    releases: str = "",
) -> Installation:
    """The same with an updater, whose processes the nodes are. program: path of `swarm`. trusted:
    keys whose models are taken; releases: those whose releases are, "" for the same.
    credentials: of the node; own_credentials: of the updater."""
    node = [f"--role {role}", "--config /etc/swarm/node.toml"]
    unit = (files("nodes.upgrade.install") / f"{UPDATER}.service").read_text(encoding="utf-8")
    of_node = installation(role, "", settings, "", trusted).files
    written = [each for each in of_node if each.path != UNIT]
    written.insert(0, WrittenFile(UPDATER_UNIT, unit.replace(COMMAND, program)))
    written.append(WrittenFile(f"{SETTINGS}/trusted-releases", releases or trusted))
    given = {
        name: settings[name] for name in ("nats", "mesh", "tls_ca", "domain") if name in settings
    }
    load = []
    for name, text in ((role, credentials), ("updater", own_credentials)):
        if text:
            written.append(WrittenFile(f"{SETTINGS}/{name}.creds", text, 0o600))
            load.append(f"LoadCredential={name}:/etc/swarm/{name}.creds")
    if credentials:
        node.append(f"--credentials {GIVEN}/{role}")
    if own_credentials:
        given["credentials"] = f"{GIVEN}/updater"
    if load:
        text = "[Service]\n" + "\n".join(load) + "\n"
        written.append(WrittenFile(f"{UPDATER_UNIT}.d/credentials.conf", text))
    given |= {"node": " ".join(node), "trust": "/etc/swarm/trusted-releases"}
    text = _toml("Options of `swarm fleet updater`; several nodes: separated by ';'", given)
    written.append(WrittenFile(f"{SETTINGS}/updater.toml", text, kept=True))
    return Installation(tuple(written), (f"{UPDATER}.service",), UPDATER)


def _toml(about: str, keys: Mapping[str, str]) -> str:
    """JSON's strings are TOML's basic strings."""
    lines = [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in keys.items()]
    return f"# {about}\n" + "\n".join(lines) + "\n"
