"""The wheel alone, in an empty environment: what a user gets by `pip install`."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from programs import needed
from support.commands import ROOT, environment

BUILD_TIMEOUT = 120  # seconds
TOP_FOLDERS = {"swarm", "shards", "nodes"}


def uv(*arguments: str, cwd: Path = ROOT) -> str:
    program = os.environ.get("UV") or needed("uv", "python3-pip && pip install uv")
    done = subprocess.run(
        [program, *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=BUILD_TIMEOUT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    uv("build", "--wheel", "--quiet", "--out-dir", str(folder))
    (built,) = folder.glob("*.whl")
    return built


def installed(wheel: Path, folder: Path, extra: str = "") -> Path:
    """The Python of an empty environment with the wheel in it."""
    uv("venv", "--quiet", "--python", sys.executable, str(folder))
    python = folder / "bin" / "python"
    uv("pip", "install", "--quiet", "--python", str(python), f"{wheel}{extra}")
    return python


def said(python: Path, program: str) -> str:
    done = subprocess.run(
        [python, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment(),
        cwd="/",
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_holds_the_packages_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == TOP_FOLDERS
    assert not [name for name in names if "/tests/" in name or "bench/" in name]
    assert not [name for name in names if name.endswith((".md", ".pyc"))]


def tracked(*folders: str) -> set[str]:
    """The files of the repository; a tree without its history has none to compare with."""
    command = ["git", "ls-files", "--", *folders]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("there is no history of git here to compare with")
    # What was deleted and not committed yet is in no package.
    return {name for name in listed.stdout.splitlines() if (ROOT / name).exists()}


def test_the_wheel_holds_each_file_of_the_packages(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    packaged = {name for name in names if ".dist-info/" not in name}
    assert packaged == {
        name for name in tracked(*TOP_FOLDERS) if not name.endswith((".md", "imports.toml"))
    }


@pytest.mark.benchmark
def test_the_sdist_holds_each_file_of_the_repository(tmp_path: Path) -> None:
    uv("build", "--sdist", "--quiet", "--out-dir", str(tmp_path))
    (sdist,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(sdist) as files:
        inside = {name.partition("/")[2] for name in files.getnames()}
    assert inside == tracked() | {"PKG-INFO"}


def test_a_client_alone_needs_no_runtime_and_no_web_server(wheel: Path, tmp_path: Path) -> None:
    python = installed(wheel, tmp_path / "client")
    heavy = ("onnxruntime", "onnx", "starlette", "uvicorn", "grpc", "cv2", "av", "textual")
    text = said(python, f"import swarm, sys; print([m for m in {heavy} if m in sys.modules])")
    assert text.strip() == "[]"
    listed = uv("pip", "list", "--quiet", "--python", str(python), "--format", "freeze")
    packages = {line.partition("==")[0] for line in listed.split()}
    assert packages & {*heavy, "opencv-python-headless"} == set()


@pytest.mark.benchmark
@pytest.mark.parametrize(
    "extra", ["node", "split", "server", "metrics", "dashboard", "top", "gateway", "language"]
)
def test_each_extra_brings_what_its_modules_import(wheel: Path, tmp_path: Path, extra: str) -> None:
    modules = {
        "node": ["nodes.life.node", "shards.runtimes.ort"],
        "split": ["shards.split.split"],
        "server": ["nodes.up.embedded_server"],
        "metrics": ["nodes.watch.metrics.families"],
        "dashboard": ["nodes.watch.dashboard.web"],
        "top": ["nodes.watch.top.app"],
        "gateway": ["nodes.gateway.front"],
        "language": ["tokenizers", "jinja2"],
    }[extra]
    python = installed(wheel, tmp_path / extra, f"[{extra}]")
    said(python, "import " + ", ".join(modules))
    program = python.with_name("swarm")
    assert "swarm" in subprocess.check_output([program, "version"], text=True, timeout=60)
    for command in (["swarm", "--help"], ["swarm-node", "--help"]):
        subprocess.check_output([python.with_name(command[0]), *command[1:]], timeout=60)
