"""The rules of the house, for import-linter.

The core imports no feature, and features know each other only by the arrows drawn in
`pyproject.toml`:

    [[tool.importlinter.contracts]]
    name = "…"
    type = "features"
    arrows = ["openai -> gateway"]
    roots = ["swarm.mesh"]
    unsorted = ["nodes.versions -> language"]

A feature is every room of its name in `swarm`, `shards` and `nodes` (`nodes.features.NAMES`); all
else is the core. roots: modules that name features in plain sight, for types only, and at run time
take those that are there. unsorted: rooms of the core, or features, that still import a feature. An
entry that no import needs any more is an error, so that the list can only become shorter. Nothing
is said of a feature whose rooms are not there.

What a feature says of the inside of its rooms stands in the `imports.toml` of one of them, in the
words of `pyproject.toml`, and goes with it:

    [[contracts]]
    name = "…"
    type = "layers"
"""

from __future__ import annotations

import tomllib
from copy import deepcopy
from pathlib import Path
from typing import Any

from importlinter import Contract, ContractCheck, fields, output
from importlinter.domain.contract import registry

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
    roots = fields.ListField(subfield=fields.StringField(), required=False, default=[])
    unsorted = fields.ListField(subfield=fields.StringField(), required=False, default=[])

    def check(self, graph: Any, verbose: bool) -> ContractCheck:
        drawn = {_pair(each) for each in self.arrows}  # type: ignore[attr-defined]
        excused = {_pair(each) for each in self.unsorted}  # type: ignore[attr-defined]
        used, broken = set(), []
        for importer in sorted(graph.modules):
            if importer in self.roots or importer.partition(".")[0] not in PACKAGES:  # type: ignore[attr-defined]
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
        present = {feature_of(module) for module in graph.modules}
        needless = [
            f"unsorted: {source} -> {target} is needed no more"
            for source, target in sorted(excused - used)
            if target in present and (source not in NAMES or source in present)
        ]
        return ContractCheck(
            kept=not broken and not needless, metadata={"lines": broken + needless}
        )

    def render_broken_contract(self, check: ContractCheck) -> None:
        for line in check.metadata["lines"]:
            output.print_error(line)


class RoomsContract(Contract):
    """See the module."""

    type_name = "rooms"

    def check(self, graph: Any, verbose: bool) -> ContractCheck:
        broken = []
        for path in sorted(Path(__file__).parents[1].glob("*/*/imports.toml")):
            for options in tomllib.loads(path.read_text())["contracts"]:
                # Import-linter's own reader gives truth values as words.
                words = {k: str(v) if isinstance(v, bool) else v for k, v in options.items()}
                kind = registry.get_contract_class(words["type"])
                contract = kind(words["name"], self.session_options, words)
                check = contract.check(deepcopy(graph), verbose)
                if not check.kept:
                    broken.append((path, contract, check))
        return ContractCheck(kept=not broken, metadata={"broken": broken})

    def render_broken_contract(self, check: ContractCheck) -> None:
        for path, contract, its_check in check.metadata["broken"]:
            output.print_error(f"{path}: {contract.name}")
            contract.render_broken_contract(its_check)


def _pair(arrow: str) -> tuple[str, str]:
    """Of `A -> B`."""
    source, _, target = arrow.partition("->")
    return source.strip(), target.strip()
