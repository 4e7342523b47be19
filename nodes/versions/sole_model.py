"""The model of a node, or of a command, that names none: the one that its mesh serves."""

from __future__ import annotations

from collections.abc import Sequence

from nodes.settings import WrongSetting
from swarm.errors import NotFound


def sole_model(names: Sequence[str], line: str) -> str:
    """The one of the models that a mesh serves. line: what the user would type for a model, with
    `{model}` in the place of its name.

    Raises `NotFound` where there is none yet, and `WrongSetting`, which lists them with the
    lines to type, where there are several.
    """
    if not names:
        raise NotFound(
            "the mesh serves no model yet: swarm model push DIR, or name one: "
            + line.format(model="NAME")
        )
    if len(names) > 1:
        lines = "".join(f"\n  {line.format(model=name)}" for name in names)
        raise WrongSetting(f"the mesh serves {len(names)} models; say which one:{lines}")
    return names[0]
