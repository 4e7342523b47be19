"""What a manifest promises: it survives JSON, and a wrong one is refused with the reason."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shard_graphs import mlp, ssd_like

from shards.errors import ArtifactError, ManifestError
from shards.manifest import (
    DTYPES,
    CodecError,
    LighterModel,
    Manifest,
    TensorSpec,
    read_dir,
    sha256,
    write_dir,
)
from shards.split.split import SplitResult, split

RESULT = split(ssd_like().SerializeToString(), name="ssd", stages=3, profile=False)


@pytest.fixture
def result() -> SplitResult:
    return RESULT


def changed(manifest: Manifest, **fields: Any) -> bytes:
    return json.dumps({**json.loads(manifest.to_json()), **fields}).encode()


def test_a_manifest_survives_json(result: SplitResult) -> None:
    manifest = replace(result.manifest, lighter=LighterModel("l.onnx", "0" * 64, 5))
    again = Manifest.from_json(manifest.to_json())
    assert again == manifest
    assert again.to_json() == manifest.to_json()


ERROR = CodecError(0.25, 0.125, 4)


def test_the_codecs_of_features_and_of_results_survive_json(result: SplitResult) -> None:
    allowed = {"i8": ERROR, "i4": ERROR}
    manifest = replace(result.manifest, codecs=allowed, result_codecs={"i8": ERROR})
    assert Manifest.from_json(manifest.to_json()) == manifest


def test_a_part_survives_json_also_one_that_no_feature_here_reads(result: SplitResult) -> None:
    file = {"file": "notes.txt", "sha256": "0" * 64, "bytes": 3}
    manifest = replace(result.manifest, parts={"juggling": {"balls": [3], "files": [file]}})
    assert Manifest.from_json(manifest.to_json()) == manifest
    assert "notes.txt" in manifest.files()
    assert manifest.digest("notes.txt") == "0" * 64
    for wrong in ("notes.txt", {}, file | {"file": "../notes.txt"}, file | {"sha256": "0"}):
        with pytest.raises(ManifestError):
            Manifest.from_json(changed(result.manifest, juggling={"files": [wrong]}))


def test_a_manifest_from_before_results_had_codecs_is_read_and_keeps_them_exact(
    result: SplitResult,
) -> None:
    data = changed(result.manifest, codecs={"i4": {"max": 0.25, "mean": 0.125, "samples": 4}})
    assert b"result_codecs" not in data
    assert Manifest.from_json(data) == replace(result.manifest, codecs={"i4": ERROR})


@pytest.mark.parametrize("field", ["codecs", "result_codecs"])
@pytest.mark.parametrize(
    "wrong",
    [
        ["i8"],
        {"i8": 0.25},
        {"a.b": {"max": 1, "mean": 1, "samples": 1}},
        {"i8": {"max": "1", "mean": 1, "samples": 1}},
        {"i8": {"max": 10**400, "mean": 1, "samples": 1}},
        {"i8": {"max": 1, "mean": 1}},
    ],
    ids=str,
)
def test_codecs_with_a_fault_are_refused(result: SplitResult, field: str, wrong: object) -> None:
    with pytest.raises(ManifestError):
        Manifest.from_json(changed(result.manifest, **{field: wrong}))


def test_unknown_fields_are_ignored(result: SplitResult) -> None:
    data = changed(result.manifest, signature="x", shards_v2=[1])
    assert Manifest.from_json(data) == result.manifest


def test_a_later_format_is_refused_and_says_what_to_do(result: SplitResult) -> None:
    with pytest.raises(ManifestError, match="upgrade the node"):
        Manifest.from_json(changed(result.manifest, format=2))


@pytest.mark.parametrize("name", ["", "a.b", "a b", "a/b", "a*", "ä", ">", "a\n", 5, None])
def test_a_name_that_is_no_subject_token_is_refused(result: SplitResult, name: object) -> None:
    with pytest.raises(ManifestError, match="must be made of letters"):
        Manifest.from_json(changed(result.manifest, model=name))
    with pytest.raises(ManifestError, match="must be made of letters"):
        Manifest.from_json(changed(result.manifest, version=name))


@pytest.mark.parametrize("file", ["../x", "/etc/passwd", "a/b", ".hidden", "manifest.json", "a\n"])
def test_a_file_outside_the_folder_is_refused(result: SplitResult, file: str) -> None:
    shards = json.loads(result.manifest.to_json())["shards"]
    shards[0]["file"] = file
    with pytest.raises(ManifestError, match="not a plain file name"):
        Manifest.from_json(changed(result.manifest, shards=shards))


@pytest.mark.parametrize(
    ("path", "wrong"),
    [
        (("stage",), 7),
        (("stage",), True),
        (("sha256",), "abc"),
        (("bytes",), "many"),
        (("carries",), ["nowhere"]),
        (("carries",), [3]),
        (("sends",), []),
        (("receives",), None),
        (("inputs",), []),
        (("file",), ""),
        (("end",), 1),
        (("receives", 0, "shape"), [-2]),
        (("receives", 0, "shape"), "N"),
        (("receives", 0, "datatype"), "BYTES"),
        (("receives", 0, "name"), ""),
        (("receives", 0, "batch"), "yes"),
    ],
)
def test_a_shard_that_contradicts_itself_is_refused(
    result: SplitResult, path: tuple[Any, ...], wrong: object
) -> None:
    shards = json.loads(result.manifest.to_json())["shards"]
    target = shards[1]
    for key in path[:-1]:
        target = target[key]
    assert target[path[-1]] != wrong
    target[path[-1]] = wrong
    with pytest.raises(ManifestError):
        Manifest.from_json(changed(result.manifest, shards=shards))


leaves = st.none() | st.integers() | st.text()


@given(st.recursive(leaves, lambda x: st.lists(x) | st.dictionaries(st.text(), x)))
def test_json_that_is_no_manifest_is_always_a_manifest_error(raw: object) -> None:
    with pytest.raises(ManifestError):
        Manifest.from_json(json.dumps(raw).encode())


@given(st.sampled_from(sorted(json.loads(RESULT.manifest.to_json()))), st.none() | st.integers())
def test_a_field_of_another_type_is_a_manifest_error(field: str, wrong: int | None) -> None:
    if field in ("extra", "lighter", "opset", "format"):
        wrong = None if field in ("extra", "opset", "format") else 3
    with pytest.raises(ManifestError):
        Manifest.from_json(changed(RESULT.manifest, **{field: wrong}))


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff\xfe", b"[" * 100_000])
def test_bytes_that_are_no_manifest_are_refused(data: bytes) -> None:
    with pytest.raises(ManifestError):
        Manifest.from_json(data)


def test_every_datatype_knows_its_bytes() -> None:
    for name, dtype in DTYPES.items():
        spec = TensorSpec("t", name, (-1, 3, 2), batch=True)
        assert spec.nbytes == 6 * dtype.itemsize
        assert TensorSpec.from_dict(spec.to_dict()) == spec


def test_stages_and_the_edge_are_counted_apart() -> None:
    manifest = split(
        mlp().SerializeToString(), name="m", stages=2, edge_cut="r1", profile=False
    ).manifest
    assert manifest.stages == 2
    assert [shard.stage for shard in manifest.shards] == [0, 1, 2]
    assert manifest.shard(0).sends == manifest.shard(1).receives
    with pytest.raises(ManifestError, match="no stage 3; it has 0, 1, 2"):
        manifest.shard(3)


def test_a_folder_gives_back_what_was_written(result: SplitResult, tmp_path: Path) -> None:
    write_dir(tmp_path / "ssd", result.manifest, result.files)
    manifest, fetch = read_dir(tmp_path / "ssd")
    assert manifest == result.manifest
    assert {name: fetch(name) for name in manifest.files()} == result.files
    assert [path.name for path in tmp_path.iterdir()] == ["ssd"]


def test_a_version_is_never_overwritten(result: SplitResult, tmp_path: Path) -> None:
    write_dir(tmp_path / "ssd", result.manifest, result.files)
    with pytest.raises(ArtifactError, match="not empty"):
        write_dir(tmp_path / "ssd", result.manifest, result.files)


def test_nothing_is_left_behind_when_a_file_is_missing(result: SplitResult, tmp_path: Path) -> None:
    files = dict(result.files)
    files.popitem()
    with pytest.raises(ArtifactError, match="files missing"):
        write_dir(tmp_path / "ssd", result.manifest, files)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_with_changed_or_missing_artifacts_is_noticed(
    result: SplitResult, tmp_path: Path
) -> None:
    write_dir(tmp_path / "ssd", result.manifest, result.files)
    _, fetch = read_dir(tmp_path / "ssd")
    first, second, _ = result.manifest.files()
    (tmp_path / "ssd" / first).write_bytes(result.files[first] + b"\0")
    (tmp_path / "ssd" / second).unlink()
    with pytest.raises(ArtifactError, match="SHA-256"):
        fetch(first)
    with pytest.raises(ArtifactError, match="cannot read"):
        fetch(second)
    with pytest.raises(ArtifactError, match="not an artifact"):
        fetch("../secret")
    with pytest.raises(ArtifactError, match="no manifest"):
        read_dir(tmp_path)


def test_the_hash_in_the_manifest_is_that_of_the_file(result: SplitResult) -> None:
    for shard in result.manifest.shards:
        assert shard.sha256 == sha256(result.files[shard.file])
        assert shard.bytes == len(result.files[shard.file])
