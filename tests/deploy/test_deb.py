"""The package of Debian, built from the wheel: program, unit, settings that stay."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from programs import needed
from support.commands import ROOT

SCRIPT = ROOT / "deploy" / "deb" / "build.sh"


@pytest.mark.benchmark
def test_the_package_holds_the_program_the_unit_and_settings_that_stay(tmp_path: Path) -> None:
    needed("dpkg-deb", "dpkg")
    uv = os.environ.get("UV") or needed("uv", "python3-pip && pip install uv")
    build = [uv, "build", "--wheel", "--quiet", "--out-dir", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, timeout=120)
    (wheel,) = tmp_path.glob("*.whl")
    path = f"{Path(sys.executable).parent}:{Path(uv).parent}:{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "OUT": str(tmp_path), "PYTHON": sys.executable}
    subprocess.run([SCRIPT, wheel, "node"], check=True, timeout=300, env=environment)
    (package,) = tmp_path.glob("*.deb")
    listed = subprocess.check_output(["dpkg-deb", "--contents", package], text=True, timeout=60)
    for name in (
        "./opt/swarm/bin/swarm-node",
        "./usr/lib/systemd/system/swarm-node@.service",
        "./etc/swarm/node.toml",
    ):
        assert name in listed
    fields = subprocess.check_output(["dpkg-deb", "--field", package], text=True, timeout=60)
    assert f"python3 (<< 3.{sys.version_info.minor + 1})" in fields
    control = ["dpkg-deb", "--ctrl-tarfile", package]
    archive = subprocess.check_output(control, timeout=60)
    conffiles = ["tar", "--extract", "--to-stdout", "./conffiles"]
    kept = subprocess.run(conffiles, input=archive, capture_output=True, check=True, timeout=60)
    assert kept.stdout.decode().split() == ["/etc/swarm/node.toml"]
