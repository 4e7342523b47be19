"""The folder that `swarm auth server` writes starts a server wherever it lies."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.commands import said
from support.ports import free_port
from support.waiting import eventually_now

from nodes.up.embedded_server import find_binary

STATE = "/var/lib/nats"  # the one place that a server writes to
ENVIRONMENT = {"JS_KEY": "k" + "5" * 64, "PATH": os.environ["PATH"]}


@pytest.fixture
def auth(tmp_path: Path) -> Path:
    folder = tmp_path / "auth"
    assert said("auth", "init", str(folder)).code == 0
    assert said("auth", "add", "ops", "--role", "operator", "--auth", str(folder)).code == 0
    return folder


def write(folder: Path, auth: Path, *options: str) -> None:
    done = said("auth", "server", str(folder), "--auth", str(auth), *options)
    assert done.code == 0, done.stderr


def contents(folder: Path) -> dict[str, tuple[int, str]]:
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_text())
        for path in folder.rglob("*")
        if path.is_file()
    }


@contextmanager
def served(folder: Path, state: Path, conf: str = "nats-server.conf") -> Iterator[str]:
    """A server that runs in this folder; what it has said. Its one writable place is `state`."""
    state.mkdir(exist_ok=True)
    log = state / "log"
    command = [find_binary(), "-c", conf, f"--port={free_port()}", f"--log={log}"]
    process = subprocess.Popen(command, cwd=folder, env=ENVIRONMENT)
    try:
        eventually_now(lambda: process.poll() is not None or "Server is ready" in _text(log), "up")
        yield _text(log)
    finally:
        process.terminate()
        process.wait(10)


def _text(log: Path) -> str:
    return log.read_text() if log.exists() else ""


def moved(folder: Path, target: Path, state: Path) -> Path:
    """The folder elsewhere, with another place for what the server writes."""
    shutil.move(folder, target)
    conf = target / "nats-server.conf"
    conf.write_text(conf.read_text().replace(STATE, str(state)))
    return target


KINDS = [
    [option for option in options if option]
    for options in itertools.product(["", "--plain"], ["", "--tls=nats"], ["", "--encrypt"])
] + [["--tls=nats", "--mutual"]]


@pytest.mark.parametrize("options", KINDS, ids=" ".join)
def test_no_file_of_the_folder_says_where_the_folder_lies(
    auth: Path, tmp_path: Path, options: list[str]
) -> None:
    folder = tmp_path / "server"
    write(folder, auth, *options)
    for name, (_, text) in contents(folder).items():
        assert str(tmp_path) not in text, name


@pytest.mark.integration
@pytest.mark.parametrize("options", [["--tls=nats"], ["--plain", "--tls=nats"]], ids=" ".join)
def test_a_folder_that_was_moved_starts_and_is_not_written_to(
    auth: Path, tmp_path: Path, options: list[str]
) -> None:
    state = tmp_path / "state"
    write(tmp_path / "server", auth, *options)
    folder = moved(tmp_path / "server", tmp_path / "elsewhere", state)
    before = contents(folder)
    with served(folder, state) as log:
        assert "Server is ready" in log, log
        assert int((state / "server.pid").read_text()) > 0
    assert contents(folder) == before
    assert (state / "jwt").is_dir() is ("--plain" not in options)


@pytest.mark.integration
def test_a_revocation_keeps_the_folder_of_any_place(auth: Path, tmp_path: Path) -> None:
    folder, state = tmp_path / "server", tmp_path / "state"
    write(folder, auth, "--tls=nats")
    assert said("auth", "revoke", "ops", "--auth", str(auth)).code == 0
    assert said("auth", "certs", "--rotate", "--auth", str(auth)).code == 0
    folder = moved(folder, tmp_path / "elsewhere", state)
    with served(folder, state) as log:
        assert "Server is ready" in log, log


CHANGES = [
    ["auth", "add", "cam", "--role", "edge", "--model", "m"],
    ["auth", "revoke", "cam"],
    ["auth", "limits", "--client-payload", "65536"],
    ["auth", "rotate"],
    ["auth", "rotate", "--finish"],
    ["auth", "certs", "--rotate"],
]


@pytest.mark.integration
@pytest.mark.parametrize("options", [["--tls=nats"], ["--plain", "--tls=nats"]], ids=" ".join)
def test_a_server_that_runs_takes_its_files_anew_after_each_change(
    auth: Path, tmp_path: Path, options: list[str]
) -> None:
    folder, state = tmp_path / "server", tmp_path / "state"
    write(folder, auth, *options)
    conf = folder / "nats-server.conf"
    conf.write_text(conf.read_text().replace(STATE, str(state)))
    with served(folder, state):
        for taken, change in enumerate(CHANGES, 1):
            begun = int(time.time())
            eventually_now(lambda begun=begun: int(time.time()) > begun, "another second")
            done = said(*change, "--auth", str(auth))
            assert done.code == 0, (change, done.stderr)
            os.kill(int((state / "server.pid").read_text()), signal.SIGHUP)
            eventually_now(
                lambda taken=taken: _text(state / "log").count("Reloaded server") == taken,
                f"{change} is taken:\n{_text(state / 'log')[-2000:]}",
                10,
            )


@pytest.mark.integration
def test_a_folder_of_an_earlier_swarm_starts_from_anywhere_as_before(
    auth: Path, tmp_path: Path
) -> None:
    folder, state = tmp_path / "server", tmp_path / "state"
    folder.mkdir(mode=0o700)
    (folder / "nats-server.conf").write_text(
        f"jetstream {{ store_dir: {json.dumps(str(state))} }}\n"
        f'pid_file: "{folder / "server.pid"}"\ninclude ./users.conf\ninclude ./tls.conf\n'
    )
    write(folder, auth, "--tls=nats")
    with served(tmp_path, state, str(folder / "nats-server.conf")) as log:
        assert "Server is ready" in log, log
    assert (folder / "jwt").is_dir()


@pytest.mark.parametrize(("first", "then"), [([], ["--plain"]), (["--plain"], [])])
def test_another_kind_of_users_names_the_line_that_has_to_change(
    auth: Path, tmp_path: Path, first: list[str], then: list[str]
) -> None:
    folder = tmp_path / "server"
    write(folder, auth, *first)
    before = contents(folder)
    done = said("auth", "server", str(folder), "--auth", str(auth), *then)
    assert done.code == 1
    assert "resolver:" in done.stderr
    assert contents(folder) == before


def test_the_line_that_starts_it_is_printed_for_a_folder_with_a_blank(
    auth: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "of the server"
    done = said("auth", "server", str(folder), "--auth", str(auth))
    assert f"cd '{folder}' && nats-server -c nats-server.conf" in done.stdout + done.stderr


@pytest.mark.integration
def test_files_that_a_server_of_another_user_reads_stay_its_own(auth: Path, tmp_path: Path) -> None:
    folder = tmp_path / "server"
    write(folder, auth, "--tls=nats")
    if os.geteuid() != 0:
        pytest.skip("gives files to another user: needs root")
    for path in (folder, *folder.iterdir()):
        os.chown(path, 64321, 64321)
    assert said("auth", "revoke", "ops", "--auth", str(auth)).code == 0
    assert said("auth", "certs", "--rotate", "--auth", str(auth)).code == 0
    assert {path.stat().st_uid for path in folder.iterdir()} == {64321}
