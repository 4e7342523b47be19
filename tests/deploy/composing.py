"""What compose.yaml tells an engine, as services that are played."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from playing import Mount, Service

# Of what the file names by an image, these are at hand.
IMAGES = {
    "swarm-node": "node",
    "swarm-gateway": "gateway",
    "swarm-cameras": "cameras",
    "swarm-language": "language",
    "docker.io/library/nats": "nats",
    "nats": "nats",
}
VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")


def head(file: Path) -> list[str]:
    """The blocks of commands in the comment at the file's head."""
    lines = file.read_text().split("\nname:")[0].splitlines()
    blocks: list[list[str]] = [[]]
    for line in lines:
        if line.startswith("#   "):
            blocks[-1].append(line[4:])
        elif line != "#" and blocks[-1]:
            blocks.append([])
    return ["\n".join(block) for block in blocks if block]


def variables(file: Path) -> dict[str, str]:
    """Of the `.env` beside the file."""
    text = (file.parent / ".env").read_text()
    return dict(line.split("=", 1) for line in text.splitlines())


def services(file: Path, given: Mapping[str, str], volumes: Path) -> dict[str, Service]:
    """The file's services whose image is at hand. volumes: a folder for those with a name."""
    text = VARIABLE.sub(lambda found: given.get(found[1]) or found[2] or "", file.read_text())
    document = yaml.safe_load(text)
    return {
        name: _service(name, image, each, document, file.parent, volumes)
        for name, each in document["services"].items()
        if (image := IMAGES.get(each["image"].rpartition(":")[0] or each["image"]))
    }


def _service(
    name: str, image: str, each: dict[str, Any], document: dict[str, Any], here: Path, volumes: Path
) -> Service:
    known = {
        "cap_drop", "command", "depends_on", "environment", "image", "mem_limit", "ports",
        "read_only", "restart", "secrets", "security_opt", "stop_grace_period", "tmpfs", "user",
        "volumes", "working_dir",
    }  # fmt: skip
    assert set(each) <= known, f"{name}: what is not played: {set(each) - known}"
    user, _, group = str(each.get("user", "0:0")).partition(":")
    return Service(
        name=name,
        image=image,
        tag=each["image"].rpartition(":")[2] if image == "nats" else "",
        arguments=each["command"],
        environment=each.get("environment", {}),
        user=int(user),
        group=int(group or 0),
        folder=each.get("working_dir", "/run/swarm" if image != "nats" else ""),
        read_only=each.get("read_only", False),
        keeps_capabilities="ALL" not in each.get("cap_drop", []),
        mounts=[
            *(_tmpfs(name, text, volumes) for text in each.get("tmpfs", [])),
            *(_volume(text, here, volumes) for text in each.get("volumes", [])),
            *(_secret(one, document["secrets"], here) for one in each.get("secrets", [])),
        ],
    )


def _tmpfs(name: str, text: str, volumes: Path) -> Mount:
    """A folder of the same owner and mode: bubblewrap gives a tmpfs to root alone."""
    target, _, options = text.partition(":")
    settings = dict(option.split("=") for option in options.split(","))
    folder = volumes / f"tmpfs-{name}{target.replace('/', '-')}"
    folder.mkdir(exist_ok=True)
    os.chown(folder, int(settings["uid"]), int(settings["gid"]))
    folder.chmod(int(settings["mode"], 8))
    return Mount(folder, target)


def _volume(text: str, here: Path, volumes: Path) -> Mount:
    source, target, *mode = text.split(":")
    if source.startswith("."):
        return Mount((here / source).resolve(), target, mode == ["ro"])
    folder = volumes / source  # an engine makes it root's
    folder.mkdir(exist_ok=True, mode=0o755)
    return Mount(folder, target, mode == ["ro"])


def _secret(one: str | dict[str, str], declared: dict[str, Any], here: Path) -> Mount:
    """An engine mounts the file itself, with the owner and mode that it has."""
    source, target = (one, one) if isinstance(one, str) else (one["source"], one["target"])
    file = (here / declared[source]["file"]).resolve()
    return Mount(file, f"/run/secrets/{target}", True)
