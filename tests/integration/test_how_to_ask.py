"""The last lines of `swarm up`, pasted: each of them asks the model."""

from __future__ import annotations

import json
import os
import shlex
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from support.commands import ROOT, Commands, environment
from support.meshes import READY
from support.waiting import eventually_now
from zoo.transformer import transformer_encoder

from nodes.access import NOTHING
from nodes.up.how_to_ask import how_to_ask, swarm_line
from shards.manifest import Manifest
from shards.split.split import split

pytestmark = [pytest.mark.integration, pytest.mark.processes]

MODEL = transformer_encoder(layers=2, d_model=16, heads=2, seq=8, vocabulary=50)
TITLES = (
    "Ask it from the shell:",
    "from Python:",
    "from any NATS client:",
    "over HTTP, at ",
    "Watch it (Ctrl-C here ends all):",
    "Watch it in a browser:",
)
# As `nats -s URL req SUBJECT --force-stdin` does it; the tool itself may not be installed here.
NATS_TOOL = f"""#!{sys.executable}
import asyncio, sys, nats
async def main():
    flag, url, command, subject, stdin = sys.argv[1:]
    assert (flag, command, stdin) == ("-s", "req", "--force-stdin")
    client = await nats.connect(url)
    answer = await client.request(subject, sys.stdin.buffer.read(), timeout=10)
    print(answer.data.decode())
    await client.close()
asyncio.run(main())
"""


def pasted(command: str, folder: Path) -> str:
    """What a shell prints when these lines are pasted into it."""
    tools = folder / "tools"
    tools.mkdir(exist_ok=True)
    tool = tools / "nats"
    tool.write_text(NATS_TOOL)
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    beside = Path(sys.executable).parent
    path = f"{tools}{os.pathsep}{beside}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=ROOT,
        env=environment({"PATH": path}),
        capture_output=True,
        text=True,
        timeout=2 * READY,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stderr}"
    return done.stdout


@pytest.mark.benchmark  # a whole story, longer than ten seconds
def test_every_line_that_up_prints_can_be_pasted(run: Commands, tmp_path: Path) -> None:
    """With token ids and a free batch axis, which are harder to make up than images."""
    file = tmp_path / "words.onnx"
    file.write_bytes(MODEL)
    arguments = ["--model", str(file), "--stages", "2", "--no-fallback", "--mesh", "talk"]
    arguments += ["--http", "--http-port", "0"]
    command = run.start("nodes.cli.main", "up", *arguments)
    eventually_now(lambda: "swarm dashboard" in command.stdout, "the last line", 2 * READY)
    text = command.stdout
    begins = [text.index(title) + len(title) for title in TITLES]
    ends = [text.index(title) for title in TITLES[1:]]
    shell, python, nats, http, _top = (
        text[begin:end].strip() for begin, end in zip(begins, ends, strict=False)
    )
    assert "1 of 1 answered" in pasted(shell, tmp_path)
    assert "array(" in pasted(python, tmp_path)
    answer = json.loads(pasted(nats, tmp_path))
    assert answer["outputs"][0]["data"]
    assert answer["model_name"] == "words"
    address, _, curl = http.partition(":\n")
    answer = json.loads(pasted(curl, tmp_path))
    assert (answer["model_name"], address in curl) == ("words", True)
    command.signal(signal.SIGINT)
    assert command.wait() == 0


@pytest.fixture(scope="module")
def manifest() -> Manifest:
    return split(MODEL, name="words", stages=2).manifest


def test_the_lines_name_the_mesh_and_use_uv_where_uv_started_the_command(
    manifest: Manifest,
) -> None:
    plain = how_to_ask(manifest, "nats://h:1", "default", {})
    assert "--mesh" not in plain.shell + swarm_line("top", "nats://h:1", "default", NOTHING, {})
    assert not plain.shell.startswith("uv")
    uv = {"UV_RUN_RECURSION_DEPTH": "1"}
    other = how_to_ask(manifest, "nats://h:1", "talk", uv)
    top = swarm_line("top", "nats://h:1", "talk", NOTHING, uv)
    for line in (other.shell, other.python, other.nats, top):
        assert line.startswith("uv run ")
        assert "talk" in line
    assert shlex.split(other.shell)[-4:] == ["--nats", "nats://h:1", "--mesh", "talk"]
