"""A process imports what it uses: each library that it does not use costs every node its memory."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

TOLD = "import json, sys; print(json.dumps(sorted(sys.modules)))"
SPLITTER = ("onnx", "shards.split", "shards.graph", "ml_dtypes", "google.protobuf")
TERMINAL = ("typer", "rich", "click")
OTHERS = (
    "nats",
    "psutil",
    "matplotlib",
    "sklearn",
    "prometheus_client",
    "nodes.watch.metrics",
    "nodes.guard.judging",
    "shards.guard.reference",
    "textual",
)


def imported(code: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{TOLD}"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout))


@pytest.mark.parametrize(
    ("process", "code", "unused"),
    [
        (
            "a node that serves",
            "import nodes.cli.node, nodes.edge.edge, nodes.life.node, nodes.process\n"
            "import onnxruntime, swarm.models.artifact_cache",
            (*SPLITTER, *TERMINAL, *OTHERS),
        ),
        (
            "the supervisor of `swarm up`",
            "import nodes.cli.main, nodes.cli.up",
            (*SPLITTER, *OTHERS, "onnxruntime"),
        ),
        (
            "a client",
            "import swarm",
            (*SPLITTER, *TERMINAL, *OTHERS, "onnxruntime", "shards", "nodes"),
        ),
    ],
)
def test_a_process_imports_no_library_that_it_does_not_use(
    process: str, code: str, unused: tuple[str, ...]
) -> None:
    found = {
        module
        for module in imported(code)
        for name in unused
        if module == name or module.startswith(f"{name}.")
    }
    assert found == set(), f"{process} imports {sorted(found)}"
