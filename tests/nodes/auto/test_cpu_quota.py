"""A node knows how much processor its control groups leave it, in both versions of them."""

from __future__ import annotations

from math import inf
from pathlib import Path

from nodes.auto.quota import cores_left


def written(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_the_least_of_a_group_and_those_above_it_counts(tmp_path: Path) -> None:
    root = written(
        tmp_path / "fs",
        {"a/cpu.max": "50000 100000\n", "a/b/cpu.max": "max 100000\n", "a/b/c/x": ""},
    )
    groups = written(tmp_path, {"groups": "0::/a/b/c\n"}) / "groups"
    assert cores_left(groups, root) == 0.5


def test_the_first_version_of_control_groups_is_read_too(tmp_path: Path) -> None:
    root = written(
        tmp_path / "fs",
        {"cpu/dev/cpu.cfs_quota_us": "25000", "cpu/dev/cpu.cfs_period_us": "100000"},
    )
    groups = written(tmp_path, {"groups": "4:memory:/dev\n1:cpu,cpuacct:/dev\n0::/\n"}) / "groups"
    assert cores_left(groups, root) == 0.25


def test_without_limits_or_files_there_is_no_limit(tmp_path: Path) -> None:
    files = {"cpu.max": "broken", "cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "1"}
    root = written(tmp_path / "fs", files)
    groups = written(tmp_path, {"groups": "1:cpu:/\n0::/../../etc\nno line\n"}) / "groups"
    assert cores_left(groups, root) == inf
    assert cores_left(tmp_path / "nothing", root) == inf
