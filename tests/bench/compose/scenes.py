"""What is asked both ways: by a composition, and by hand. A scene is its models, its composition,
its inputs, and the function of a client that asks the models itself and computes the rest.

The client by hand computes with the operators of compositions, and asks at the same time what can
be asked so.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import swarm
from bench.compose.lights import SIDE, frames, light_model
from bench.rivals.ultraface import ultraface_file
from shards.compose.operators import OPERATORS
from shards.zoo import digits_heldout, digits_lite_model, digits_model

Tensors = Mapping[str, np.ndarray]
ByHand = Callable[[swarm.Mesh, Tensors, float], Awaitable[Tensors]]
"""mesh, inputs, budget in seconds. Raises `SwarmError`."""

MARGIN = 2.0  # of the cascade's small model, until a threshold is fitted
NOISE = 0.25  # of each view of a digit, whose pixels are 0 to 1


@dataclass(frozen=True)
class Scene:
    """models: ONNX files by name. declared: the composition, TOML. labels: of the inputs. judged:
    the output that says the class. one_alone: from inputs, what one view alone would say."""

    name: str
    models: Mapping[str, bytes]
    declared: str
    by_hand: ByHand
    inputs: list[Tensors]
    labels: np.ndarray
    judged: str
    one_alone: Callable[[Tensors], tuple[str, Tensors]] | None = None
    figures: dict[str, Any] = field(default_factory=dict)


def part(name: str, model: str, **inputs: str) -> str:
    """TOML of a part that asks a model."""
    given = ", ".join(f'{key} = "{ref}"' for key, ref in inputs.items())
    return f'[[part]]\nname = "{name}"\nmodel = "{model}"\ninputs = {{ {given} }}\n'


def operator(name: str, rest: str) -> str:
    """TOML of a part that computes."""
    return f'[[part]]\nname = "{name}"\n{rest}\n'


IMAGE = 'image = { datatype = "FP32", shape = [1, 1, 8, 8] }\n'


def hop() -> Scene:
    """A composition of one model: what the composition itself costs."""
    images, labels = digits_heldout()

    async def by_hand(mesh: swarm.Mesh, inputs: Tensors, budget: float) -> Tensors:
        return (await mesh.infer("large", inputs, budget)).outputs

    return Scene(
        "hop",
        {"large": digits_model()},
        f"[inputs]\n{IMAGE}{part('all', 'large', image='image')}[outputs]\nlogits = 'all.logits'\n",
        by_hand,
        [{"image": image[None]} for image in images],
        labels,
        "logits",
    )


def cascade(threshold: float = MARGIN) -> Scene:
    """The small model of digits, and the large one where it is unsure."""
    images, labels = digits_heldout()
    choose = f'choose = {{ by = "small.logits", measure = "margin", below = {threshold!r} }}'
    label = operator("label", f'{choose}\nthen = "large"\notherwise = "small"')

    async def by_hand(mesh: swarm.Mesh, inputs: Tensors, budget: float) -> Tensors:
        ends = time.monotonic() + budget
        found = (await mesh.infer("small", inputs, budget)).outputs
        two = np.partition(found["logits"][0], -2)[-2:]
        if float(two[1] - two[0]) < threshold:
            found = (await mesh.infer("large", inputs, ends - time.monotonic())).outputs
        return found

    return Scene(
        "cascade",
        {"small": digits_lite_model(), "large": digits_model()},
        f"[inputs]\n{IMAGE}{part('small', 'small', image='image')}"
        f"{part('large', 'large', image='image')}{label}[outputs]\nlogits = 'label.logits'\n",
        by_hand,
        [{"image": image[None]} for image in images],
        labels,
        "logits",
    )


def views() -> Scene:
    """Two noisy views of a digit, joined by the mean of their scores."""
    images, labels = digits_heldout()
    random = np.random.default_rng(11)

    def seen(image: np.ndarray) -> np.ndarray:
        noise = random.normal(0, NOISE, image.shape).astype(np.float32)
        return np.clip(image + noise, 0, 1)[None]

    shape = IMAGE.partition("=")[2]
    parts = "".join(
        part(side, "large", image=side)
        + operator(f"{side}-scores", f'softmax = {{ of = "{side}.logits" }}')
        for side in ("left", "right")
    )
    joined = operator("joined", 'mean = ["left-scores.scores", "right-scores.scores"]')

    async def by_hand(mesh: swarm.Mesh, inputs: Tensors, budget: float) -> Tensors:
        async def scores(side: str) -> np.ndarray:
            answer = await mesh.infer("large", {"image": inputs[side]}, budget)
            return _run("softmax", {"of": answer.outputs["logits"]}, axis=-1)["scores"]

        both = await asyncio.gather(scores("left"), scores("right"))
        mean = _run("mean", {"0": both[0], "1": both[1]}, weights=[])["mean"]
        return {"scores": mean}

    return Scene(
        "views",
        {"large": digits_model()},
        f"[inputs]\nleft = {shape}right = {shape}{parts}{joined}"
        "[outputs]\nscores = 'joined.mean'\n",
        by_hand,
        [{"left": seen(image), "right": seen(image)} for image in images],
        labels,
        "scores",
        lambda inputs: ("logits", {"image": inputs["left"]}),
    )


NMS = {"iou": 0.5, "above": 0.5, "most": 1, "class": 1}
PAIRS = 60  # of frames


def faces(file: str = "") -> Scene:
    """The face in each of two frames, the light on it, and a vote. Raises `NoModel`."""
    ultraface = ultraface_file(file).read_bytes()
    pairs = frames(PAIRS)
    size = [SIDE, SIDE]
    shape = '{ datatype = "FP32", shape = [1, 3, 240, 320] }\n'
    parts = "".join(
        part(f"faces-{of}", "ultraface", input=of)
        + operator(
            f"best-{of}",
            f'nms = {{ boxes = "faces-{of}.boxes", scores = "faces-{of}.scores", '
            "above = 0.5, most = 1, class = 1 }",
        )
        + operator(
            f"crop-{of}", f'crop = {{ image = "{of}", boxes = "best-{of}.boxes", size = {size} }}'
        )
        + operator(f"light-{of}", f'map = "light"\ninputs = {{ x = "crop-{of}.crops" }}\nmost = 1')
        for of in ("one", "other")
    )
    vote = operator("vote", 'vote = ["light-one.logits", "light-other.logits"]')

    async def by_hand(mesh: swarm.Mesh, inputs: Tensors, budget: float) -> Tensors:
        ends = time.monotonic() + budget

        async def light(frame: np.ndarray) -> np.ndarray:
            found = (await mesh.infer("ultraface", {"input": frame}, budget)).outputs
            boxes = _run("nms", {"boxes": found["boxes"], "scores": found["scores"]}, **NMS)
            crops = _run("crop", {"image": frame, "boxes": boxes["boxes"]}, size=size)
            answer = await mesh.infer("light", {"x": crops["crops"]}, ends - time.monotonic())
            return answer.outputs["logits"]

        both = await asyncio.gather(light(inputs["one"]), light(inputs["other"]))
        return {"label": _run("vote", {"0": both[0], "1": both[1]})["label"]}

    return Scene(
        "faces",
        {"ultraface": ultraface, "light": light_model()},
        f"[inputs]\none = {shape}other = {shape}{parts}{vote}[outputs]\nlabel = 'vote.label'\n",
        by_hand,
        [{"one": pair.one, "other": pair.other} for pair in pairs],
        np.array([pair.light for pair in pairs]),
        "label",
    )


def _run(name: str, tensors: Tensors, **settings: Any) -> dict[str, np.ndarray]:
    return OPERATORS[name].run(tensors, settings)
