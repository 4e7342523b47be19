"""The feature that the page for contributors adds works, and is removed with its rooms."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from house import PYTEST, ROOT, Step, copy_without

PAGE = ROOT / ".github" / "CONTRIBUTING.md"
LIST = "nodes/features.py"
END_OF_THE_LIST = '",\n)\n'
_BLOCK = re.compile(r"^\*\*([a-z/_]+\.py)\*\*.*\n\n```\w+\n((?:.*\n)*?)```", re.MULTILINE)


@pytest.mark.house
@pytest.mark.timeout(600)
def test_the_feature_of_the_page_is_added_by_its_rooms_and_one_line(tmp_path: Path) -> None:
    section = PAGE.read_text().partition("## Adding a feature\n")[2].partition("\n## ")[0]
    files = dict(_BLOCK.findall(section))
    line = files.pop(LIST)
    copy_without([], tmp_path)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    listed = (tmp_path / LIST).read_text()
    (tmp_path / LIST).write_text(listed.replace(END_OF_THE_LIST, f'",\n{line})\n', 1))

    for step in [
        Step("lint", ["ruff", "check", "--quiet", "nodes", "tests/nodes"]),
        Step("imports", ["lint-imports", "--no-logo"]),
        Step("types", ["mypy", "-p", "nodes.hello"]),
        Step("help", ["swarm", "hello", "--help"]),
        Step("its test", [*PYTEST, "-n", "0", *(name for name in files if "test_" in name)]),
    ]:
        said = step.failure(tmp_path)
        assert not said, f"{step.name}:\n{said}"
