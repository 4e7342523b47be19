"""Public classes of the wheel have names of their own, functions few parameters.

The list of long functions holds what is not so yet, and can only become shorter.
"""

from __future__ import annotations

import ast
from collections import Counter
from functools import cache

from support.commands import ROOT

MOST_PARAMETERS = 8
PACKAGES = ("swarm", "shards", "nodes")
LONG = """
    nodes/language/server.py:__init__
    nodes/learning/demo/attacker.py:attack
    nodes/learning/learner.py:__init__
    nodes/stage/server.py:__init__
    nodes/up/mesh.py:local_mesh
    nodes/versions/loaded.py:load
    shards/runtimes/load.py:load_stage
    shards/runtimes/ort.py:__init__
    shards/split/split.py:split
    swarm/asking.py:infer
    swarm/client.py:__init__
    swarm/client.py:ask
    swarm/client.py:infer
    swarm/language/head.py:__init__
    swarm/learning/consensus/participant.py:__init__
    swarm/learning/exchange.py:__init__
    swarm/learning/teaching.py:teach
    swarm/learning/weights.py:mint
    swarm/mesh.py:connect
    swarm/samehost/compact.py:_pack_shared
    swarm/transport/lane/consumer.py:__init__
"""


@cache
def modules() -> list[tuple[str, ast.Module]]:
    return [
        (path.relative_to(ROOT).as_posix(), ast.parse(path.read_text()))
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
    ]


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """How many a caller gives; `self` and `cls` are none."""
    given = function.args
    names = [each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    return len(names) - (names[:1] in (["self"], ["cls"]))


def test_no_two_public_classes_share_a_name() -> None:
    names = Counter(
        node.name
        for _, module in modules()
        for node in module.body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    shared = {name for name, count in names.items() if count > 1}
    assert shared == set(), "say what it is by a name of its own"


def test_a_function_takes_few_parameters() -> None:
    found = {
        f"{path}:{node.name}"
        for path, module in modules()
        for node in ast.walk(module)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and parameters(node) > MOST_PARAMETERS
    }
    assert found - set(LONG.split()) == set(), "what goes together is a dataclass"
    assert set(LONG.split()) - found == set(), "take these from the list"
