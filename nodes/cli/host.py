"""`swarm doctor --host`: settings of this machine that cost time or lose messages, and the remedy.

Each has its source: what was measured with this software, or the page of the program concerned.
"""

from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.markup import escape
from rich.table import Table

from nodes.console import out, print_json

LEAST_FILES = 4096  # a gateway has one for each connection
LEAST_SHM = 256 << 20  # bytes: features between nodes of one host


@dataclass(frozen=True, slots=True)
class HostFinding:
    """value: as it is here, "" where this machine does not say. ok: None where this machine cannot
    tell. wanted: what is better, why: what the present value costs, remedy: a line to type."""

    name: str
    value: str
    ok: bool | None
    wanted: str
    why: str
    remedy: str


def run_host(as_json: bool) -> int:
    """Print what is off; 1 where something is."""
    found = [check() for check in CHECKS]
    if as_json:
        print_json([asdict(each) for each in found])
    else:
        table = Table("setting", "here", "better", "why", "to change it")
        for each in found:
            unknown = each.wanted if each.value else "unknown"
            sign = {True: "ok", False: each.wanted, None: unknown}[each.ok]
            more = (each.why, each.remedy) if not each.ok and each.value else ("", "")
            table.add_row(*map(escape, (each.name, each.value, sign, *more)))
        out.print(table)
    return 1 if any(each.ok is False for each in found) else 0


def _read(path: str) -> str:
    """A file of the kernel, "" where there is none."""
    try:
        return Path(path).read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _governor() -> HostFinding:
    value = _read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    return HostFinding(
        "CPU governor",
        value,
        None if not value else value == "performance",
        "performance",
        "a core that sleeps between requests wakes at its lowest clock (kernel: cpufreq)",
        "echo performance | sudo tee /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor",
    )


def _congestion() -> HostFinding:
    value = _read("/proc/sys/net/ipv4/tcp_congestion_control")
    there = _read("/proc/sys/net/ipv4/tcp_available_congestion_control").split()
    return HostFinding(
        "TCP congestion control",
        value,
        True if value == "bbr" else None,  # whether the links lose packets is not known here
        "bbr, on links that lose packets",
        "measured at 20 Mbit/s, 1 % loss, 100 KB: cubic 107 ms, bbr 55",
        "swarm-node --congestion bbr"
        if "bbr" in there
        else "sudo modprobe tcp_bbr, then swarm-node --congestion bbr",
    )


def _files() -> HostFinding:
    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return HostFinding(
        "open files",
        str(soft),
        soft >= LEAST_FILES,
        f"{LEAST_FILES} or more, for a gateway or a server",
        "each connection takes one",
        f"ulimit -n {LEAST_FILES}; systemd: LimitNOFILE={LEAST_FILES}",
    )


def _shared_memory() -> HostFinding:
    try:
        size = shutil.disk_usage("/dev/shm").total
    except OSError:
        size = 0
    return HostFinding(
        "shared memory",
        f"{size >> 20} MiB",
        size >= LEAST_SHM,
        f"{LEAST_SHM >> 20} MiB or more",
        "features between nodes of one host go by the server where it is full",
        "docker run --shm-size 256m; or mount -o remount,size=256m /dev/shm",
    )


def _clock() -> HostFinding:
    value = _read("/sys/devices/system/clocksource/clocksource0/current_clocksource")
    return HostFinding(
        "clock source",
        value,
        None if not value else value not in ("acpi_pm", "hpet", "jiffies"),
        "tsc, or the hypervisor's",
        "each reading of the time is a system call, or worse (kernel: clocksource)",
        "kernel parameter clocksource=tsc",
    )


def _swap() -> HostFinding:
    value = _read("/proc/sys/vm/swappiness")
    swaps = len(_read("/proc/swaps").splitlines()) > 1
    return HostFinding(
        "swap",
        f"swappiness {value}" if swaps else "none",
        not swaps or (value.isdigit() and int(value) <= 10),
        "none, or swappiness 10 at most",
        "weights of an idle standby that were swapped out come back when it takes over",
        "sudo sysctl vm.swappiness=1",
    )


def _cores() -> HostFinding:
    count, allowed = os.cpu_count() or 1, len(os.sched_getaffinity(0))
    return HostFinding(
        "cores",
        f"{allowed} of {count}",
        allowed > 1,
        "two or more, or nodes with --threads 1",
        "the event loop and a computing thread share one",
        "swarm-node --threads 1",
    )


CHECKS: tuple[Callable[[], HostFinding], ...] = (
    _cores,
    _governor,
    _clock,
    _files,
    _shared_memory,
    _swap,
    _congestion,
)
