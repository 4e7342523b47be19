"""A house without some of its features: a copy of the tree in which their rooms are missing.

    uv run python tests/house.py rollout                      # every step
    uv run python tests/house.py rollout watch --steps types,tests --tests tests/nodes
    uv run python tests/house.py --all --keep /tmp/core

A feature's rooms are the folders of its name below `swarm`, `shards`, `nodes` and `tests`. Features
that stand on it by an arrow of `pyproject.toml` go with it. The steps are the project's own: lint,
types, import rules, `swarm demo`, the tests that remain. They run in an environment of the copy,
which has this one's libraries and the copy's packages.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
import venv
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from nodes.features import NAMES

ROOT = Path(__file__).resolve().parents[1]
HOUSE = ("swarm", "shards", "nodes", "tests")
CACHES = (".mypy_cache",)
# Of the tests' own files these are about the whole tree, or copy it.
OF_THE_WHOLE = ("tests/test_house.py", "tests/test_pages.py", "tests/deploy")
PYTEST = ("pytest", "--basetemp=.venv/temporary")  # whose own folders go with the copy
SECONDS = 1800.0


def names() -> tuple[str, ...]:
    """The features whose rooms are there, in the order of `nodes/features.py`."""
    rooms = {path.parent.name for top in HOUSE for path in (ROOT / top).rglob("*.py")}
    return tuple(name for name in NAMES if name in rooms)


def with_dependents(features: Collection[str]) -> set[str]:
    """These features, and those that cannot be without them."""
    gone = set(features)
    while more := {source for source, target in _pairs("arrows") if target in gone} - gone:
        gone |= more
    return gone


def _pairs(kind: str) -> list[list[str]]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    return [arrow.split(" -> ") for each in settings["contracts"] for arrow in each.get(kind, [])]


def copy_without(features: Collection[str], into: Path) -> None:
    """Copy what git tracks or would track of this tree, less the rooms of these features."""
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in listed.split("\0"):
        parts = Path(name).parts
        if not name or (parts[0] in HOUSE and set(parts[1:-1]) & set(features)):
            continue
        if (ROOT / name).is_file():
            (into / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, into / name)
    for cache in CACHES:
        if (ROOT / cache).exists():
            shutil.copytree(ROOT / cache, into / cache, symlinks=True, dirs_exist_ok=True)
    for command in (["init", "--quiet"], ["add", "--all"]):  # pages are found by git
        subprocess.run(["git", *command], cwd=into, check=True, capture_output=True)
    _furnish(into)


def _furnish(tree: Path) -> None:
    """An environment: the libraries of this one, but the tree's packages. A folder that a `.pth`
    names is searched, while the `.pth` files in it, which would lead to this tree, are not read."""
    venv.create(tree / ".venv", symlinks=True)
    libraries = sysconfig.get_path("purelib")
    theirs = tree / ".venv" / Path(libraries).relative_to(sys.prefix)
    (theirs / "house.pth").write_text(f"{tree}\n{libraries}\n")
    for program in Path(sys.executable).parent.iterdir():
        place = tree / ".venv/bin" / program.name
        if place.exists() or not program.is_file():
            continue
        start, _, rest = program.read_bytes().partition(b"\n")
        if start.startswith(b"#!") and b"python" in start:  # it would run in this environment
            place.write_bytes(f"#!{tree}/.venv/bin/python\n".encode() + rest)
            place.chmod(0o755)
        else:
            place.symlink_to(program)


@dataclass(frozen=True)
class Step:
    """A check of a tree. command: a program of the environment, and its words."""

    name: str
    command: Sequence[str]

    def failure(self, tree: Path) -> str:
        """What it says against this tree; "" where it passes."""
        programs = tree / ".venv/bin"
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("SWARM_", "PYTEST_", "PYTHONPATH", "VIRTUAL_ENV"))
        }
        try:
            done = subprocess.run(
                [programs / self.command[0], *self.command[1:]],
                cwd=tree,
                env=kept | {"PATH": f"{programs}:{os.environ['PATH']}"},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=SECONDS,
            )
        except subprocess.TimeoutExpired as error:
            return f"did not end in {SECONDS} s:\n{error.stdout!r}"
        return "" if done.returncode == 0 else done.stdout or f"exit code {done.returncode}"


def steps(tests: Sequence[str], workers: int) -> list[Step]:
    """All steps, the quick ones first. tests: what pytest runs of the tree."""
    ignored = [f"--ignore={path}" for path in OF_THE_WHOLE]
    return [
        Step("lint", ["ruff", "check", "--quiet", "."]),
        Step("imports", ["lint-imports", "--no-logo"]),
        Step("demo", ["swarm", "demo", "--seconds", "6", "--json"]),
        Step("collection", [*PYTEST, "-n", "0", "--collect-only", *ignored]),
        Step("types", ["mypy"]),
        Step("tests", [*PYTEST, "-n", str(workers), "--tb=short", *ignored, *tests]),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("features", nargs="*", metavar="FEATURE")
    parser.add_argument("--all", action="store_true", help="all features at once")
    parser.add_argument(
        "--steps", default="", help="of lint,types,imports,demo,collection,tests; all"
    )
    parser.add_argument("--tests", nargs="+", default=["tests"], help="what pytest runs")
    parser.add_argument("--workers", type=int, default=2, help="of pytest")
    parser.add_argument("--keep", default="", metavar="DIR", help="leave the copy there")
    given = parser.parse_args()
    features = with_dependents(names() if given.all else given.features)
    wanted = given.steps.split(",") if given.steps else []
    with tempfile.TemporaryDirectory(prefix="house-") as temporary:
        tree = Path(given.keep or temporary)
        copy_without(features, tree)
        print(f"without {', '.join(sorted(features))}: {tree}", flush=True)
        failed = []
        for step in steps(given.tests, given.workers):
            if wanted and step.name not in wanted:
                continue
            said = step.failure(tree)
            print(f"{step.name}: {'fails' if said else 'passes'}\n{said}", flush=True)
            failed += [step.name] if said else []
    print(json.dumps({"without": sorted(features), "failed": failed}))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
