"""In every installation each command works, or says in one line which extra it needs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from programs import needed

from nodes.extras import extra_of, missing_extra
from nodes.features import NAMES, features

INSTALLATIONS = Path(__file__).parent / "installations"
ROOT = Path(__file__).parents[2]
OF_NODE = {"onnxruntime", "zstandard"}
OF_GATEWAY = {"grpc", "grpc_reflection", "google", "orjson", "jwt", "uvicorn", "httptools"}
HAVE: dict[str, set[str]] = {
    "client": set(),
    "node": OF_NODE,
    "split": {"onnx", "onnxruntime"},
    "gateway": OF_NODE | OF_GATEWAY,
}
LINE = re.compile(r"pip install 'swarm-mesh\[([\w,]+)\]'")


def played(installation: str, *commands: str) -> dict[str, dict[str, Any]]:
    """How each command ends where these libraries are missing, by its command line."""
    hidden = ",".join(extra_of().keys() - HAVE[installation])
    done = subprocess.run(
        [sys.executable, str(INSTALLATIONS / "every_command.py"), *commands],
        env=os.environ | {"HIDDEN": hidden, "PYTHONPATH": str(INSTALLATIONS)},
        capture_output=True,
        text=True,
        timeout=560,
        check=True,
    )
    told = {told["command"]: told for told in map(json.loads, done.stdout.splitlines())}
    if len(features()) < len(NAMES):  # of features that are not there
        return {name: each for name, each in told.items() if "No such option" not in each["last"]}
    return told


def test_where_no_extra_is_installed_a_command_says_which_one_it_needs() -> None:
    told = played("client", "demo", "model split", "model quantize", "dashboard")
    assert len(told) >= (8 if len(features()) == len(NAMES) else 3)
    for command, each in told.items():
        assert not each["defect"], command
        assert each["code"] == 1, command
        assert LINE.search(each["last"]), f"{command}: {each['last']}"


def test_a_command_says_all_extras_that_it_lacks_at_once() -> None:
    told = played("client", "demo", "up")
    named = {line: LINE.search(each["last"]) for line, each in told.items()}
    extras = {line: found[1] if found else told[line]["last"] for line, found in named.items()}
    assert extras["demo --seconds 6"] == extras["demo --secure"] == "node,split"
    assert extras["up --model digits.onnx"] == "node,split"
    assert extras.get("demo --camera", "node,perception,split") == "node,perception,split"
    assert extras.get("demo --chat", "language,node,split") == "language,node,split"


@pytest.mark.weekly
@pytest.mark.timeout(600)
@pytest.mark.parametrize("installation", HAVE)
def test_no_command_ends_in_a_defect_in_any_installation(installation: str) -> None:
    told = played(installation)
    assert len(told) > 50
    for command, each in told.items():
        assert not each["defect"], f"{command}: {each}"


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    uv("build", "--wheel", "--quiet", "--out-dir", str(folder), str(ROOT))
    (built,) = folder.glob("*.whl")
    return built


def uv(*words: str) -> None:
    program = os.environ.get("UV") or needed("uv", "python3-pip && pip install uv")
    subprocess.run([program, *words], cwd=ROOT, check=True, capture_output=True, timeout=300)


EXTRAS = [
    "",
    *tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"],
]


@pytest.mark.weekly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("extra", EXTRAS)
def test_no_command_ends_in_a_defect_in_a_real_environment_of_any_extra(
    extra: str, wheel: Path, tmp_path: Path
) -> None:
    if extra == "tensorrt":
        pytest.skip("gigabytes of NVIDIA's libraries")
    environment = tmp_path / "environment"
    uv("venv", "--quiet", "--python", sys.executable, str(environment))
    python = environment / "bin" / "python"
    uv(
        "pip",
        "install",
        "--quiet",
        "--python",
        str(python),
        f"{wheel}[{extra}]" if extra else str(wheel),
    )
    done = subprocess.run(
        [str(python), str(INSTALLATIONS / "every_command.py")],
        env={"PATH": f"{python.parent}:/usr/bin:/bin", "HOME": str(tmp_path), "LC_ALL": "C.UTF-8"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=560,
    )
    assert done.returncode == 0, done.stderr
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(told) > 50
    assert [each for each in told if each["defect"]] == []
    lines = {each["command"]: LINE.search(each["last"]) for each in told}
    known = set(EXTRAS)
    for command, found in lines.items():
        assert found is None or set(found[1].split(",")) <= known - {extra}, command


def test_the_extra_that_a_line_names_brings_the_library() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(extra_of().values()) <= project["optional-dependencies"].keys()
    for module, extra in extra_of().items():
        error = missing_extra(ModuleNotFoundError("no", name=f"{module}.inner"), "it")
        assert error is not None
        assert str(error) == f"it needs {module}: pip install 'swarm-mesh[{extra}]'"


def test_a_module_that_no_extra_brings_is_a_defect_and_stays_one() -> None:
    assert missing_extra(ModuleNotFoundError("no", name="nodes.nothing")) is None
    assert missing_extra(ImportError("cannot import name", name="onnx")) is None
