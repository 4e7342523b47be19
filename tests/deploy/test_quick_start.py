"""The server of the README's five minutes starts by the line that stands there, and soon drops a
node that hangs."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

from nodes.up.embedded_server import find_binary

ROOT = Path(__file__).resolve().parents[2]


def test_the_server_of_the_readme_takes_its_configuration_and_has_short_pings(
    tmp_path: Path,
) -> None:
    found = re.search(r"^uv run nats-server (.*?) >", (ROOT / "README.md").read_text(), re.M)
    assert found is not None
    flags = shlex.split(found[1])
    flags[flags.index("-sd") + 1] = str(tmp_path)
    told = subprocess.run(
        [find_binary(), "-t", *flags], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert told.returncode == 0, told.stderr
    settings = (ROOT / flags[flags.index("-c") + 1]).read_text()
    assert 'ping_interval: "2s"' in settings
    assert "ping_max: 2" in settings
