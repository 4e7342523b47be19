"""A device loads a stage and runs it: it verifies, refuses, batches and cancels."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from shard_graphs import floats, make, mlp, node, ssd_like, value, weights

import shards
from shards.errors import (
    ArtifactError,
    InputError,
    ManifestError,
    ModelError,
    RunError,
)
from shards.runtimes import ort as ort_module
from shards.runtimes.load import load_lighter, load_stage
from shards.runtimes.ort import OrtRuntime
from shards.runtimes.stage import StageRuntime, check_feeds
from shards.runtimes.synthetic import deviation, random_feeds
from shards.specs import TensorSpec
from shards.split.split import SplitResult, split

MLP = split(mlp().SerializeToString(), name="mlp", stages=2, profile=False)
SSD = split(ssd_like().SerializeToString(), name="ssd", stages=2, profile=False)


def stage(result: SplitResult, number: int, **options: Any) -> StageRuntime:
    return load_stage(result.manifest, number, result.files.__getitem__, **options)


def test_importing_the_package_loads_no_runtime_and_no_onnx() -> None:
    code = (
        "import json, sys, shards, shards.errors, shards.manifest, shards.runtimes.runtime, "
        "shards.runtimes.ort, shards.runtimes.load; "
        "print(json.dumps([m for m in sys.modules if "
        "m.split('.')[0] in ('onnx', 'onnxruntime', 'nats', 'swarm', 'nodes')]))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert json.loads(out.stdout) == []


def test_a_stage_leaves_nothing_in_the_home_of_its_user_and_sends_nothing(tmp_path: Any) -> None:
    """ONNX Runtime's own telemetry keeps a database there, and sends it."""
    shards.write_dir(tmp_path / "m", MLP.manifest, MLP.files)
    code = (
        "import shards\n"
        f"manifest, fetch = shards.read_dir({str(tmp_path / 'm')!r})\n"
        "shards.load_stage(manifest, 1, fetch)"
    )
    home = tmp_path / "home"
    home.mkdir()
    # In a CI job the telemetry is off by itself.
    quiet = ("CI", "GITHUB_ACTIONS", "TF_BUILD", "XDG_CACHE_HOME", "ORT_DISABLE_TELEMETRY")
    env = {name: value for name, value in os.environ.items() if name not in quiet}
    env["HOME"] = str(home)
    subprocess.run([sys.executable, "-c", code], env=env, check=True, timeout=60)
    assert list(home.rglob("*")) == []


