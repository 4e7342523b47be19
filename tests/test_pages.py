"""Pages can be read, say what the code says, and lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pages import ROOT, pages, purposes, with_tables

HEADINGS_OF_A_DECISION = ["Context", "Decision", "Cost", "Measurement"]

PAGES = {page.relative_to(ROOT).as_posix(): page for page in pages()}
DECISIONS = {
    name: page
    for name, page in PAGES.items()
    if page.parent.name == "decisions" and page.name != "README.md"
}
_LINK = re.compile(r"\]\(([^()\s]+)\)")
_MODULE = re.compile(r"`([a-z0-9_./-]+\.py)`")
_CODE = re.compile(r"```.*?```", re.DOTALL)


@pytest.mark.parametrize("name", PAGES)
def test_the_tables_of_a_page_are_those_of_the_code(name: str) -> None:
    text = PAGES[name].read_text()
    assert text == with_tables(text), "write them anew: uv run python tests/pages.py"


@pytest.mark.parametrize("package", ["swarm", "shards", "nodes"])
def test_each_room_says_in_one_sentence_what_it_is_for(package: str) -> None:
    silent = [room for room, purpose in purposes(package) if not purpose]
    assert not silent, "give each a docstring"


def test_the_vocabulary_has_each_term_once() -> None:
    rows = PAGES["swarm/vocabulary.md"].read_text().split("|---|---|\n")[1].splitlines()
    terms = [term.strip() for row in rows for term in row.split("|")[1].split(",")]
    assert len(set(terms)) == len(terms)


@pytest.mark.parametrize("name", DECISIONS)
def test_a_decision_says_why_what_and_at_which_cost(name: str) -> None:
    text = DECISIONS[name].read_text()
    assert re.fullmatch(r"\d{4}-[a-z0-9-]+\.md", DECISIONS[name].name)
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == HEADINGS_OF_A_DECISION


@pytest.mark.parametrize("name", PAGES)
def test_each_link_of_a_page_leads_somewhere(name: str) -> None:
    lost = []
    for link in _LINK.findall(_CODE.sub("", PAGES[name].read_text())):
        if "://" in link:
            continue
        path, _, heading = link.partition("#")
        target = (PAGES[name].parent / path).resolve() if path else PAGES[name]
        if not target.exists() or (heading and heading not in _anchors(target)):
            lost.append(link)
    assert not lost


@pytest.mark.parametrize("name", PAGES)
def test_each_module_that_a_page_names_exists(name: str) -> None:
    page = PAGES[name]
    folders = [folder for folder in page.parents if folder.is_relative_to(ROOT)]
    named = _MODULE.findall(page.read_text())
    lost = [path for path in named if not any((folder / path).exists() for folder in folders)]
    assert not lost


def _anchors(page: Path) -> set[str]:
    """The headings of a page as links name them."""
    headings = re.findall(r"^#+ (.*)$", _CODE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
