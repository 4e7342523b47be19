"""A model with an exit is two models, cut where its exit branches off: the rest runs if need be."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from shards.compose.check import ModelSignature, check
from shards.compose.composition import AskPart, from_toml
from shards.compose.run import Tensors, run
from shards.runtimes.load import load_stage
from shards.runtimes.ort import OrtRuntime
from shards.split.split import SplitResult, split
from shards.zoo import digits_heldout, digits_model

CUT = "maxpool_5"  # the maps behind the first block of layers
EARLY = f"""
[inputs]
image = {{ datatype = "FP32", shape = [1, 1, 8, 8] }}
[[part]]
name = "front"
model = "front@1"
inputs = {{ image = "image" }}
[[part]]
name = "rest"
model = "rest@1"
inputs = {{ {CUT} = "front.{CUT}" }}
[[part]]
name = "early"
softmax = {{ of = "front.exit" }}
[[part]]
name = "late"
softmax = {{ of = "rest.logits" }}
[[part]]
name = "label"
choose = {{ by = "front.exit", measure = "margin", below = 1.0 }}
then = "late"
otherwise = "early"
[outputs]
scores = "label.scores"
"""


def with_exit() -> onnx.ModelProto:
    """The digits model with a second head, of drawn weights, on its first block."""
    model = onnx.load_from_string(digits_model())
    weights = np.random.default_rng(0).normal(0, 0.1, (256, 10)).astype(np.float32)
    graph = model.graph
    graph.initializer.append(numpy_helper.from_array(weights, "exit.weights"))
    graph.node.append(helper.make_node("Flatten", [CUT], ["exit.flat"]))
    graph.node.append(helper.make_node("MatMul", ["exit.flat", "exit.weights"], ["exit"]))
    graph.output.append(helper.make_tensor_value_info("exit", TensorProto.FLOAT, ["batch", 10]))
    return model


def softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits - logits.max())
    found: np.ndarray = powers / powers.sum()
    return found


async def test_the_layers_behind_an_exit_run_only_where_it_is_unsure(tmp_path: Path) -> None:
    whole, tail = tmp_path / "whole.onnx", tmp_path / "rest.onnx"
    onnx.save(with_exit(), whole)
    onnx.utils.extract_model(whole, tail, [CUT], ["logits"])
    halves: dict[str, SplitResult] = {
        "front": split(str(whole), name="front", stages=1, outputs=("exit", CUT)),
        "rest": split(str(tail), name="rest", stages=1),
    }
    runs = {n: load_stage(r.manifest, 1, r.files.__getitem__) for n, r in halves.items()}
    signatures = {
        n: ModelSignature(r.manifest.inputs, r.manifest.outputs) for n, r in halves.items()
    }
    composition = from_toml(EARLY)
    check(composition, signatures)
    asked: list[str] = []

    async def ask(part: AskPart, tensors: Tensors) -> Tensors:
        asked.append(part.name)
        return dict(runs[part.name].run(tensors))

    model = OrtRuntime(with_exit().SerializeToString())
    images, _ = digits_heldout()
    late = 0
    for image in images[:60]:
        asked.clear()
        ran = await run(composition, signatures, {"image": image[None]}, ask)
        both = model.run({"image": image[None]})
        two = np.partition(both["exit"][0], -2)[-2:]
        unsure = bool(two[1] - two[0] < 1.0)
        late += unsure
        assert asked == ["front", *(["rest"] if unsure else [])]
        expected = softmax(both["logits" if unsure else "exit"])
        np.testing.assert_allclose(ran.outputs["scores"], expected, rtol=1e-4, atol=1e-6)
    assert 0 < late < 60, "some are sure, and some are not"