def test_serving_a_stage_needs_no_onnx(tmp_path: Any) -> None:
    shards.write_dir(tmp_path / "m", MLP.manifest, MLP.files)
    code = (
        "import sys; sys.modules['onnx'] = None\n"
        "import numpy as np, shards\n"
        f"manifest, fetch = shards.read_dir({str(tmp_path / 'm')!r})\n"
        "stage = shards.load_stage(manifest, 1, fetch)\n"
        "print(list(stage.run({'x': np.ones((1, 16), np.float32)})))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert out.stdout.strip() == str([spec.name for spec in MLP.manifest.shard(1).sends])


def test_the_public_surface_of_the_package_is_pinned() -> None:
    assert sorted(shards.__all__) == [
        "ArtifactError", "CancelToken", "DeltaError", "InputError", "Manifest", "ManifestError",
        "ModelError", "OrtRuntime", "RunError", "RunTerminated", "Runtime", "Shard", "ShardsError",
        "SplitError", "SplitResult", "StageRuntime", "TensorSpec", "load_lighter", "load_stage",
        "read_dir", "write_dir",
    ]  # fmt: skip
    for name in shards.__all__:
        assert getattr(shards, name).__name__ == name
    with pytest.raises(AttributeError):
        _ = shards.nothing


def test_a_changed_artifact_is_refused_before_anything_parses_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def parse(*_: object, **__: object) -> None:
        pytest.fail("the runtime saw bytes that were not verified")

    monkeypatch.setattr(ort_module, "make_session", parse)
    data = bytearray(MLP.files["stage-1.onnx"])
    data[len(data) // 2] ^= 1
    with pytest.raises(ArtifactError, match="SHA-256"):
        load_stage(MLP.manifest, 1, lambda _: bytes(data))
    with pytest.raises(ArtifactError, match="SHA-256"):
        load_stage(MLP.manifest, 1, lambda _: b"")


def test_a_missing_artifact_is_an_artifact_error() -> None:
    with pytest.raises(ArtifactError, match=r"stage-1.onnx is missing"):
        load_stage(MLP.manifest, 1, {}.__getitem__)


def test_a_stage_that_does_not_exist_is_a_manifest_error() -> None:
    with pytest.raises(ManifestError, match="no stage 0"):
        stage(MLP, 0)


WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({}, "x", "nothing"),
    ({"x": floats(1, 15)}, "x", "float32[1,15]"),
    ({"x": floats(16)}, "x", "float32[16]"),
    ({"x": floats(1, 16).astype(np.float64)}, "x", "float64[1,16]"),
    ({"x": floats(1, 16).astype(">f4")}, "x", "float32[1,16]"),
    ({"x": [[0.0] * 16]}, "x", "list"),
    ({"x": floats(1, 16), "more": floats(1)}, "more", "an unknown tensor"),
]


@pytest.mark.parametrize(("tensors", "name", "got"), WRONG)
def test_tensors_that_do_not_fit_are_named(tensors: Mapping[str, Any], name: str, got: str) -> None:
    with pytest.raises(InputError) as caught:
        stage(MLP, 1, self_test=False).run(tensors)
    assert (caught.value.name, caught.value.got) == (name, got)


def test_rows_that_disagree_between_batch_inputs_are_refused() -> None:
    specs = [TensorSpec(name, "FP32", (-1, 2), batch=True) for name in "ab"]
    check_feeds(specs, {"a": floats(3, 2), "b": floats(3, 2)})
    with pytest.raises(InputError, match="a batch of 3"):
        check_feeds(specs, {"a": floats(3, 2), "b": floats(2, 2)})


def test_a_stage_without_layers_passes_everything_through_uncopied() -> None:
    result = split(mlp().SerializeToString(), name="m", cuts=["x"])
    first = stage(result, 1)
    x = floats(2, 16)
    assert first.run({"x": x})["x"] is x
    assert first.runtime is None
    assert first.run_batch([{"x": x}, {"x": x}])[1]["x"] is x
    with pytest.raises(InputError):
        first.run({"x": x[0]})


def test_carried_tensors_are_passed_on_without_a_copy() -> None:
    result = split(ssd_like().SerializeToString(), name="ssd", cuts=["a1", "a2"])
    one = stage(result, 1).run({"image": floats(1, 3, 32, 32)})
    assert "head0" in result.manifest.shard(2).carries
    two = stage(result, 2).run(one)
    assert two["head0"] is one["head0"]


def test_a_batch_gives_what_its_requests_would_give_alone() -> None:
    assert SSD.manifest.batchable
    requests: list[dict[str, np.ndarray]] = [
        {"image": floats(rows, 3, 32, 32, seed=rows)} for rows in (1, 3, 2)
    ]
    for number in (1, 2):
        loaded = stage(SSD, number)
        alone = [loaded.run(tensors) for tensors in requests]
        together = loaded.run_batch(requests)
        for one, many in zip(alone, together, strict=True):
            assert list(one) == list(many)
            for name in one:
                assert deviation(one[name], many[name]) < 1e-5
        requests = alone


def test_a_request_without_rows_gives_no_rows_alone_and_among_others() -> None:
    result = split(mlp().SerializeToString(), name="m", stages=2)
    tensors: dict[str, np.ndarray] = {"x": floats(0, 16)}
    for number in (1, 2):
        stage = load_stage(result.manifest, number, result.files.__getitem__)
        [received] = stage.shard.receives
        requests = [{received.name: floats(rows, 16)} for rows in (1, 0, 2)]
        made = [next(iter(each.values())).shape for each in stage.run_batch(requests)]
        assert made == [(1, 16), (0, 16), (2, 16)]
        tensors = stage.run(tensors)
    assert tensors["y"].shape == (0, 16)


def test_requests_of_other_sizes_are_not_mixed_into_one_batch() -> None:
    params = weights(1, c=(4, 3, 3, 3), d=(4, 4, 3, 3))
    nodes = [
        node("Conv", ["image", "c"], ["f"]),
        node("Relu", ["f"], ["a"]),
        node("Conv", ["a", "d"], ["y"]),
    ]
    image, y = value("image", ["N", 3, "H", "W"]), value("y", None)
    result = split(make(nodes, [image], [y], params).SerializeToString(), name="m", stages=2)
    assert result.manifest.batchable
    loaded = stage(result, 1)
    sizes = (8, 12, 8)
    requests = [{"image": floats(1, 3, size, size, seed=i)} for i, size in enumerate(sizes)]
    for tensors, got in zip(requests, loaded.run_batch(requests), strict=True):
        np.testing.assert_allclose(got["a"], loaded.run(tensors)["a"], rtol=1e-5, atol=1e-6)


def test_a_fixed_batch_is_run_one_by_one() -> None:
    result = split(mlp(batch=1).SerializeToString(), name="m", stages=2)
    assert not result.manifest.batchable
    loaded = stage(result, 1)
    requests = [{"x": floats(1, 16, seed=i)} for i in range(3)]
    for tensors, got in zip(requests, loaded.run_batch(requests), strict=True):
        for name, array in loaded.run(tensors).items():
            np.testing.assert_array_equal(got[name], array)


def test_a_model_whose_rows_influence_each_other_is_not_batchable() -> None:
    nodes = [
        node("Gemm", ["x", "w"], ["g"]),
        node("Relu", ["g"], ["a"]),
        node("ReduceMean", ["a"], ["mean"], axes=[0]),
        node("Sub", ["a", "mean"], ["y"]),
    ]
    x, y = value("x", ["N", 8]), value("y", ["N", 8])
    model = make(nodes, [x], [y], weights(1, w=(8, 8)))
    assert not split(model.SerializeToString(), name="m", stages=2).manifest.batchable


def test_one_wrong_request_refuses_a_batch_before_any_of_it_runs() -> None:
    with pytest.raises(InputError):
        stage(MLP, 1).run_batch([{"x": floats(1, 16)}, {"x": floats(1, 15)}])


def test_a_closed_stage_says_so() -> None:
    loaded = stage(MLP, 1)
    loaded.close()
    loaded.close()
    with pytest.raises(RunError, match="closed"):
        loaded.run({"x": floats(1, 16)})


def test_a_provider_that_is_not_there_is_named() -> None:
    with pytest.raises(ModelError, match="no NoSuchProvider"):
        OrtRuntime(MLP.files["stage-1.onnx"], providers=["NoSuchProvider"])


def test_specifications_of_another_model_are_refused() -> None:
    specs = [TensorSpec("other", "FP32", (1,))]
    with pytest.raises(ModelError, match="where the manifest names other"):
        OrtRuntime(MLP.files["stage-1.onnx"], inputs=specs)


class Spoiled:
    """A session whose optimised form computes something else."""

    def __init__(self, session: Any) -> None:
        self.session = session
        self._sess = self

    def __getattr__(self, name: str) -> Any:
        return getattr(self.session, name)

    def run(self, *args: Any) -> list[np.ndarray]:
        return [array + 1 for array in self.session.run(*args)]


@pytest.mark.parametrize("broken", [("all",), ("all", "basic")])
def test_an_optimisation_that_changes_results_is_never_served(
    broken: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real = ort_module.make_session

    def make_session(model: bytes, *, level: Any = "all", **options: Any) -> Any:
        session = real(model, level=level, **options)
        return Spoiled(session) if level in broken else session

    monkeypatch.setattr(ort_module, "make_session", make_session)
    runtime = OrtRuntime(MLP.files["stage-1.onnx"])
    with caplog.at_level(logging.WARNING):
        if "basic" in broken:
            with pytest.raises(ModelError, match="do not serve it"):
                runtime.self_test()
        else:
            assert runtime.self_test() == 0.0
            assert runtime.level == "basic"
            (got,) = runtime.run({"x": floats(1, 16)}).values()
            expected = real(MLP.files["stage-1.onnx"], level="none").run(None, {"x": floats(1, 16)})
            np.testing.assert_allclose(got, expected[0], rtol=1e-5, atol=1e-6)
    assert "falling back to 'basic'" in caplog.text


def test_loading_measures_the_stage() -> None:
    loaded = stage(MLP, 1)
    assert 0 < loaded.compute_ms < 1000


def test_the_lighter_model_is_loaded_when_there_is_one() -> None:
    light = mlp(layers=1).SerializeToString()
    result = split(mlp().SerializeToString(), name="m", stages=2, lighter=light, profile=False)
    assert "lighter.onnx" in result.manifest.files()
    runtime = load_lighter(result.manifest, result.files.__getitem__)
    assert runtime is not None
    assert runtime.run({"x": floats(2, 16)})["y"].shape == (2, 16)
    assert load_lighter(MLP.manifest, MLP.files.__getitem__) is None
    with pytest.raises(ArtifactError, match="SHA-256"):
        load_lighter(result.manifest, lambda _: light + b"\0")


def test_synthetic_input_is_seeded_and_fits() -> None:
    specs = [
        TensorSpec("a", "FP16", (-1, 3, -1)),
        TensorSpec("b", "UINT8", (64,)),
        TensorSpec("c", "BOOL", ()),
        TensorSpec("d", "INT64", (-1,)),
    ]
    feeds = random_feeds(specs, {"d": (5,)}, dynamic=4)
    check_feeds(specs, feeds)
    assert feeds["a"].shape == (1, 3, 4)
    assert feeds["d"].shape == (5,)
    assert feeds["b"].max() > 200
    again = random_feeds(specs, {"d": (5,)}, dynamic=4)
    assert all(np.array_equal(feeds[name], again[name]) for name in feeds)


@pytest.mark.parametrize(
    ("expected", "actual", "apart"),
    [
        (np.array([1.0, -2.0]), np.array([1.0, -2.02]), 0.01),
        (np.array([1.0, np.nan]), np.array([1.0, np.nan]), 0.0),
        (np.array([1.0, np.nan]), np.array([1.0, 0.0]), np.inf),
        (np.array([1.0]), np.array([np.inf]), np.inf),
        (np.array([1.0]), np.array([np.nan]), np.inf),
        (np.array([np.inf]), np.array([-np.inf]), np.inf),
        (np.array([1, 2]), np.array([1, 3]), np.inf),
        (np.array([7], np.uint8), np.array([8], np.uint8), 1 / 255),
        (np.array([1.0]), np.array([[1.0]]), np.inf),
        (np.array([1.0]), np.array([1.0], np.float32), np.inf),
        (np.array([True]), np.array([False]), np.inf),
        (np.zeros((0, 3)), np.zeros((0, 3)), 0.0),
    ],
)
def test_deviation_is_relative_and_never_hides_what_is_not_finite(
    expected: np.ndarray, actual: np.ndarray, apart: float
) -> None:
    assert deviation(expected, actual) == pytest.approx(apart)
