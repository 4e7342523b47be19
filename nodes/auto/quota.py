"""How many cores the control group of this process leaves it.

Under a quota a short run takes no longer: the process stands still between runs. So the pace that
was measured is lengthened by it.
"""

from __future__ import annotations

from math import inf
from pathlib import Path

GROUPS, ROOT = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


def cores_left(groups: Path = GROUPS, root: Path = ROOT) -> float:
    """The least of the process's group and those above it, in version 2 and 1; inf without a
    limit, or where the system does not tell."""
    try:
        lines = groups.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return inf
    least = inf
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, name = rest.partition(":")
        if controllers and "cpu" not in controllers.split(","):
            continue
        top = root / "cpu" if controllers else root
        group = top / name.strip("/")
        while True:
            least = min(least, _quota(group, bool(controllers)))
            if group == top or top not in group.parents:
                break
            group = group.parent
    return least


def _quota(group: Path, first_version: bool) -> float:
    try:
        if first_version:
            quota = (group / "cpu.cfs_quota_us").read_text(encoding="utf-8")
            period = (group / "cpu.cfs_period_us").read_text(encoding="utf-8")
        else:
            quota, period = (group / "cpu.max").read_text(encoding="utf-8").split()
        return int(quota) / int(period) if int(quota) > 0 else inf
    except (OSError, ValueError, ZeroDivisionError):  # no file, or `max`
        return inf
