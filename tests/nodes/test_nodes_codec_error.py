"""What an owner is told, and what the manifest keeps, of the codecs that are allowed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from nodes.cli.codec_error import codecs_of, with_codecs
from shards.errors import ShardsError
from shards.manifest import Manifest, write_dir
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


def manifest_of(folder: Path) -> Manifest:
    return Manifest.from_json((folder / "manifest.json").read_bytes())


async def test_the_error_grows_as_bits_go_and_stands_in_the_manifest(folder: Path) -> None:
    manifest = manifest_of(folder)
    names = codecs_of("f16, i8,i4,i8")
    assert names == ("f16", "i8", "i4")
    allowed = await with_codecs(manifest, str(folder), names, str(folder / "samples.npz"))
    errors = [allowed.codecs[name] for name in names]
    assert [error.samples for error in errors] == [40, 40, 40]
    assert 0 < errors[0].max < errors[1].max < errors[2].max < 0.5
    assert all(error.mean < error.max for error in errors)
    again = Manifest.from_json(allowed.to_json())
    assert again == allowed
    assert ModelInfo.from_manifest(allowed.to_json()).codecs == set(names)


async def test_without_samples_seeded_values_are_measured(folder: Path) -> None:
    allowed = await with_codecs(manifest_of(folder), str(folder), ("i8",), "")
    assert 0 < allowed.codecs["i8"].max < 0.2


async def test_samples_that_do_not_fit_are_refused_with_the_remedy(
    folder: Path, tmp_path: Path
) -> None:
    np.savez(tmp_path / "other.npz", picture=np.zeros((2, 1, 8, 8), np.float32))
    with pytest.raises(ShardsError, match="lacks the input 'image'"):
        await with_codecs(manifest_of(folder), str(folder), ("i8",), str(tmp_path / "other.npz"))


async def test_a_version_that_allows_nothing_keeps_its_manifest(folder: Path) -> None:
    manifest = manifest_of(folder)
    assert await with_codecs(manifest, str(folder), (), "") == manifest
    assert "codecs" not in manifest.to_json().decode()


def test_a_codec_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(InvalidArgument, match="f16, i8, i6, i4"):
        codecs_of("i8,i5")
