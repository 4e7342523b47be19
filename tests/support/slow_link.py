"""A slow link to a network namespace of its own: real TCP over a rate and a delay. Linux, root.

    this namespace, 10.x.y.1 ── tun ── `carry`: rate, loss, delay ── tun ── namespace, 10.x.y.2

`slow_link` makes it; this file, run as a program, carries its packets in user space. The idea of a
bottleneck with a tail-drop queue and then loss and delay is netem's and tbf's (tc-netem(8),
tc-tbf(8)).
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import random
import secrets
import select
import shutil
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000  # linux/if_tun.h
CLONE_NEWNET = 0x40000000  # linux/sched.h
FAR_DEVICE = "link0"
FRAME = 18  # bytes that Ethernet adds to a packet
QUEUE_S = 0.1  # seconds of the bottleneck's queue; what comes beyond is dropped
AT_ONCE = 16  # packets that are read from a device before those that are due are written


def unavailable() -> str | None:
    """Why no link can be made here, or None."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "network namespaces need root on Linux"
    if not Path("/dev/net/tun").exists() or shutil.which("ip") is None:
        return "no /dev/net/tun, or no `ip`"
    name = f"try-{secrets.token_hex(4)}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    if made.returncode:
        return f"no network namespaces here: {made.stderr.strip()}"
    subprocess.run(["ip", "netns", "delete", name], check=True)
    return None


@dataclass(frozen=True)
class SlowLink:
    """address: of this side. inside: the words before a command that runs it on the far side."""

    address: str
    device: str
    inside: tuple[str, ...]
    carrier: subprocess.Popen[bytes]

    def reshape(self, mbit: float) -> None:
        """Mbit/s each way from now on."""
        assert self.carrier.stdin is not None
        self.carrier.stdin.write(f"{mbit * 125_000}\n".encode())
        self.carrier.stdin.flush()

    def bytes_down(self) -> int:
        """Bytes of packets that were sent to the far side, those that were dropped included."""
        # The kernel counts them at the device of this side.
        return self._counted("tx_bytes")

    def bytes_arrived(self) -> int:
        """Bytes of packets that arrived on the far side. What the bottleneck drops, TCP sends once
        more: `bytes_down` counts it twice, and this once."""
        words = [*self.inside, "cat", f"/sys/class/net/{FAR_DEVICE}/statistics/rx_bytes"]
        return int(subprocess.run(words, check=True, capture_output=True, text=True).stdout)

    def bytes_up(self) -> int:
        """Bytes of packets that came from the far side."""
        return self._counted("rx_bytes")

    def _counted(self, name: str) -> int:
        return int(Path(f"/sys/class/net/{self.device}/statistics/{name}").read_text())


@contextmanager
def slow_link(mbit: float, round_trip: float, loss: float = 0.0) -> Iterator[SlowLink]:
    """mbit: Mbit/s each way. round_trip: seconds. loss: share of the packets, each way.

    Raises `RuntimeError` where the link does not come up.
    """
    # This file is the carrier's program, too, which is started without the tests' path.
    from support.interfaces import interfaces_change

    token = secrets.token_hex(3)
    namespace, device = f"slow-{token}", f"slow-{token}"
    prefix = f"10.77.{int(token[:2], 16)}"
    here, there = f"{prefix}.1", f"{prefix}.2"
    subprocess.run(["ip", "netns", "add", namespace], check=True)
    shape = [str(mbit * 125_000), str(round_trip / 2), str(loss)]
    words = [sys.executable, __file__, namespace, device, here, there, *shape]
    with interfaces_change():
        carrier = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        answer = b"" if carrier.stdout is None else carrier.stdout.readline()
    try:
        if answer != b"up\n":
            raise RuntimeError("the link did not come up")
        yield SlowLink(here, device, ("ip", "netns", "exec", namespace), carrier)
    finally:
        with interfaces_change():
            carrier.kill()  # it owns nothing that outlives it
            carrier.wait()
        subprocess.run(["ip", "netns", "delete", namespace], check=True)


# --- the carrier ------------------------------------------------------------------------


class Way:
    """One direction: a bottleneck of `rate` bytes a second, then the loss of a share of the
    packets, then `delay` seconds; order is kept."""

    def __init__(self, out: int, rate: float, delay: float, loss: float) -> None:
        self.out, self.rate, self.delay, self.loss = out, rate, delay, loss
        self.free = 0.0  # when the bottleneck has sent all that it has
        self.waiting: deque[tuple[float, bytes]] = deque()

    def take(self, packet: bytes, now: float) -> None:
        if self.free - now <= max(QUEUE_S, 64_000 / self.rate):
            self.free = max(self.free, now) + (len(packet) + FRAME) / self.rate
            if random.random() >= self.loss:
                self.waiting.append((self.free + self.delay, packet))

    def release(self, now: float) -> None:
        while self.waiting and self.waiting[0][0] <= now:
            os.write(self.out, self.waiting.popleft()[1])


def tun(device: str, address: str, peer: str) -> int:
    """A device in the present namespace; it goes when the file is closed."""
    file = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(file, TUNSETIFF, struct.pack("16sH22x", device.encode(), IFF_TUN | IFF_NO_PI))
    for words in (
        f"addr add {address} peer {peer} dev {device}",
        f"link set {device} mtu 1500 txqueuelen 2000 up",
        "link set lo up",
    ):
        subprocess.run(["ip", *words.split()], check=True)
    return file


def enter(namespace: int) -> None:
    """Move this process to a network namespace, by its file (setns(2); Python has it from 3.12)."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")


def carry(
    namespace: str, device: str, here: str, there: str, rate: float, delay: float, loss: float
) -> None:
    """Carry packets until this process is killed."""
    with suppress(PermissionError):
        # Kept from its core, it would find many packets at once, and drop them as a full queue.
        os.nice(-10)
    near = tun(device, here, there)
    home = os.open("/proc/self/ns/net", os.O_RDONLY)
    away = os.open(f"/run/netns/{namespace}", os.O_RDONLY)
    enter(away)
    far = tun(FAR_DEVICE, there, here)
    enter(home)
    ways = {near: Way(far, rate, delay, loss), far: Way(near, rate, delay, loss)}
    print("up", flush=True)
    while True:
        due = [way.waiting[0][0] for way in ways.values() if way.waiting]
        pause = max(0.0, min(due, default=time.monotonic() + 0.2) - time.monotonic())
        for file in select.select([near, far, 0], [], [], pause)[0]:
            if file == 0:  # another rate, or the end of who made this link
                told = os.read(0, 256).split()
                if not told:
                    return
                for way in ways.values():
                    way.rate = float(told[-1])
                continue
            with suppress(BlockingIOError):
                for _ in range(AT_ONCE):
                    ways[file].take(os.read(file, 2048), time.monotonic())
        for way in ways.values():
            way.release(time.monotonic())


if __name__ == "__main__":
    _, namespace, device, here, there, *numbers = sys.argv
    rate, delay, loss = map(float, numbers)
    carry(namespace, device, here, there, rate, delay, loss)
