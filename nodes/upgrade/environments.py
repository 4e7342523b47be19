"""The environments of a device: one folder a release, and the link `current`.

HOME/releases/VERSION          the environment; its nodes are bin/swarm-node
HOME/releases/.VERSION.made    it is whole
HOME/files/VERSION             what the release consists of, as it was fetched
HOME/current                   the release that a boot starts
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import sys
from collections.abc import Collection, Sequence
from pathlib import Path

from nodes.upgrade.device import Record
from nodes.upgrade.release import INSTALL, PACKAGE, Release, checked_version
from swarm.errors import InvalidArgument
from swarm.security.files import replace

# An updater's record on the disk: replaced as a whole, and on the disk before anything follows.


log = logging.getLogger("swarm.upgrade")

LARGEST = 64 << 10  # bytes


class RecordFile:
    """The record in one file. Methods raise `OSError`."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> Record | None:
        """None where there is none, or none that can be read: then `current` says what is good."""
        try:
            with self._path.open("rb") as file:
                return Record.of(json.loads(file.read(LARGEST)))
        except FileNotFoundError:
            return None
        except (ValueError, InvalidArgument) as error:
            log.warning("%s is left aside: %s", self._path, error)
            return None

    def write(self, record: Record) -> None:
        """Returns when it is on the disk, with its name."""
        replace(self._path, json.dumps(record.document()).encode() + b"\n", 0o644)
        sync_folder(self._path.parent)


def sync_folder(folder: Path) -> None:
    """Returns when the names in a folder are on the disk. Raises `OSError`."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


PROGRAM = "bin/swarm-node"
MAKE_TIMEOUT = 1200.0  # seconds for pip, on a small device
CHECK_TIMEOUT = 120.0  # seconds for the first start of the new program
SAID = 500  # characters of a failure's output


class Environments:
    """All methods raise `OSError`."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._releases = home / "releases"
        self._link = home / "current"

    def folder(self, version: str) -> Path:
        """Of a release's environment."""
        return self._releases / checked_version(version)

    def program(self, version: str) -> Path:
        """A release's `swarm-node`."""
        return self.folder(version) / PROGRAM

    def files(self, version: str) -> Path:
        """Folder with what a release consists of."""
        return self.home / "files" / checked_version(version)

    def all_files(self) -> list[Path]:
        """The folders of all releases' files that are here."""
        folder = self.home / "files"
        return sorted(folder.iterdir()) if folder.is_dir() else []

    def is_made(self, version: str) -> bool:
        """Whether a release's environment is whole."""
        return self._made(version).exists() and self.program(version).exists()

    def _made(self, version: str) -> Path:
        return self._releases / f".{checked_version(version)}.made"

    def current(self) -> str:
        """The release that `current` names, "" for none."""
        return os.readlink(self._link).rpartition("/")[2] if self._link.is_symlink() else ""

    def switch(self, version: str) -> None:
        """Let `current` name a release: the one of before, or this one, whatever happens."""
        new = self.home / ".current.new"
        new.unlink(missing_ok=True)
        new.symlink_to(f"releases/{checked_version(version)}")
        os.replace(new, self._link)
        sync_folder(self.home)

    def adopt(self, version: str, environment: Path) -> None:
        """Take an environment that is there already as a release's. Raises `InvalidArgument`."""
        if not (environment / PROGRAM).exists():
            raise InvalidArgument(f"{environment} has no {PROGRAM}: give the folder of a venv")
        self._releases.mkdir(parents=True, exist_ok=True)
        self._made(version).unlink(missing_ok=True)
        self._clear(version)
        self.folder(version).symlink_to(environment.absolute())
        self._made(version).touch()
        sync_folder(self._releases)

    async def make(self, release: Release, python: str = sys.executable) -> None:
        """Make a release's environment of its files alone: by its own program `install`, else by
        venv and pip. Raises `InvalidArgument` where that fails."""
        version, files = release.version, self.files(release.version)
        self._releases.mkdir(parents=True, exist_ok=True)
        self._made(version).unlink(missing_ok=True)
        await asyncio.to_thread(self._clear, version)
        folder = self.folder(version)
        if INSTALL in release.files:
            (files / INSTALL).chmod(0o755)
            await _run([str(files / INSTALL), str(folder), str(files)], MAKE_TIMEOUT)
        else:
            wheels = sorted(files.glob(PACKAGE))
            if len(wheels) != 1:
                raise InvalidArgument(f"release {version} has {len(wheels)} files {PACKAGE}")
            await _run([python, "-m", "venv", str(folder)], MAKE_TIMEOUT)
            pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet"]
            alone = ["--no-index", "--only-binary", ":all:", "--find-links", str(files)]
            await _run([*pip, *alone, f"{wheels[0]}[{release.extras}]"], MAKE_TIMEOUT)
        if not self.program(version).exists():
            raise InvalidArgument(f"release {version} brought no {PROGRAM}")
        await _run([str(self.program(version)), "--help"], CHECK_TIMEOUT)
        # All of it is on the disk before the file that says so.
        await asyncio.to_thread(os.sync)
        self._made(version).touch()
        sync_folder(self._releases)

    def tidy(self, keep: Collection[str]) -> list[str]:
        """Delete all releases but these; returns those that are gone."""
        gone = []
        for folder in (self._releases, self.home / "files"):
            for path in folder.iterdir() if folder.is_dir() else ():
                if path.name.startswith(".") or path.name in keep:
                    continue
                gone.append(path.name)
                self._made(path.name).unlink(missing_ok=True)
                _delete(path)
        return gone

    def _clear(self, version: str) -> None:
        _delete(self.folder(version))


def _delete(path: Path) -> None:
    if path.is_symlink():
        path.unlink()
    elif path.exists():
        shutil.rmtree(path)


async def _run(command: Sequence[str], timeout: float) -> None:
    """Raises `InvalidArgument`, with what the command says. It gives way to the nodes: pip has half
    a minute of work."""
    nice = shutil.which("nice")
    low = [nice, "-n", "19"] if nice else []
    try:
        process = await asyncio.create_subprocess_exec(
            *low,
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
    except OSError as error:
        raise InvalidArgument(f"{command[0]} does not start: {error}") from None
    try:
        async with asyncio.timeout(timeout):
            said, _ = await process.communicate()
    except TimeoutError:
        raise InvalidArgument(f"{command[0]} took more than {timeout:g} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        text = said.decode(errors="replace").strip()[-SAID:]
        raise InvalidArgument(f"{Path(command[0]).name} ended with {process.returncode}: {text}")
