"""The options of `swarm model quantize`."""

from __future__ import annotations

from dataclasses import dataclass

from nodes.cli.command import option, seldom
from nodes.cli.options import Exemplified


@dataclass(frozen=True, kw_only=True)
class QuantizeFlags(Exemplified):
    """Of `swarm model quantize`."""

    output: str = option(..., "The file, or the folder, to write; not there yet.", "-o", "--output")
    calibrate: str = option(
        "",
        "An .npz file with an array for each input of the model, axis 0 the samples: they give "
        "the ranges of INT8. mesh:NAME takes inputs of NAME's traffic as they pass, with "
        "consent: `swarm model samples NAME on`.",
    )
    samples: int = seldom(200, "So many inputs are taken with --calibrate mesh:NAME.")
    wait: str = seldom("1m", "How long they may take to pass: 30s, 5m.")
    int8: bool = seldom(False, "Weights and features in 8 bits; the default.")
    dynamic: bool = seldom(False, "Matrix products in 8 bits, by ranges found in each run.")
    fp16: bool = option(False, "Weights in 16 bits.")
    weights_only: bool = option(False, "Only the weights of matrix products.")
    bits: int = seldom(8, "4 or 8: bits of a weight with --weights-only.")
    per_channel: bool = seldom(True, "A scale for each channel of the weights, not one for all.")
    ranges: str = seldom(
        "auto", "How INT8 finds ranges: min-max, entropy, percentile; auto is the most exact."
    )
    keep_accuracy: str = option(
        "",
        "An .npz file to judge with, best with an array `labels`: layers stay in floating point "
        "until no more than --max-drop is lost on it.",
    )
    max_drop: float = seldom(
        0.01,
        "The accuracy that may be lost, 0.01 is a point of a hundred; without labels, the "
        "relative distance of the outputs.",
        min=0.0,
    )
    force: bool = seldom(False, "Write the file even where it does not pay.")
