"""A node becomes a service of a machine, and leaves nothing behind when it is removed."""

from __future__ import annotations

import os
import shlex
import stat
import subprocess
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest
from programs import needed
from support.commands import ROOT, said

from nodes.cli.options import Target
from nodes.config import settings_of_nodes
from nodes.settings import parse
from nodes.upgrade.commands.fleet import UpdaterOptions

UNIT = ROOT / "deploy" / "systemd" / "swarm-node@.service"
INSTALLED = "etc/systemd/system/swarm-node@.service"
MOST_EXPOSURE = 1.5  # of `systemd-analyze security`, 0 (safe) to 10
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root installs a service")


@pytest.fixture
def system(tmp_path: Path) -> Path:
    """A folder that holds a system, as far as users are concerned."""
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/bash\n")
    (tmp_path / "etc/group").write_text("root:x:0:\n")
    (tmp_path / "etc/shadow").write_text("root:*:1::::::\n")
    (tmp_path / "etc/gshadow").write_text("root:*::\n")
    return tmp_path


def everything(system: Path) -> set[str]:
    """Files below a folder, without the copies of old lists that the tools for users keep."""
    found = {str(path.relative_to(system)) for path in system.rglob("*") if not path.is_dir()}
    return {path for path in found if not path.endswith("-") and "sub" not in path}


def install(system: Path, *more: str) -> None:
    where = ("--root", str(system), "--program", "/opt/x/swarm-node")
    done = said("install", "node", "--role", "shard-1", "--model", "digits", *where, *more)
    assert done.code == 0, done.stderr


def test_a_node_is_installed_with_its_own_user_and_removed_without_a_trace(system: Path) -> None:
    needed("useradd", "passwd")
    before = everything(system)
    credentials = system / "given.creds"
    credentials.write_text("secret")
    install(system, "--credentials", str(credentials))
    credentials.unlink()
    assert "\nswarm:" in (system / "etc/passwd").read_text()
    unit = (system / INSTALLED).read_text()
    assert "ExecStart=/opt/x/swarm-node --role %i" in unit
    assert (
        system / "etc/systemd/system/multi-user.target.wants/swarm-node@shard-1.service"
    ).is_symlink()
    kept = system / "etc/swarm/shard-1.creds"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert kept.read_text() == "secret"
    assert said("install", "remove", "--root", str(system), "--settings").code == 0
    assert everything(system) == before
    assert "\nswarm:" not in (system / "etc/passwd").read_text()


def test_settings_that_somebody_changed_stay_when_a_second_role_is_installed(system: Path) -> None:
    needed("useradd", "passwd")
    install(system)
    settings = system / "etc/swarm/node.toml"
    settings.write_text('model = "mine"\n')
    done = said(
        *("install", "node", "--role", "fallback", "--model", "digits"),
        *("--root", str(system), "--program", "/opt/x/swarm-node"),
    )
    assert done.code == 0
    assert settings.read_text() == 'model = "mine"\n'


def test_the_settings_that_are_written_are_settings_of_a_node(system: Path) -> None:
    needed("useradd", "passwd")
    install(system, "--nats", "nats://192.0.2.1:4222")
    written = tomllib.loads((system / "etc/swarm/node.toml").read_text())
    assert written["nats"] == "nats://192.0.2.1:4222"
    assert set(written) <= {each.name for each in settings_of_nodes()}


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--role", "shard-0", "--model", "digits"), "shard-0"),
        (("--role", "shard-1", "--model", "a.b"), "model"),
        (("--role", "shard-1", "--model", "m", "--program", "/home/me/bin/swarm-node"), "/opt"),
        (("--role", "shard-1", "--model", "m", "--credentials", "/nowhere"), "/nowhere"),
    ],
)
def test_a_service_that_could_not_run_is_refused_before_anything_is_written(
    system: Path, arguments: tuple[str, ...], reason: str
) -> None:
    before = everything(system)
    done = said("install", "node", "--root", str(system), *arguments)
    assert done.code != 0
    assert reason in done.stderr
    assert everything(system) == before


def test_an_updater_is_installed_with_its_own_user_and_removed_without_a_trace(
    system: Path,
) -> None:
    needed("useradd", "passwd")
    before = everything(system)
    given = {name: system / name for name in ("node.creds", "own.creds", "keys", "releases")}
    for name, path in given.items():
        path.write_text(name)
    done = said(
        *("install", "updater", "--role", "shard-1", "--model", "digits", "--root", str(system)),
        *("--program", "/opt/x/swarm", "--trust", str(given["keys"])),
        *("--credentials", str(given["node.creds"])),
        *("--own-credentials", str(given["own.creds"]), "--releases", str(given["releases"])),
    )
    assert done.code == 0, done.stderr
    for path in given.values():
        path.unlink()
    assert "\nswarm-updater:" in (system / "etc/passwd").read_text()
    units, settings = system / "etc/systemd/system", system / "etc/swarm"
    assert "ExecStart=/opt/x/swarm fleet updater" in (units / "swarm-updater.service").read_text()
    assert (units / "multi-user.target.wants/swarm-updater.service").is_symlink()
    loaded = (units / "swarm-updater.service.d/credentials.conf").read_text()
    kept = {name: (settings / f"{name}.creds").read_text() for name in ("shard-1", "updater")}
    assert kept == {"shard-1": "node.creds", "updater": "own.creds"}
    assert all(f"LoadCredential={name}:/etc/swarm/{name}.creds" in loaded for name in kept)
    assert (settings / "trusted-releases").read_text() == "releases"
    options = {each.name for each in (*fields(UpdaterOptions), *fields(Target))}
    written = tomllib.loads((settings / "updater.toml").read_text())
    assert set(written) <= options
    node = parse("swarm-node", "", "", settings_of_nodes(), shlex.split(written["node"])[:2], {})
    assert node["role"] == "shard-1"
    assert "node.toml --credentials /run/credentials/" in written["node"]
    assert said("install", "remove", "--root", str(system), "--settings").code == 0
    assert everything(system) == before
    assert "swarm" not in (system / "etc/passwd").read_text()


def test_the_unit_of_an_updater_leaves_its_nodes_and_is_hardened_too(tmp_path: Path) -> None:
    text = (ROOT / "nodes" / "upgrade" / "install" / "swarm-updater.service").read_text()
    assert "\nKillMode=process\n" in text
    assert "\nRemoveIPC=no\n" in text
    unit = tmp_path / "swarm-updater.service"
    unit.write_text(text)
    assert exposure(unit) <= MOST_EXPOSURE


def exposure(unit: Path) -> float:
    program = needed("systemd-analyze", "systemd")
    done = subprocess.run(
        [program, "security", "--offline=true", "--no-pager", str(unit)],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    last = next(line for line in done.stdout.splitlines() if "Overall exposure" in line)
    return float(last.split(":")[1].split()[0])


def test_the_unit_is_hardened_and_a_protection_that_is_taken_away_shows(tmp_path: Path) -> None:
    unit = tmp_path / "swarm-node@x.service"
    unit.write_text(UNIT.read_text())
    assert exposure(unit) <= MOST_EXPOSURE
    lines = UNIT.read_text().replace("SystemCallFilter=@system-service\n", "")
    unit.write_text(lines.replace("ProtectSystem=strict\n", ""))
    assert exposure(unit) > MOST_EXPOSURE
