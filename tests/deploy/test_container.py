"""What containers are made of and run by passes its linters, and planted errors do not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml
from support.commands import ROOT

from nodes.config import settings_of_nodes

CONTAINER = ROOT / "deploy" / "container"
COMPOSE = CONTAINER / "compose.yaml"
PROGRAMS = Path(sys.executable).parent


def runs(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [PROGRAMS / program, *arguments], capture_output=True, text=True, timeout=60, check=False
    )


def fits_compose(path: Path) -> subprocess.CompletedProcess[str]:
    return runs("check-jsonschema", "--builtin-schema", "vendor.compose-spec", str(path))


def test_the_containerfile_has_no_finding_and_a_planted_one_is_found(tmp_path: Path) -> None:
    text = (CONTAINER / "Containerfile").read_text()
    assert runs("hadolint", str(CONTAINER / "Containerfile")).stdout == ""
    planted = tmp_path / "Containerfile"
    planted.write_text(text.replace("USER 64321:64321", "USER root\nRUN cd /tmp"))
    assert "DL3002" in runs("hadolint", str(planted)).stdout


def test_compose_knows_each_word_of_the_file_and_a_misspelt_one_is_found(tmp_path: Path) -> None:
    done = fits_compose(COMPOSE)
    assert done.returncode == 0, done.stdout
    planted = tmp_path / "compose.yaml"
    planted.write_text(COMPOSE.read_text().replace("read_only:", "readonly:"))
    assert fits_compose(planted).returncode != 0


def services() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())
    return document["services"] | {"": document}


def test_each_variable_of_a_node_in_compose_is_a_setting() -> None:
    known = {each.variable for each in settings_of_nodes()}
    for name, service in services().items():
        given = {key for key in service.get("environment", {}) if key.startswith("SWARM_")}
        assert given <= known, name
        arguments = service.get("command", [])
        flags = {flag for each in settings_of_nodes() for flag in each.flags}
        if "swarm" in str(service.get("image", "")):
            assert {a for a in arguments if a.startswith("--")} <= flags, name


def test_each_secret_that_a_service_takes_is_declared() -> None:
    found = services()
    declared = set(found.pop("")["secrets"])
    for service in found.values():
        for secret in service.get("secrets", []):
            assert (secret if isinstance(secret, str) else secret["source"]) in declared


def test_a_container_of_a_node_can_write_nowhere_but_in_its_own_folder() -> None:
    nodes = {name: s for name, s in services().items() if "swarm" in str(s.get("image", ""))}
    assert set(nodes) == {"shard-1", "shard-2", "shard-3", "fallback", "gateway"}
    for service in nodes.values():
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert all(path.startswith("/run/swarm:") for path in service["tmpfs"])
