"""`swarm teach`: labelled samples for the learner of this host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from nodes.cli.arrays import read_inputs, read_labels
from nodes.cli.command import option, seldom
from nodes.cli.options import NODE, Input, Json, MeshName, Model
from nodes.console import duration, out, print_json
from swarm.learning.teaching import teach as hand_over


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


async def teach(model: Model, options: TeachOptions) -> None:
    """Give labelled samples to the learner on this host. They never leave it."""
    name, _, version = model.partition("@")
    truth = read_labels(options.labels)
    taught = await hand_over(
        options.mesh,
        name,
        version,
        read_inputs(options.input),
        truth,
        node=options.node,
        timeout=duration(options.timeout),
        only_test=options.test,
    )
    doc: dict[str, Any] = {
        "model": name,
        "version": taught.version,
        "node": taught.node,
        "samples": len(truth),
        "trained_on": taught.trained_on,
        "held_out": taught.held_out,
        "classes": list(taught.classes),
    }
    if taught.accuracy is not None:
        doc["accuracy"] = round(taught.accuracy, 4)
    if options.json:
        print_json(doc)
        return
    if taught.accuracy is not None:
        out.print(f"{taught.node}: accuracy {taught.accuracy:.4f} of {len(truth)} samples")
        return
    classes = ", ".join(map(str, taught.classes))
    out.print(
        f"{taught.node} took {len(truth)} samples: {taught.trained_on} to train on, "
        f"{taught.held_out} held out; it has the classes {classes}"
    )
    out.print(f"next: swarm model weights {name}")
