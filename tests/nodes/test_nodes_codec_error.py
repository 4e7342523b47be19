"""What an owner is told, and what the manifest keeps, of the codecs that are allowed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from two_results import CUT, early_and_late

from nodes.cli.codec_error import AllowedCodecs, codecs_lines, with_codecs
from shards.errors import ShardsError
from shards.manifest import CodecError, Manifest, write_dir
from shards.runtimes.stage import StageRuntime
from shards.split.split import split
from shards.zoo import digits_heldout, digits_model
from swarm.errors import InvalidArgument
from swarm.model import ModelInfo


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    result = split(digits_model(), name="digits", stages=3, profile=False, bandwidth=1e6)
    path = tmp_path_factory.mktemp("digits")
    write_dir(str(path), result.manifest, result.files)
    np.savez(path / "samples.npz", image=digits_heldout()[0][:40])
    return path


@pytest.fixture(scope="module")
def two_results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two stages of `early_and_late`."""
    result = split(early_and_late(), name="two", cuts=[CUT], profile=False, bandwidth=1e6)
    path = tmp_path_factory.mktemp("two")
    write_dir(str(path), result.manifest, result.files)
    return path


def manifest_of(folder: Path) -> Manifest:
    return Manifest.from_json((folder / "manifest.json").read_bytes())


async def test_the_error_grows_as_bits_go_and_stands_in_the_manifest(folder: Path) -> None:
    samples = str(folder / "samples.npz")
    names = ("f16", "i8", "i4")
    options = AllowedCodecs("f16, i8,i4,i8", samples=samples)
    allowed = await with_codecs(manifest_of(folder), str(folder), options)
    errors = [allowed.codecs[name] for name in names]
    assert [error.samples for error in errors] == [40, 40, 40]
    assert 0 < errors[0].max < errors[1].max < errors[2].max < 0.5
    assert all(error.mean < error.max for error in errors)
    again = Manifest.from_json(allowed.to_json())
    assert again == allowed
    assert ModelInfo.from_manifest(allowed.to_json()).codecs == set(names)


async def test_without_samples_seeded_values_are_measured(folder: Path) -> None:
    allowed = await with_codecs(manifest_of(folder), str(folder), AllowedCodecs("i8"))
    assert 0 < allowed.codecs["i8"].max < 0.2
    assert allowed.result_codecs == {}


async def test_results_are_measured_with_exact_features_and_features_with_exact_results(
    two_results: Path,
) -> None:
    """The outputs are hardly more than the inputs, so each error is about half a codec's step."""
    manifest = manifest_of(two_results)
    both = await with_codecs(manifest, str(two_results), AllowedCodecs("i4", "i8,i4"))
    assert 0 < both.result_codecs["i8"].max <= 1 / 255
    assert 1 / 255 < both.result_codecs["i4"].max <= 1 / 15
    info = ModelInfo.from_manifest(both.to_json())
    assert (info.codecs, info.result_codecs) == ({"i4"}, {"i8", "i4"})
    results_alone = await with_codecs(manifest, str(two_results), AllowedCodecs("", "i4"))
    assert results_alone.result_codecs["i4"] == both.result_codecs["i4"]
    assert results_alone.codecs == {}
    more = await with_codecs(results_alone, str(two_results), AllowedCodecs("i4"))
    assert more == both_without(both, "i8")


def both_without(manifest: Manifest, codec: str) -> Manifest:
    kept = {name: error for name, error in manifest.result_codecs.items() if name != codec}
    return replace(manifest, result_codecs=kept)


def test_an_owner_reads_both_errors_as_lines_and_as_json(folder: Path) -> None:
    nothing = manifest_of(folder)
    assert (codecs_lines(nothing), nothing.codecs_doc()) == ([], {})
    error, small = CodecError(0.25, 0.0625, 4), CodecError(0.002, 0.001, 4)
    some = replace(nothing, codecs={"i4": error}, result_codecs={"i8": small})
    features, results = codecs_lines(some)
    assert features.startswith("i4 is allowed for features: outputs off by 0.25 at most, 0.062 on")
    assert results.startswith("i8 is allowed for results: outputs off by 0.002 at most")
    assert some.codecs_doc()["codecs"] == {"i4": {"max": 0.25, "mean": 0.0625, "samples": 4}}
    assert some.codecs_doc()["result_codecs"] == {"i8": {"max": 0.002, "mean": 0.001, "samples": 4}}


async def test_samples_that_do_not_fit_are_refused_with_the_remedy(
    folder: Path, tmp_path: Path
) -> None:
    np.savez(tmp_path / "other.npz", picture=np.zeros((2, 1, 8, 8), np.float32))
    options = AllowedCodecs("i8", samples=str(tmp_path / "other.npz"))
    with pytest.raises(ShardsError, match="lacks the input 'image'"):
        await with_codecs(manifest_of(folder), str(folder), options)


async def test_a_version_that_allows_nothing_keeps_its_manifest(folder: Path) -> None:
    manifest = manifest_of(folder)
    assert await with_codecs(manifest, str(folder), AllowedCodecs()) == manifest
    assert "codecs" not in manifest.to_json().decode()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (AllowedCodecs("i8,i5"), "--allow-codec 'i5'"),
        (AllowedCodecs("", "i5"), "--allow-result-codec 'i5'"),
    ],
)
async def test_a_codec_that_does_not_exist_is_refused_with_those_that_do(
    folder: Path, options: AllowedCodecs, named: str
) -> None:
    with pytest.raises(InvalidArgument, match=f"{named}: it is one of f16, i8, i6, i4"):
        await with_codecs(manifest_of(folder), str(folder), options)


async def test_the_exact_model_runs_once_however_many_codecs_are_measured(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[int] = []
    run = StageRuntime.run

    def counted(stage: StageRuntime, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        runs.append(stage.shard.stage)
        return run(stage, feeds)

    monkeypatch.setattr(StageRuntime, "run", counted)
    options = AllowedCodecs("f16,i8,i4", samples=str(folder / "samples.npz"))
    await with_codecs(manifest_of(folder), str(folder), options)
    assert runs.count(1) == 40 * (1 + 3)
