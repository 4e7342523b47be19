"""The machine that a node is installed on: this one, or a root folder that an image is made of."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from nodes.upgrade.install.plan import (
    DATA,
    SETTINGS,
    UNIT,
    UNITS,
    UPDATER,
    UPDATER_UNIT,
    USER,
    Installation,
)
from swarm.errors import InvalidArgument, PermissionDenied, Unavailable

COMMAND_TIMEOUT = 60.0  # seconds; a node drains within fifteen


class Machine:
    """root: `/`, or a folder with the system that is to be changed."""

    def __init__(self, root: Path) -> None:
        if not (root / "etc/passwd").exists():
            raise InvalidArgument(f"{root} holds no system: it has no etc/passwd")
        self._root = root

    @property
    def _runs_systemd(self) -> bool:
        return self._root == Path("/") and Path("/run/systemd/system").exists()

    def install(self, installation: Installation) -> list[str]:
        """Make the user, write the files, start the units where systemd runs. Returns the paths
        that were written. Raises `PermissionDenied`, `Unavailable`."""
        self._need_root()
        self._make_user(installation.user)
        written = []
        for each in installation.files:
            path = self._root / each.path
            if each.kept and path.exists():
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            _write(path, each.content, each.mode)
            written.append(str(path))
        if self._runs_systemd:
            _run("systemctl", "daemon-reload")
            _run("systemctl", "enable", *installation.enabled)
            # A node that waits for a model is not started yet: nobody waits for it here.
            _run("systemctl", "restart", "--no-block", *installation.enabled)
        else:
            for unit in installation.enabled:
                shipped = UPDATER_UNIT if unit.startswith(UPDATER) else UNIT
                _link(self._root / UNITS / "multi-user.target.wants" / unit, f"/{shipped}")
        return written

    def remove(self, with_settings: bool) -> list[str]:
        """Stop the nodes, and delete what `install` and the nodes wrote; settings and credentials
        too, if asked for. Returns the paths that were deleted. Raises `PermissionDenied`,
        `Unavailable`."""
        self._need_root()
        units = self._root / UNITS
        # A pattern: a name alone finds no link to a file of a root folder.
        wants = units / "multi-user.target.wants"
        wanted = sorted([*wants.glob("swarm-node@*.service"), *wants.glob(f"{UPDATER}.servic[e]")])
        if self._runs_systemd and wanted:
            _run("systemctl", "disable", "--now", *(path.name for path in wanted))
        gone = [*self._paths(with_settings), *wanted]
        gone = [path for path in gone if path.is_symlink() or path.exists()]
        for path in gone:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        if self._runs_systemd:
            _run("systemctl", "daemon-reload")
        for user in (USER, UPDATER):
            if self._has_user(user):
                _run("userdel", *self._prefix(), user)
        return sorted(str(path) for path in gone)

    def _paths(self, with_settings: bool) -> Iterator[Path]:
        yield self._root / UNIT
        yield self._root / UPDATER_UNIT
        yield self._root / f"{UPDATER_UNIT}.d"
        yield from (self._root / UNITS).glob("swarm-node@*.service.d")
        for name in DATA:
            yield self._root / name
        if with_settings:
            yield self._root / SETTINGS

    def _make_user(self, user: str) -> None:
        if not self._has_user(user):
            home = ("--home-dir", "/nonexistent", "--no-create-home")
            shell = ("--shell", "/usr/sbin/nologin")
            _run("useradd", *self._prefix(), "--system", "--user-group", *home, *shell, user)

    def _has_user(self, user: str) -> bool:
        users = (self._root / "etc/passwd").read_text(encoding="utf-8")
        return any(line.startswith(f"{user}:") for line in users.splitlines())

    def _prefix(self) -> tuple[str, ...]:
        return () if self._root == Path("/") else ("--prefix", str(self._root))

    def _need_root(self) -> None:
        if os.geteuid() != 0:
            raise PermissionDenied("a service is installed by root: sudo swarm install …")


def _write(path: Path, content: str, mode: int) -> None:
    """Replace a file as a whole: a power cut leaves the old one or the new one."""
    new = path.with_name(f".{path.name}.new")
    handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with open(handle, "w", encoding="utf-8") as file:
        os.fchmod(file.fileno(), mode)
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)


def _link(path: Path, target: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.symlink_to(target)


def _run(*command: str) -> None:
    """Raises `Unavailable`, with what the command says."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=COMMAND_TIMEOUT, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"{command[0]}: {error}") from None
    if done.returncode:
        raise Unavailable(f"{' '.join(command)}: {_said(done.stderr.splitlines())}")


def _said(lines: Sequence[str]) -> str:
    return lines[-1] if lines else "failed without a word"
