"""Quantizing: a smaller model that answers alike, within the loss that is allowed, or a reason."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shard_graphs import chained, floats, make, node, same, value, weights, whole
from zoo.builders import mlp

from shards.errors import InputError, ModelError
from shards.quantize.quantize import Mode, QuantizeOptions, layers_to_keep, quantize, verdict_on
from shards.runtimes.ort import make_session
from shards.split.split import split
from shards.zoo import digits_heldout, digits_model, digits_training

MIN_MAX = QuantizeOptions(ranges="min-max")


@pytest.fixture(scope="module")
def calibration(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("samples") / "calibration.npz"
    np.savez(file, image=digits_training()[0][:40])
    return file


@pytest.fixture(scope="module")
def evaluation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("samples") / "evaluation.npz"
    images, labels = digits_heldout()
    np.savez(file, image=images, labels=labels)
    return file


def operators(model: bytes) -> set[str]:
    return {n.op_type for n in onnx.load_model_from_string(model).graph.node}


def test_eight_bits_label_the_digits_as_well(calibration: Path, evaluation: Path) -> None:
    told: list[tuple[str, int, int]] = []
    result = quantize(
        digits_model(),
        calibrate=calibration,
        keep_accuracy=evaluation,
        options=QuantizeOptions(max_drop=0.005),
        tell=lambda *step: told.append(step),
    )
    report = result.report
    assert report.accuracy_before is not None
    assert report.accuracy_after is not None
    assert report.accuracy_before > 0.98
    assert report.accuracy_before - report.accuracy_after <= 0.005
    assert report.bytes_after == len(result.model) < 0.5 * report.bytes_before
    assert report.tried.keys() == {"min-max", "entropy", "percentile"}
    assert report.tried[report.ranges] == min(report.tried.values())
    assert ("calibrating", 120, 120) in told


def test_features_of_eight_bits_cross_every_cut_exactly(calibration: Path) -> None:
    quantized = quantize(digits_model(), calibrate=calibration, options=MIN_MAX).model
    feeds = {"image": digits_heldout()[0][:1]}
    result = split(quantized, name="digits", stages=3, profile=False)
    plain = split(digits_model(), name="digits", stages=3, profile=False)
    for shard in result.manifest.shards[1:]:
        assert {spec.datatype for spec in shard.receives} == {"UINT8"}
    assert result.manifest.batchable
    assert plain.manifest.shards[1].receives[0].datatype == "FP32"
    same(chained(result, feeds), whole(quantized, feeds))


def test_layers_stay_in_floating_point_until_the_loss_is_allowed(
    calibration: Path, evaluation: Path, tmp_path: Path
) -> None:
    unlabelled = tmp_path / "eval.npz"
    np.savez(unlabelled, image=np.load(evaluation)["image"][:20])
    told: list[str] = []

    def keep(most: float) -> tuple[tuple[str, ...], float]:
        report = quantize(
            digits_model(),
            calibrate=calibration,
            keep_accuracy=unlabelled,
            options=QuantizeOptions(ranges="min-max", max_drop=most),
            tell=lambda title, done, total: told.append(title),
        ).report
        assert len(report.float_layers) < report.layers
        return report.float_layers, report.distance

    assert keep(1.0)[0] == ()
    assert not any("seeking" in title for title in told)
    kept, distance = keep(0.01)
    assert 0 < len(kept) < 7
    assert distance <= 0.01
    assert any("seeking" in title for title in told)


def test_where_no_layer_may_change_there_is_no_gain(calibration: Path) -> None:
    report = quantize(
        digits_model(),
        calibrate=calibration,
        keep_accuracy=calibration,
        options=QuantizeOptions(ranges="min-max", max_drop=0.0),
    ).report
    assert not report.gain
    assert "every layer stays" in report.verdict


@given(
    harms=st.lists(st.floats(0, 1), min_size=1, max_size=40),
    most=st.floats(0, 5),
)
def test_the_search_keeps_the_fewest_of_the_most_harmful(harms: list[float], most: float) -> None:
    names = [f"layer-{index}" for index in range(len(harms))]
    harm = dict(zip(names, harms, strict=True))
    calls = itertools.count()

    def drop(kept: Sequence[str]) -> float:
        next(calls)
        return sum(harm[name] for name in names if name not in kept)

    kept = layers_to_keep(names, most, harm=harm.__getitem__, drop=drop)
    assert [harm[n] for n in kept] == sorted(harm.values(), reverse=True)[: len(kept)]
    assert next(calls) <= len(names).bit_length()
    assert len(kept) == len(names) or drop(kept) <= most
    assert len(kept) <= 1 or drop(kept[:-1]) > most


def test_half_precision_halves_the_file_and_leaves_inputs_and_outputs() -> None:
    result = quantize(digits_model(), options=QuantizeOptions(mode="fp16"))
    assert result.report.bytes_after < 0.6 * result.report.bytes_before
    assert result.report.distance < 0.01
    assert result.report.judged_on == "synthetic"
    manifest = split(result.model, name="digits", stages=2, profile=False).manifest
    assert manifest.inputs[0].datatype == manifest.outputs[0].datatype == "FP32"


def integer_input(*, floating: bool) -> onnx.ModelProto:
    """`ids` INT32 [1, 8] times stored integers; with `floating`, that times stored weights."""
    stored: dict[str, np.ndarray] = {"counts": np.arange(64, dtype=np.int32).reshape(8, 8) % 5}
    nodes = [node("MatMul", ["ids", "counts"], ["whole"]), node("Cast", ["whole"], ["real"], to=1)]
    end = value("real", [1, 8])
    if floating:
        nodes.append(node("MatMul", ["real", "w"], ["out"]))
        stored |= weights(w=(8, 256))
        end = value("out", [1, 256])
    return make(nodes, [value("ids", [1, 8], onnx.TensorProto.INT32)], [end], stored)


@pytest.mark.parametrize("mode", ["int8", "dynamic", "fp16", "weights-only"])
def test_products_of_integers_are_no_layers(mode: Mode, tmp_path: Path) -> None:
    samples = tmp_path / "ids.npz"
    np.savez(samples, ids=np.arange(80, dtype=np.int32).reshape(10, 8) % 7)
    calibrate = samples if mode == "int8" else None
    options = QuantizeOptions(mode=mode, ranges="min-max")
    data = integer_input(floating=True).SerializeToString()
    result = quantize(data, calibrate=calibrate, options=options)
    assert result.report.layers == 1
    if mode != "fp16":
        with pytest.raises(ModelError, match="with stored weights"):
            quantize(
                integer_input(floating=False).SerializeToString(),
                calibrate=calibrate,
                options=options,
            )


@pytest.mark.parametrize(("bits", "most"), [(8, 0.35), (4, 0.25)])
def test_small_weights_go_through_a_split(bits: int, most: float) -> None:
    options = QuantizeOptions(mode="weights-only", bits=bits)
    result = quantize(mlp(256, 2), options=options)
    assert result.report.bytes_after < most * result.report.bytes_before
    assert "MatMulNBits" in operators(result.model)
    feeds = {"input": floats(1, 256)}
    parts = split(result.model, name="mlp", stages=2, profile=False)
    same(chained(parts, feeds), whole(result.model, feeds))


def test_dynamic_ranges_need_no_samples() -> None:
    result = quantize(mlp(256, 2), options=QuantizeOptions(mode="dynamic"))
    assert result.report.bytes_after < 0.35 * result.report.bytes_before
    assert result.report.distance < 0.05
    assert "DynamicQuantizeLinear" in operators(result.model)


def convolution(opset: int = 17, *, listed: bool = False) -> bytes:
    """Conv, Relu, Conv: FP32 [1, 3, 8, 8] to [1, 8, 8, 8]; perhaps its weights listed as inputs."""
    stored = weights(first=(8, 3, 3, 3), second=(8, 8, 3, 3))
    model = make(
        [
            node("Conv", ["x", "first"], ["a"], pads=[1, 1, 1, 1]),
            node("Relu", ["a"], ["b"]),
            node("Conv", ["b", "second"], ["y"], pads=[1, 1, 1, 1]),
        ],
        [value("x", [1, 3, 8, 8])],
        [value("y", [1, 8, 8, 8])],
        stored,
        opset=opset,
    )
    if listed:
        model.graph.input.extend(value(name, array.shape) for name, array in stored.items())
    return bytes(model.SerializeToString())


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    np.savez(tmp_path / "x.npz", x=floats(8, 3, 8, 8))
    return tmp_path / "x.npz"


@pytest.mark.parametrize(("opset", "listed"), [(11, False), (17, True)])
def test_old_operator_sets_and_weights_listed_as_inputs_are_quantized(
    opset: int, listed: bool, pictures: Path
) -> None:
    result = quantize(convolution(opset, listed=listed), calibrate=pictures, options=MIN_MAX)
    assert "DequantizeLinear" in operators(result.model)
    assert result.report.distance < 0.05
    model = onnx.load_model_from_string(result.model)
    assert [i.name for i in model.graph.input] == ["x"]
    assert next(o.version for o in model.opset_import if not o.domain) >= 13


def no_file(model: Path) -> None:
    model.write_bytes(b"no model at all")


def no_operator(model: Path) -> None:
    graph = make([node("Nonsense", ["x"], ["y"])], [value("x", [1, 3])], [value("y", [1, 3])])
    model.write_bytes(graph.SerializeToString())


def no_data(model: Path) -> None:
    whole_model = onnx.load_model_from_string(convolution())
    onnx.save(whole_model, str(model), save_as_external_data=True, size_threshold=0, location="w")
    (model.parent / "w").unlink()


def no_layer(model: Path) -> None:
    graph = make([node("Relu", ["x"], ["y"])], [value("x", [1, 3])], [value("y", [1, 3])])
    model.write_bytes(graph.SerializeToString())


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (no_file, "is not an ONNX model"),
        (no_operator, "Nonsense"),
        (no_data, "cannot read the external data"),
        (no_layer, "no convolutions or matrix products"),
    ],
)
def test_a_model_that_cannot_be_quantized_is_told_in_one_line(
    spoil: Callable[[Path], None], says: str, tmp_path: Path, pictures: Path
) -> None:
    spoil(tmp_path / "model.onnx")
    with pytest.raises(ModelError, match=says) as raised:
        quantize(tmp_path / "model.onnx", calibrate=pictures)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"x": floats(4, 3, 9, 8)}, r"expected FP32\[samples,3,8,8\], got FP32\[4, 3, 9, 8\]"),
        ({"x": floats(4, 3, 8, 8).astype(np.float64)}, "got FP64"),
        ({"x": np.full((4, 3, 8, 8), np.nan, np.float32)}, "NaN or infinity in sample 0"),
        ({"z": floats(4, 3, 8, 8)}, r"lacks the input 'x' \(it has z\).*numpy.savez"),
        ({"x": floats(0, 3, 8, 8)}, "samples"),
        ({"x": floats(4, 3, 8, 8), "labels": np.arange(3)}, r"integers of shape \[4\]"),
        ({"x": floats(4, 3, 8, 8), "labels": np.full(4, 9999)}, "labels reach from 9999"),
    ],
)
def test_samples_that_do_not_fit_are_told_with_the_right_form(
    arrays: dict[str, np.ndarray], says: str, tmp_path: Path
) -> None:
    np.savez(tmp_path / "bad.npz", **arrays)
    with pytest.raises((ModelError, InputError), match=says):
        quantize(convolution(), calibrate=tmp_path / "bad.npz", options=MIN_MAX)


def test_samples_must_be_an_archive_of_arrays(tmp_path: Path) -> None:
    (tmp_path / "bad.npz").write_bytes(b"none")
    for name in ("bad.npz", "absent.npz"):
        with pytest.raises(ModelError, match=r"numpy\.savez"):
            quantize(convolution(), calibrate=tmp_path / name)


def test_integers_without_samples_are_refused_with_the_ways_that_need_none() -> None:
    with pytest.raises(ModelError, match="--weights-only"):
        quantize(convolution())


@pytest.mark.parametrize(
    ("mode", "speedup", "size", "lost", "pays"),
    [
        ("int8", 1.8, 0.3, None, True),
        ("int8", 1.0, 0.3, None, False),
        ("int8", 1.8, 0.3, 0.02, False),
        ("fp16", 1.0, 0.5, None, True),
        ("fp16", 0.5, 0.5, None, False),
        ("weights-only", 1.0, 0.9, None, False),
    ],
)
def test_a_change_pays_by_time_or_by_bytes(
    mode: str, speedup: float, size: float, lost: float | None, pays: bool
) -> None:
    options = QuantizeOptions(mode=mode)  # type: ignore[arg-type]
    gain, why = verdict_on(options, speedup=speedup, size=size, layers=3, kept=0, lost=lost)
    assert gain is pays
    assert why.startswith("no gain") is not pays


def two_products(*inputs: onnx.ValueInfoProto, inner: Sequence[onnx.NodeProto]) -> bytes:
    """x [n, 8] times a matrix, `inner` from "a" to "b", and a second product."""
    nodes = [
        node("MatMul", ["x", "w"], ["a"]),
        *inner,
        node("MatMul", ["b", "v"], ["y"]),
    ]
    outputs = [value("y", [None] * (2 if len(inputs) == 1 else 3))]
    return make(nodes, inputs, outputs, weights(w=(8, 4), v=(4, 4))).SerializeToString()


def test_a_way_of_finding_ranges_that_fails_is_left_out_and_named(tmp_path: Path) -> None:
    samples = np.random.default_rng(0).standard_normal((6, 8), np.float32)
    np.savez(tmp_path / "large.npz", x=samples * np.float32(1e38))  # beyond entropy's bins
    model = two_products(value("x", ["n", 8]), inner=[node("Relu", ["a"], ["b"])])
    report = quantize(model, calibrate=tmp_path / "large.npz").report
    assert report.skipped.keys() == {"entropy"}
    assert "bins" in report.skipped["entropy"]
    assert report.tried.keys() == {"min-max", "percentile"}
    only = QuantizeOptions(ranges="entropy")
    with pytest.raises(ModelError, match=r"entropy: .*bins"):
        quantize(model, calibrate=tmp_path / "large.npz", options=only)


def test_states_with_their_batch_on_another_axis_and_scalars_are_samples_as_they_are(
    tmp_path: Path,
) -> None:
    random = np.random.default_rng(0)
    model = two_products(
        *(value("x", ["n", 8]), value("state", [2, "n", 4]), value("rate", [])),
        inner=[node("Add", ["a", "state"], ["moved"]), node("Mul", ["moved", "rate"], ["b"])],
    )
    arrays = {
        "x": random.standard_normal((6, 8), np.float32),
        "state": random.standard_normal((6, 2, 1, 4), np.float32),
        "rate": np.linspace(1, 2, 6, dtype=np.float32),
    }
    np.savez(tmp_path / "samples.npz", **arrays)
    result = quantize(model, calibrate=tmp_path / "samples.npz", options=MIN_MAX)
    assert (result.report.samples, result.report.layers) == (6, 2)
    feeds = {"x": arrays["x"][:1], "state": arrays["state"][0], "rate": arrays["rate"][0]}
    feeds["rate"] = np.asarray(feeds["rate"])
    right, made = (make_session(each).run(None, feeds)[0] for each in (model, result.model))
    assert np.abs(right - made).max() < 0.05 * np.abs(right).max()
    np.savez(tmp_path / "few.npz", **{**arrays, "state": arrays["state"][0]})
    with pytest.raises(InputError, match=r"FP32\[samples,2,\?,4\]"):
        quantize(model, calibrate=tmp_path / "few.npz", options=MIN_MAX)
