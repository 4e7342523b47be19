"""Commands on one authority at the same time: nobody's change is lost."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from swarm.errors import Unavailable
from swarm.security.authority.authority import Authority
from swarm.security.files import alone

pytestmark = pytest.mark.processes

PROCESSES, EACH = 4, 6
# Opens the folder, waits until all have done so, then changes it again and again.
COMMAND = """
import sys
from swarm.security.authority.authority import Authority
folder, name, each = sys.argv[1], sys.argv[2], int(sys.argv[3])
authority = Authority(folder)
print("open", flush=True)
sys.stdin.readline()
for number in range(each):
    authority.add(f"{name}-{number}", "edge", ["digits"])
authority.revoke(f"old-{name}")
"""


def test_no_user_and_no_revocation_of_commands_at_the_same_time_is_lost(tmp_path: Path) -> None:
    folder = tmp_path / "auth"
    authority = Authority.create(folder, "default")
    names = [f"p{number}" for number in range(PROCESSES)]
    for name in names:
        authority.add(f"old-{name}", "edge", ["digits"])
    started = [
        subprocess.Popen(
            [sys.executable, "-c", COMMAND, str(folder), name, str(EACH)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in names
    ]
    for process in started:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
    for process in started:
        process.communicate("go\n", timeout=60)
        assert process.returncode == 0
    users = {user.name: user for user in Authority(folder).users}
    assert {f"{name}-{number}" for name in names for number in range(EACH)} <= set(users)
    assert all(users[f"old-{name}"].revoked for name in names)


def test_an_act_knows_what_others_did_since_the_folder_was_opened(tmp_path: Path) -> None:
    one = Authority.create(tmp_path / "auth", "default")
    other = Authority(tmp_path / "auth")
    other.add("cam-1", "edge", ["digits"])
    one.add("cam-2", "edge", ["digits"])
    assert [user.name for user in one.users] == ["cam-1", "cam-2"]


def test_a_folder_that_another_one_changes_for_too_long_is_unavailable(tmp_path: Path) -> None:
    Authority.create(tmp_path / "auth", "default")
    authority = Authority(tmp_path / "auth", wait=0.0)
    with alone(tmp_path / "auth"), pytest.raises(Unavailable, match="another command changes it"):
        authority.add("cam-1", "edge", ["digits"])
    authority.add("cam-1", "edge", ["digits"])
    assert [user.name for user in authority.users] == ["cam-1"]
