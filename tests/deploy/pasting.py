"""Blocks of the project's pages, pasted into shells of hosts that are played.

A host is a service of bubblewrap with the image `tools`, a home and a `/var/lib` of its own,
and the names of the others.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from playing import COMMAND_TIMEOUT, Machine, Mount, Played, Service
from support.commands import ROOT

# A fence at the beginning of a line, of a shell or of no language.
FENCE = re.compile(r"^```(?:sh)?\n(.*?)^```$", re.M | re.S)


def blocks(page: str) -> list[str]:
    """The blocks of a page that are for a shell."""
    return FENCE.findall((ROOT / page).read_text())


def lines(page: str, begin: str) -> list[str]:
    """The lines of the one block of a page that has a line which begins so."""
    found = [
        block.splitlines()
        for block in blocks(page)
        if re.search(f"^{re.escape(begin)}", block, re.M)
    ]
    assert len(found) == 1, f"{page} has {len(found)} blocks with a line that begins with {begin!r}"
    return found[0]


def line(page: str, begin: str) -> str:
    """The first line of a page's blocks that begins so."""
    return next(one for one in lines(page, begin) if one.startswith(begin))


# A person's own settings, in place of the image's.
PERSON = {
    "HOME": "/home",
    "COLUMNS": "200",
    "OMP_NUM_THREADS": "1",
    "XDG_CACHE_HOME": "/home/.cache",
    "XDG_CONFIG_HOME": "/home/.config",
    "SWARM_HEALTH": "",
    "SWARM_LOG_JSON": "false",
}


@dataclass
class Host:
    """A machine of somebody who follows a page."""

    name: str
    machine: Machine
    home: Path
    kept: Path
    service: Service

    def paste(
        self, *pasted: str, given: Mapping[str, str] | None = None, within: float = COMMAND_TIMEOUT
    ) -> str:
        """What these lines print. given: what stands for a placeholder of the page. within:
        seconds. Fails with what they say where one of them ends with an error."""
        return self.machine.inside(self.name, self.service, _filled(pasted, given), within)

    def leave_running(self, *pasted: str, given: Mapping[str, str] | None = None) -> Played:
        """Run lines in a terminal of their own; the last one goes on until it is ended."""
        before, last = pasted[:-1], pasted[-1]
        before_it, parted, program = last.rpartition(" && ")
        filled = _filled((*before, f"{before_it}{parted}exec {program}"), given)
        return self.machine.shell(self.name, self.service, filled)


def _filled(pasted: tuple[str, ...], given: Mapping[str, str] | None) -> str:
    text = "\n".join(pasted)
    for placeholder, value in (given or {}).items():
        assert placeholder in text, f"{placeholder!r} does not stand in {text!r}"
        text = text.replace(placeholder, value)
    return text


def host(machine: Machine, name: str, *mounts: Mount) -> Host:
    """A host whose home has the clone's `deploy` folder."""
    home = machine.folder / f"home-{name}"
    kept = machine.folder / f"kept-{name}"
    home.mkdir()
    (kept / "nats").mkdir(parents=True)
    service = Service(
        name,
        "tools",
        [],
        PERSON,
        folder="/home",
        mounts=[
            Mount(home, "/home"),
            Mount(kept, "/var/lib"),
            Mount(ROOT / "deploy", "/home/deploy", True),
            *mounts,
        ],
    )
    machine.address(name)
    return Host(name, machine, home, kept, service)
