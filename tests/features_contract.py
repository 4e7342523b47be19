"""The rule of the house, for import-linter: the core imports no feature, features know each other
only by the arrows drawn in `pyproject.toml`.

    [[tool.importlinter.contracts]]
    name = "…"
    type = "features"
    arrows = ["openai -> gateway"]
    unsorted = ["nodes.versions -> language"]

A feature is every room of its name in `swarm`, `shards` and `nodes` (`nodes.features.NAMES`); all
else is the core. unsorted: rooms of the core, or features, that still import a feature. An entry
that no import needs any more is an error, so that the list can only become shorter.
"""

from __future__ import annotations

from typing import Any

from importlinter import Contract, ContractCheck, fields, output
from importlinter.application.ports.reporting import Report  # noqa: F401  # part of its interface

from nodes.features import NAMES

PACKAGES = ("swarm", "shards", "nodes")


def feature_of(module: str) -> str:
    """The feature in one of whose rooms a module lies; "" for the core."""
    package, _, rest = module.partition(".")
    room = rest.partition(".")[0]
    return room if package in PACKAGES and room in NAMES else ""


def room_of(module: str) -> str:
    """Of `nodes.versions.loaded` `nodes.versions`; a feature's name of all that is its own."""
    return feature_of(module) or ".".join(module.split(".")[:2])


class FeaturesContract(Contract):
    """See the module."""

    type_name = "features"

    arrows = fields.ListField(subfield=fields.StringField(), required=False, default=[])
    unsorted = fields.ListField(subfield=fields.StringField(), required=False, default=[])

    def check(self, graph: Any, verbose: bool) -> ContractCheck:
        drawn = {_pair(each) for each in self.arrows}  # type: ignore[attr-defined]
        excused = {_pair(each) for each in self.unsorted}  # type: ignore[attr-defined]
        used, broken = set(), []
        for importer in sorted(graph.modules):
            if importer.partition(".")[0] not in PACKAGES:
                continue
            for imported in sorted(graph.find_modules_directly_imported_by(importer)):
                target = feature_of(imported)
                pair = (room_of(importer), target)
                if not target or pair[0] == target or pair in drawn:
                    continue
                if pair in excused:
                    used.add(pair)
                else:
                    broken.append(f"{importer} imports {imported}")
        needless = [f"unsorted: {a} -> {b} is needed no more" for a, b in sorted(excused - used)]
        return ContractCheck(
            kept=not broken and not needless, metadata={"lines": broken + needless}
        )

    def render_broken_contract(self, check: ContractCheck) -> None:
        for line in check.metadata["lines"]:
            output.print_error(line)


def _pair(arrow: str) -> tuple[str, str]:
    """Of `A -> B`."""
    source, _, target = arrow.partition("->")
    return source.strip(), target.strip()
