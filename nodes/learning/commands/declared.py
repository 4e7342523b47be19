"""`swarm teach`, `swarm model weights`, and the weights of `swarm model rollback`; their options.

Each imports its work when it runs, so that `swarm --help` answers at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from nodes.cli.command import Ran, option, seldom
from nodes.cli.options import (
    MODEL,
    NODE,
    Input,
    Json,
    MeshName,
    Model,
    ServedModel,
    SignedTarget,
    Target,
)


@dataclass(frozen=True, kw_only=True)
class TeachOptions:
    """Of `swarm teach`."""

    input: Input
    labels: str = option(
        ..., "An .npz or .npy file with one array: a class from 0 on for each sample."
    )
    node: Annotated[str, NODE] = option("", "Id of the learner, where several run on this host.")
    test: bool = option(
        False, "Measure the learner's accuracy on the samples; it keeps none of them."
    )
    timeout: str = seldom("60s", "Time that the learner may take: 500ms, 60s.")
    mesh: MeshName = "default"
    json: Json = False


def teach(model: Model, options: TeachOptions) -> Ran:
    """Give labelled samples to the learner on this host. They never leave it."""
    from nodes.learning.commands.teach import run_teach

    return run_teach(model, options)


def rollback(
    model: Annotated[str, MODEL, typer.Argument(help="NAME; with --weights also NAME@VERSION.")],
    target: SignedTarget,
    weights: int = option(
        -1,
        "Bring this weight version of the model back on the whole fleet (0: the base); deltas "
        "that are under way are void.",
    ),
    identity: str = seldom(
        "",
        "File of the key pair that signs a rollback of weights, made when missing; needed where "
        "nodes have a list of those who may teach.",
    ),
) -> Ran:
    """Let the version before the present one serve all traffic again; or older weights."""
    if weights != -1:
        from nodes.learning.commands.weights import run_weights_rollback

        return run_weights_rollback(model, weights, identity, target)
    from nodes.cli.model import run_rollback

    return run_rollback(model, target)


def weights(model: ServedModel, target: Target) -> Ran:
    """Show a model's weight versions: accuracy, who minted them, who taught."""
    from nodes.learning.commands.weights import run_weights

    return run_weights(model, target)
