"""A language model in 8 bits with a scale a row: exact in any batch, and its loss is measured."""

import json
from functools import cache
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shard_graphs import make, node, value, weights
from zoo.language.decoder_graph import DecoderShape, Form, decoder

from shards.errors import ManifestError, ModelError
from shards.language.decoder import Decoder, LanguageHints, Quantized
from shards.language.quantize import LanguageMode, quantize_language
from shards.language.rows import by_rows
from shards.language.toy import toy_model
from shards.manifest import Manifest
from shards.quantize import tools
from shards.runtimes.ort import make_session
from shards.split.split import split

SHAPE = DecoderShape(layers=3, width=64, bias=True, tied=True)
TEXT = np.random.default_rng(5).integers(0, SHAPE.vocabulary, 60)


WEIGHT = weights(weight=(24, 10))


@cache
def product() -> Any:
    """[rows, 24] times a seeded matrix, in 8 bits."""
    model = make(
        [node("MatMul", ["x", "weight"], ["y"])],
        [value("x", ["rows", 24])],
        [value("y", ["rows", 10])],
        WEIGHT,
    )
    return make_session(by_rows(tools.prepare(model)).SerializeToString())


@settings(deadline=None, max_examples=40)
@given(st.integers(2, 9), st.integers(0, 2**32 - 1), st.sampled_from([0.0, 1e-30, 1e-3, 1.0, 1e6]))
def test_a_rows_bits_depend_on_no_other_row(rows: int, seed: int, other: float) -> None:
    x = np.random.default_rng(seed).standard_normal((rows, 24), np.float32)
    x[1:] *= np.float32(other)
    (together,) = product().run(None, {"x": x})
    (alone,) = product().run(None, {"x": x[:1]})
    assert np.array_equal(together[:1], alone)
    assert np.isfinite(together).all()
    np.testing.assert_allclose(alone, x[:1] @ WEIGHT["weight"], atol=0.05 * np.abs(alone).max())


@pytest.mark.parametrize("form", ["genai", "optimum", "attention"])
def test_stages_in_eight_bits_are_the_whole_bit_by_bit_and_in_any_batch(form: Form) -> None:
    source = onnx.load_from_string(decoder(SHAPE, form=form))
    model = by_rows(tools.prepare(source))
    kinds = [each.op_type for each in model.graph.node]
    assert kinds.count("MatMulInteger") == 7 * 3 + 1 - 2 * 3 * (form == "genai")
    described = Decoder.of(
        split(model.SerializeToString(), name="m", stages=3, profile=False).manifest
    )
    assert described is not None
    assert described.proof is not None
    assert described.proof.differing == 0
    assert described.exact_batch


@pytest.mark.parametrize("mode", ["rows", pytest.param("int4", marks=pytest.mark.benchmark)])
def test_the_loss_of_a_held_out_text_is_that_of_the_logits(mode: LanguageMode) -> None:
    text = np.array([0, 300, 45, 700, 12, 1033, 90, 2, 77, 510])
    _, report = quantize_language(toy_model(), text, mode=mode, max_drop=0.0)
    session = make_session(toy_model())
    feeds: dict[str, np.ndarray] = {
        "input_ids": text[None, :-1],
        "attention_mask": np.ones((1, 9), np.int64),
    }
    for each in session.get_inputs():
        if each.name.startswith("past"):
            feeds[each.name] = np.zeros((1, 2, 0, 32), np.float32)
    (logits,) = session.run(["logits"], feeds)
    shares = logits[0] - np.log(np.exp(logits[0]).sum(axis=1, keepdims=True))
    expected = -shares[np.arange(9), text[1:]].mean()
    assert report.cross_entropy_before == pytest.approx(expected, abs=1e-4)
    assert report.tokens == 9
    assert 0 < abs(report.cross_entropy_after - expected) < (1.0 if mode == "int4" else 0.05)
    assert report.quantized == Quantized(
        mode, 9, report.cross_entropy_before, report.cross_entropy_after
    )
    lost = report.cross_entropy_after - report.cross_entropy_before
    assert report.gain == (lost <= 0 and report.bytes_after <= 0.75 * report.bytes_before)


def test_a_text_or_a_model_that_cannot_be_judged_is_refused() -> None:
    model = decoder(SHAPE)
    with pytest.raises(ModelError, match="tokenizer is another model's"):
        quantize_language(model, TEXT + SHAPE.vocabulary, mode="rows", max_drop=0.0)
    with pytest.raises(ModelError, match="fewer than two tokens"):
        quantize_language(model, TEXT[:1], mode="rows", max_drop=0.0)
    plain = make([node("Abs", ["x"], ["y"])], [value("x", [2])], [value("y", [2])])
    with pytest.raises(ModelError, match="no language model"):
        quantize_language(plain.SerializeToString(), TEXT, mode="rows", max_drop=0.0)


def test_a_manifest_keeps_what_it_cost() -> None:
    cost = Quantized("rows", 59, 6.5, 6.25)
    hints = LanguageHints(quantized=cost)
    result = split(decoder(SHAPE), name="m", stages=2, profile=False, hints=hints)
    described = Decoder.of(Manifest.from_json(result.manifest.to_json()))
    assert described is not None
    assert described.quantized == cost
    raw = json.loads(result.manifest.to_json())
    raw["decoder"]["quantized"]["cross_entropy_after"] = "less"
    with pytest.raises(ManifestError, match="cross_entropy_after"):
        Manifest.from_json(json.dumps(raw).encode())
