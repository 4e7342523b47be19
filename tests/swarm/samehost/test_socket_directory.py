"""The directory of the sockets: its user's alone, swept, and made again when it is gone."""

from __future__ import annotations

import asyncio
import shutil
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from host_processes import Make, directory, two

from swarm.samehost import host_socket
from swarm.samehost.socket_directory import SocketDirectory

pytestmark = pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="no Unix sockets here")


async def test_only_its_user_can_send_to_a_process(make: Make, tmp_path: Path) -> None:
    a = make()
    a.open()
    assert stat.S_IMODE(directory(tmp_path).stat().st_mode) == 0o700
    (only,) = directory(tmp_path).iterdir()
    assert stat.S_IMODE(only.stat().st_mode) == 0o600


@pytest.mark.parametrize("trap", ["open to others", "a link", "a file"])
async def test_a_directory_that_others_could_have_made_is_not_used(
    make: Make, tmp_path: Path, trap: str
) -> None:
    target = directory(tmp_path)
    if trap == "open to others":
        target.mkdir()
        target.chmod(0o777)
    elif trap == "a link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        target.symlink_to(tmp_path / "elsewhere")
    else:
        target.touch()
    a = make()
    assert a.open() == ""
    assert not a.send(a.inbox, "s", [b"x"])
    a.close()


async def test_nothing_is_left_of_a_process_that_closed(make: Make, tmp_path: Path) -> None:
    a, b = make(), make()
    a.open(), b.open()
    a.close()
    a.close()
    assert len(list(directory(tmp_path).iterdir())) == 1
    b.close()
    assert not directory(tmp_path).exists()
    assert a.open(), "it can come again"


async def test_the_socket_of_a_killed_process_is_swept_and_that_of_a_living_one_is_not(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_socket, "SWEEP_EVERY", 0.0)
    code = (
        "import asyncio, sys\n"
        "from swarm.samehost.host_socket import HostSocket\n"
        "from swarm.link import Link, LinkOptions\n"
        "async def main():\n"
        "    d = HostSocket(Link(LinkOptions()), directory=sys.argv[1])\n"
        "    print(d.open(), flush=True)\n"
        "    await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    a = make()
    mine = a.open()
    with subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        theirs = (await asyncio.to_thread(child.stdout.readline)).strip()
        assert a.send(theirs, "s", [b"x"])
        a.tend()
        assert {p.name for p in directory(tmp_path).iterdir()} == {mine, theirs}
        child.send_signal(signal.SIGKILL)
    assert not a.send(theirs, "s", [b"x"])
    a.tend()
    assert {p.name for p in directory(tmp_path).iterdir()} == {mine}
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as dead:
        dead.bind(str(directory(tmp_path) / "_INBOX.dead"))
    a.close()
    assert not directory(tmp_path).exists(), "the last one to leave cleans up"


async def test_a_directory_that_was_taken_away_is_made_again(make: Make, tmp_path: Path) -> None:
    a, b, inbox = two(make)
    shutil.rmtree(directory(tmp_path))
    assert not a.send(inbox, "s", [b"x"])
    for each in (a, b):
        each.tend()
    assert a.send(inbox, "s", [b"x"])
    directory(tmp_path).chmod(0o755)  # or made by somebody else
    a.tend()
    assert not a.send(inbox, "s", [b"x"])
    directory(tmp_path).chmod(0o700)


async def test_a_socket_that_was_taken_away_is_made_again_and_one_that_was_not_is_kept(
    make: Make, tmp_path: Path
) -> None:
    a, b, inbox = two(make)
    (directory(tmp_path) / inbox).unlink()
    gone: list[str] = []
    a.on_gone.append(gone.append)
    b.tend()
    assert a.send(inbox, "s", [b"x"])
    (directory(tmp_path) / inbox).unlink()
    b.tend()
    assert a.send(inbox, "s", [b"x"]), "though the socket that it was connected to is no more"
    assert gone == []
    kept = (directory(tmp_path) / inbox).stat()
    b.tend()
    assert (directory(tmp_path) / inbox).stat().st_ino == kept.st_ino


async def test_a_process_that_could_not_be_reachable_tries_again(
    make: Make, tmp_path: Path
) -> None:
    a, b = make(), make()
    a.open()
    directory(tmp_path).chmod(0o755)
    assert b.open() == ""
    b.tend()
    directory(tmp_path).chmod(0o700)
    b.tend()
    assert a.send(b.inbox, "s", [b"x"])


async def test_many_may_sweep_at_once(make: Make, tmp_path: Path) -> None:
    """A socket that one of them finds gone was swept by another; those of living processes stay."""
    many = [make() for _ in range(4)]
    inboxes = [each.open() for each in many]
    names = SocketDirectory(str(tmp_path))
    for _ in range(10):
        for number in range(20):
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as dead:
                dead.bind(str(directory(tmp_path) / f"_INBOX.dead{number}"))
        await asyncio.gather(*(asyncio.to_thread(names.sweep) for _ in many))
        assert {path.name for path in directory(tmp_path).iterdir()} == set(inboxes)
    assert all(many[0].send(inbox, "s", [b"x"]) for inbox in inboxes)


async def test_sweeping_never_raises(make: Make, tmp_path: Path) -> None:
    a = make()
    a.open()
    (directory(tmp_path) / "a directory").mkdir()
    (directory(tmp_path) / "a file").touch()
    (directory(tmp_path) / "a link").symlink_to("nowhere")
    a.tend()
    assert len(list(directory(tmp_path).iterdir())) == 4
