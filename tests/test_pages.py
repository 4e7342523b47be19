"""Pages can be read, say what the code says, and lead somewhere."""

from __future__ import annotations

import pytest
from pages import ROOT, pages, purposes, with_tables

PAGES = {page.relative_to(ROOT).as_posix(): page for page in pages()}


@pytest.mark.parametrize("name", PAGES)
def test_the_tables_of_a_page_are_those_of_the_code(name: str) -> None:
    text = PAGES[name].read_text()
    assert text == with_tables(text), "write them anew: uv run python tests/pages.py"


@pytest.mark.parametrize("package", ["swarm", "shards", "nodes"])
def test_each_room_says_in_one_sentence_what_it_is_for(package: str) -> None:
    silent = [room for room, purpose in purposes(package) if not purpose]
    assert not silent, "give each a docstring"
