"""`swarm teach`: labelled samples for the learner of this host."""

from __future__ import annotations

from typing import Any

from nodes.cli.arrays import read_inputs, read_labels
from nodes.console import duration, out, print_json
from nodes.learning.commands.declared import TeachOptions
from swarm.learning.teaching import teach


async def run_teach(model: str, options: TeachOptions) -> None:
    """`swarm teach`."""
    name, _, version = model.partition("@")
    truth = read_labels(options.labels)
    taught = await teach(
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
