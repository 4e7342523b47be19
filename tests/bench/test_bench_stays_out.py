"""Benchmarks, simulations and what tests share stay out of the product."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from nodes.cli import bench

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("swarm", "nodes", "shards")
OF_TESTS = {"bench", "sim", "support"}
THE_DOOR = ROOT / "nodes" / "cli" / "bench.py"


def imports_of(file: Path) -> Iterator[str]:
    """The top packages that a module imports, anywhere in it."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (name.name.partition(".")[0] for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def importers(folders: list[Path], packages: set[str]) -> list[str]:
    """The modules below these folders that import any of the packages."""
    named = re.compile(rf"\b(import|from)\s+({'|'.join(packages)})\b")  # parsing all takes seconds
    files = [file for folder in folders for file in folder.rglob("*.py")]
    return [
        str(file.relative_to(ROOT))
        for file in files
        if named.search(file.read_text(encoding="utf-8")) and packages & set(imports_of(file))
    ]


def test_the_product_imports_nothing_of_the_tests_but_by_the_command_of_the_benchmarks() -> None:
    found = importers([ROOT / name for name in PRODUCT], OF_TESTS)
    assert found == [str(THE_DOOR.relative_to(ROOT))]
    assert OF_TESTS & set(imports_of(THE_DOOR)) == {"bench"}


def test_nothing_outside_of_the_benchmarks_imports_them() -> None:
    others = [path for path in (ROOT / "tests").iterdir() if path.is_dir() and path.name != "bench"]
    assert importers(others, {"bench"}) == []
    assert importers([ROOT / "tests" / "support"], {"sim"}) == []


def test_no_benchmark_knows_another_room_of_benchmarks() -> None:
    rooms = ("cost", "faults", "fleets", "hostile")
    for room in rooms:
        others = [f"bench.{other}" for other in rooms if other != room]
        for file in (ROOT / "tests" / "bench" / room).rglob("*.py"):
            text = file.read_text(encoding="utf-8")
            assert not [name for name in others if f"from {name}" in text], file


@pytest.mark.parametrize("words", [[], ["hop"], ["hop", "--rounds", "2"], ["--help"]])
def test_without_a_clone_the_command_says_where_the_benchmarks_are(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "FOLDER", tmp_path)
    app, group = typer.Typer(), typer.Typer()
    app.callback()(lambda: None)
    app.add_typer(group, name="bench")
    bench.register(group)
    done = CliRunner().invoke(app, ["bench", *words])
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr == bench.ABSENT + "\n"
