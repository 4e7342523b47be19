"""A composition gives what its parts give one by one: in plain numpy and ONNX Runtime."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from shards.compose.check import ModelSignature, check
from shards.compose.composition import AskPart, composition_of, from_json
from shards.compose.run import Tensors, run
from shards.specs import TensorSpec

WIDTH, MODELS = 4, 3
ROWS = TensorSpec("x", "FP32", (-1, WIDTH))
SIGNATURE = ModelSignature((ROWS,), (TensorSpec("y", "FP32", (-1, WIDTH)),), batchable=True)


def session(number: int) -> ort.InferenceSession:
    """y = softmax(x W), one W a number."""
    weights = np.random.default_rng(number).normal(size=(WIDTH, WIDTH)).astype(np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["z"]),
            helper.make_node("Softmax", ["z"], ["y"], axis=-1),
        ],
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", WIDTH])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", WIDTH])],
        [numpy_helper.from_array(weights, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


SESSIONS = [session(number) for number in range(MODELS)]


def answer(number: int, rows: np.ndarray) -> np.ndarray:
    (made,) = SESSIONS[number].run(None, {"x": rows})
    found: np.ndarray = made
    return found


@dataclass
class Built:
    """A composition as it is written, and beside it what each of its parts makes of an input."""

    parts: list[dict[str, Any]] = field(default_factory=list)
    plain: dict[str, Callable[[], np.ndarray]] = field(default_factory=dict)
    tensor: dict[str, str] = field(default_factory=lambda: {"x": "x"})  # by part, as it is named

    def add(self, part: dict[str, Any], tensor: str, plain: Callable[[], np.ndarray]) -> None:
        name = f"p{len(self.parts)}"
        self.parts.append({"name": name, **part})
        self.plain[name] = plain
        self.tensor[name] = f"{name}.{tensor}"


def least_margin(scores: np.ndarray) -> float:
    order = np.sort(scores, axis=-1)
    return float(np.min(order[:, -1] - order[:, -2]))


@st.composite
def compositions(draw: st.DrawFn) -> tuple[Built, np.ndarray, str]:
    rows = draw(st.integers(1, 5))
    seed = draw(st.integers(0, 1 << 16))
    x = np.random.default_rng(seed).normal(size=(rows, WIDTH)).astype(np.float32)
    built = Built()
    built.plain["x"] = lambda: x
    for _ in range(draw(st.integers(1, 8))):
        named = sorted(built.tensor)
        one, other = draw(st.sampled_from(named)), draw(st.sampled_from(named))
        a, b = built.plain[one], built.plain[other]
        refs = [built.tensor[one], built.tensor[other]]
        asked = [name for name in named if built.tensor[name].endswith(".y")]
        kind = draw(st.sampled_from(["model", "map", "mean", "softmax", "choose", "first"]))
        if kind in ("model", "map"):
            number = draw(st.integers(0, MODELS - 1))
            part = {kind: f"m{number}@1", "inputs": {"x": refs[0]}}
            part |= {"most": 8} if kind == "map" else {}
            built.add(part, "y", lambda a=a, number=number: answer(number, a()))
        elif kind == "mean":
            plain = lambda a=a, b=b: ((a().astype("f8") + b().astype("f8")) / 2).astype("f4")  # noqa: E731
            built.add({"mean": refs}, "mean", plain)
        elif kind == "softmax":

            def plain_softmax(a: Callable[[], np.ndarray] = a) -> np.ndarray:
                powers = np.exp(a() - a().max(axis=-1, keepdims=True))
                shares: np.ndarray = powers / powers.sum(axis=-1, keepdims=True)
                return shares

            built.add({"softmax": {"of": refs[0]}}, "scores", plain_softmax)
        elif asked:
            yes, no = draw(st.sampled_from(asked)), draw(st.sampled_from(asked))
            if kind == "first":
                # Who is first is nobody's promise, unless it is the same one twice.
                built.add({"first": [yes, yes]}, "y", built.plain[yes])
                continue
            bound = draw(st.floats(0, 1))
            when = {"by": refs[0], "measure": "margin", "below": bound}
            built.add(
                {"choose": when, "then": yes, "otherwise": no},
                "y",
                lambda a=a, bound=bound, yes=yes, no=no: built.plain[
                    yes if least_margin(a()) < bound else no
                ](),
            )
    return built, x, sorted(built.plain)[draw(st.integers(0, len(built.plain) - 1))]


def document(built: Built, output: str) -> dict[str, Any]:
    """The composition of the parts that the output needs: others would be refused."""
    by_name = {part["name"]: part for part in built.parts}
    needed, look = set(), [output]
    while look:
        name = look.pop()
        if name == "x" or name in needed:
            continue
        needed.add(name)
        part = by_name[name]
        refs = [*part.get("inputs", {}).values(), *part.get("mean", [])]
        refs += [part["softmax"]["of"]] if "softmax" in part else []
        refs += [part["choose"]["by"], part["then"], part["otherwise"]] if "choose" in part else []
        refs += part.get("first", [])
        look += [ref.partition(".")[0] for ref in refs]
    return {
        "inputs": {"x": {"datatype": "FP32", "shape": [-1, WIDTH]}},
        "part": [part for part in built.parts if part["name"] in needed],
        "outputs": {"out": built.tensor[output]},
    }


async def ask(part: AskPart, tensors: Tensors) -> Tensors:
    await asyncio.sleep(0)
    return {"y": answer(int(part.model[1:]), tensors["x"])}


@given(compositions())
@settings(max_examples=150, deadline=None)
def test_a_composition_gives_what_its_parts_give_one_by_one(
    case: tuple[Built, np.ndarray, str],
) -> None:
    built, x, output = case
    if output == "x":
        return  # a composition has a part
    composition = composition_of(document(built, output))
    composition = from_json(composition.to_json())  # as nodes read it
    models = {part.name: SIGNATURE for part in composition.asks()}
    checked = check(composition, models)
    assert [(spec.datatype, len(spec.shape)) for spec in checked.outputs] == [("FP32", 2)]
    ran = asyncio.run(run(composition, models, {"x": x}, ask))
    np.testing.assert_allclose(ran.outputs["out"], built.plain[output](), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rows", [0, 1, 31, 32, 33, 100])
def test_a_map_asks_for_its_rows_in_requests_of_32_and_joins_the_answers(rows: int) -> None:
    asked: list[int] = []

    async def counted(part: AskPart, tensors: Tensors) -> Tensors:
        asked.append(len(tensors["x"]))
        return await ask(part, tensors)

    composition = composition_of(
        {
            "inputs": {"x": {"datatype": "FP32", "shape": [-1, WIDTH]}},
            "part": [{"name": "each", "map": "m0@1", "inputs": {"x": "x"}, "most": 100}],
            "outputs": {"out": "each.y"},
        }
    )
    x = np.random.default_rng(1).normal(size=(rows, WIDTH)).astype(np.float32)
    ran = asyncio.run(run(composition, {"each": SIGNATURE}, {"x": x}, counted))
    np.testing.assert_allclose(ran.outputs["out"], answer(0, x), rtol=1e-5)
    assert sum(asked) == rows
    assert max(asked, default=0) <= 32
    assert ran.parts["each"].rows == rows
