"""The names that programs import, and the cost of importing them."""

from __future__ import annotations

import subprocess
import sys

import swarm


def test_the_public_surface_is_this_and_no_more() -> None:
    assert sorted(swarm.__all__) == [
        "Answer",
        "DeadlineExceeded",
        "DecodeError",
        "Hop",
        "Internal",
        "InvalidArgument",
        "Mesh",
        "NotConnected",
        "NotFound",
        "ResourceExhausted",
        "Result",
        "Status",
        "SwarmError",
        "Taught",
        "Ticket",
        "Unauthenticated",
        "Unavailable",
        "__version__",
        "connect",
    ]
    assert all(hasattr(swarm, name) for name in swarm.__all__)


def test_a_client_imports_nothing_that_it_may_never_need() -> None:
    """4 MB and a quarter of the time that `import swarm` takes."""
    code = "import sys, swarm; print(*({'nats', 'importlib.metadata', 'rich'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []
