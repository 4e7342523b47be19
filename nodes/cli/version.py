"""`swarm version`: what is installed, for bug reports."""

from __future__ import annotations

import platform
import subprocess
from importlib.metadata import PackageNotFoundError, requires
from importlib.metadata import version as version_of

import swarm
from nodes.cli.command import option
from nodes.cli.options import Json
from nodes.console import out, print_json
from nodes.up.embedded_server import find_binary
from swarm.errors import Unavailable

PACKAGE = "swarm-mesh"
PROGRAM_TIMEOUT = 5.0  # seconds


def version(
    all: bool = option(False, "Of Python, the system, the server and each library too."),
    json: Json = False,
) -> int:
    """Print what is installed, for bug reports."""
    found = {"swarm": swarm.__version__}
    if all:
        found |= {
            "python": platform.python_version(),
            "system": platform.platform(),
            "nats-server": _server(),
            **_libraries(),
        }
    if json:
        print_json(found)
    else:
        for name, number in found.items():
            out.print(f"{name} {number}", markup=False, highlight=False)
    return 0


def _libraries() -> dict[str, str]:
    """Version by name of the libraries that some part of this package needs, where installed."""
    found = {}
    for requirement in sorted(requires(PACKAGE) or ()):
        name = requirement.partition(";")[0]
        for sign in "[<>=!~ ":
            name = name.partition(sign)[0]
        if name == PACKAGE:
            continue
        try:
            found[name] = version_of(name)
        except PackageNotFoundError:
            continue  # of an extra that is not installed
    return found


def _server() -> str:
    """What the embedded server says of itself."""
    try:
        command = [find_binary(), "--version"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PROGRAM_TIMEOUT)
    except (Unavailable, OSError, subprocess.TimeoutExpired) as error:
        return f"none: {error}"
    return done.stdout.strip().rpartition(" ")[2]
