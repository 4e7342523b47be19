"""Sets of options of `swarm model …`; see `nodes.cli.options`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from nodes.access import REPLICAS_HELP
from nodes.cli.command import option, seldom
from nodes.cli.options import MODEL_KEY, Splitting

P99 = Annotated[str, typer.Option(help="The model's objective: 99 % of answers come within: 20ms.")]
Errors = Annotated[
    str, typer.Option(help="The model's objective: no larger share of requests fails: 0.1%.")
]

ModelSource = Annotated[
    str,
    typer.Argument(
        help="An ONNX file; or a language model's folder: model.onnx, tokenizer.json, settings."
    ),
]


@dataclass(frozen=True, kw_only=True)
class SplitOptions(Splitting):
    """Of `swarm model split`."""

    output: str = option(..., "The folder to write; it must not exist yet.", "-o", "--output")
    edge_cut: str = seldom(
        "", "Name of the tensor after which the edge's layers end; instead of --edge-layers."
    )
    like: str = seldom(
        "",
        "Folders of versions that were split before, separated by commas: of the first one that is "
        "of this file, and has as many stages, the cuts are taken, whatever is measured.",
    )
    one_host: bool = seldom(
        False,
        "All nodes are on one host: the bytes of a cut count as at 8 Gbit/s, not as at 1 Gbit/s.",
    )
    lighter: str = option(
        "",
        "A lighter ONNX file with the same inputs and outputs; the edge answers with it when "
        "the mesh would be late.",
    )


@dataclass(frozen=True)
class PushOptions:
    """Of `swarm model push`."""

    promote: bool = option(False, "Let this version serve all traffic at once.")
    lanes: str = seldom(
        "",
        "memory or file: make the version's lanes now, and keep them there. Empty: its nodes "
        "make them; where the server knows users they may not, and this is `file`.",
    )
    replicas: str = seldom(
        "auto", REPLICAS_HELP + " Existing ones are raised, lanes too are made so."
    )
    model_key: str = option("", MODEL_KEY)
    allow_codec: str = option(
        "",
        "Lossy codecs in which its features may travel over slow links, separated by commas: "
        "f16, i8, i6, i4. Their error is measured and kept in the manifest.",
    )
    allow_result_codec: str = seldom(
        "", "The same for its results. Empty: results stay exact, in whatever its features travel."
    )
    samples: str = seldom(
        "",
        "An .npz file with an array for each input, axis 0 the sample: for the errors of these "
        "codecs. Empty: seeded values, which say less.",
    )
    p99: P99 = ""
    errors: Errors = ""
