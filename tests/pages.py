"""The pages of the project, and the tables in them that are made from the code.

    uv run python tests/pages.py

A table stands between two markers, and this program writes it anew:

    <!-- rooms of swarm: begin -->
    <!-- rooms of swarm: end -->

`TABLES` names the tables. `tests/test_pages.py` fails where a page and the code differ.
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).parents[1]
_BLOCK = re.compile(r"(<!-- (?P<name>[^:>]+): begin -->\n).*?(<!-- (?P=name): end -->)", re.DOTALL)


def pages() -> list[Path]:
    """Every page of the repository."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [ROOT / name for name in sorted(listed.split("\n")) if name and (ROOT / name).exists()]


def with_tables(text: str) -> str:
    """A page with its tables as the code has them. Raises `KeyError` for an unknown table."""
    return _BLOCK.sub(lambda found: found[1] + TABLES[found["name"]]() + found[3], text)


def rooms(package: str) -> str:
    """Each room of a package, and each module that stands beside them, with its purpose."""
    rows = [f"| `{name}` | {purpose} |" for name, purpose in purposes(package)]
    return "\n".join(["| room | for |", "|---|---|", *rows]) + "\n"


def purposes(package: str) -> Iterator[tuple[str, str]]:
    """The names of a package's rooms and modules, each with the first sentence of its docstring,
    "" where it has none. A room ends with `/`."""
    folder = ROOT / package
    inits = (path for path in folder.rglob("__init__.py") if path.parent != folder)
    for path in sorted(inits, key=lambda path: path.parent.relative_to(folder).parts):
        yield f"{path.parent.relative_to(folder).as_posix()}/", _first_sentence(path)
    for path in sorted(folder.glob("*.py")):
        if path.name != "__init__.py":
            yield path.stem, _first_sentence(path)


def _first_sentence(path: Path) -> str:
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    paragraph = " ".join(text.split("\n\n")[0].split())
    return re.split(r"(?<=\.) (?=[A-Z`])", paragraph)[0].replace("|", "\\|")


def decisions(package: str) -> str:
    """The decisions of a package, by number."""
    rows = []
    for page in sorted((ROOT / package / "decisions").glob("[0-9]*.md")):
        title = page.read_text().splitlines()[0].partition(". ")[2]
        rows.append(f"| [{page.name[:4]}]({page.name}) | {title} |")
    return "\n".join(["| number | decision |", "|---|---|", *rows]) + "\n"


def rights() -> str:
    from swarm.security.rights.document import markdown

    return markdown()


def rules(place: str, who: str) -> str:
    """A table of rules, row by row. place: `MODULE:NAME` of it. who: carries them out."""
    module, _, name = place.partition(":")
    table = getattr(import_module(module), name)
    rows = [f"| {n} | {rule.when} | {rule.does} |" for n, rule in enumerate(table, 1)]
    return "\n".join([f"| rule | when | {who} |", "|---|---|---|", *rows]) + "\n"


def parcel_states() -> str:
    """What becomes of a parcel that is handed over."""
    from swarm.transport.handover.states import TABLE

    rows = [
        f"| {state.value} | {news.value} | {'; '.join(e.value for e in then.effects) or '–'} | "
        f"{then.state.value} |"
        for (state, news), then in TABLE.items()
    ]
    head = "| state | what happens | the sender of the parcel | next state |"
    return "\n".join([head, "|---|---|---|---|", *rows]) + "\n"


def node_options() -> str:
    """The settings of `swarm-node`, with their defaults."""
    from nodes.config import settings_of_nodes
    from nodes.settings import table

    return table(settings_of_nodes())


TABLES: dict[str, Callable[[], str]] = {
    "rules of a requester": partial(rules, "swarm.requests.attempts:RULES", "the requester"),
    "rules of the end": partial(rules, "swarm.requests.attempts:AT_THE_END", "the caller"),
    "rules of letting in": partial(rules, "swarm.requests.admission:ENTER", "the requester"),
    "rules of a breaker, asked": partial(rules, "swarm.requests.breaker:CALLED", "the breaker"),
    "rules of a breaker, told": partial(rules, "swarm.requests.breaker:ENDED", "the breaker"),
    "rules before a run": partial(rules, "nodes.stage.rules:BEFORE_RUN", "the stage"),
    "rules of a result": partial(rules, "nodes.stage.rules:SENT", "the stage"),
    "states of a parcel": parcel_states,
    "rooms of swarm": partial(rooms, "swarm"),
    "rooms of shards": partial(rooms, "shards"),
    "rooms of nodes": partial(rooms, "nodes"),
    "decisions of swarm": partial(decisions, "swarm"),
    "decisions of shards": partial(decisions, "shards"),
    "decisions of nodes": partial(decisions, "nodes"),
    "rights": rights,
    "options of swarm-node": node_options,
}


def main() -> None:
    for page in pages():
        text = page.read_text()
        if (made := with_tables(text)) != text:
            page.write_text(made)
            print(f"written anew: {page.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
