"""The nearest of an index are those that a comparison with all finds; bad ones are refused."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shards.compose.check import check
from shards.compose.composition import composition_of
from shards.compose.errors import CompositionError
from shards.compose.nearest import (
    ABOUT,
    EXACT,
    METRICS,
    VECTORS,
    IndexAbout,
    NearestIndex,
    made_index,
    read_about,
)
from shards.compose.run import run

RNG = np.random.default_rng(5)
GALLERY = RNG.standard_normal((40, 6)).astype(np.float32)


def archive(folder: Path, **arrays: Any) -> Path:
    path = folder / "gallery.npz"
    np.savez(path, **arrays)
    return path


def opened(folder: Path, metric: str = "cos", held: bool = False, **arrays: Any) -> NearestIndex:
    made = folder / f"index-{metric}-{held}-{len(arrays)}"
    made.mkdir()
    about = made_index(archive(folder, **arrays), metric, made)
    assert read_about(made, "gallery") == about

    def fetch(file: str) -> bytes | Path:
        return (made / file).read_bytes() if held else made / file

    return NearestIndex(about, fetch, "gallery")


def distances(metric: str, vectors: np.ndarray, question: np.ndarray) -> np.ndarray:
    if metric == "l2sq":
        return np.square(vectors - question).sum(axis=1)
    dots = vectors @ question
    if metric == "ip":
        return 1 - dots
    return 1 - dots / np.linalg.norm(vectors, axis=1) / np.linalg.norm(question)


@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("metric", METRICS)
@given(seed=st.integers(0, 1000), k=st.integers(1, 40), rows=st.integers(0, 40))
@settings(max_examples=15, deadline=None)
def test_the_nearest_are_those_that_a_comparison_with_all_finds(
    tmp_path_factory: pytest.TempPathFactory,
    metric: str,
    held: bool,
    seed: int,
    k: int,
    rows: int,
) -> None:
    ids = np.arange(40)[::-1] * 7
    index = opened(tmp_path_factory.mktemp("i"), metric, held, vectors=GALLERY, ids=ids)
    questions = np.random.default_rng(seed).standard_normal((rows, 6)).astype(np.float32)
    found = index.search(questions, k, None)
    assert found["labels"].shape == ((rows,) if k == 1 else (rows, k))
    for place, question in enumerate(questions):
        told = distances(metric, GALLERY, question)
        assert np.allclose(found["distances"][place], np.sort(told)[:k], atol=1e-4)
        rows_of = {int(each): row for row, each in enumerate(ids)}
        own = [told[rows_of[int(label)]] for label in np.atleast_1d(found["labels"][place])]
        assert np.allclose(own, found["distances"][place], atol=1e-4)


def test_a_large_index_finds_nearly_all_and_always_as_many_as_asked_for(tmp_path: Path) -> None:
    many = np.random.default_rng(1).standard_normal((EXACT + 500, 16)).astype(np.float32)
    index = opened(tmp_path, "cos", vectors=many)
    questions = np.random.default_rng(2).standard_normal((50, 16)).astype(np.float32)
    found = index.search(questions, 10, None)
    right = 0
    for place, question in enumerate(questions):
        best = np.argsort(distances("cos", many, question))[:10]
        right += len(set(best.tolist()) & set(found["labels"][place].tolist()))
    assert right > 400
    assert np.isfinite(found["distances"]).all()
    for k in (1, 10):  # one vector at a time
        alone = [index.search(one[None], k, None) for one in questions[:20]]
        together = index.search(questions[:20], k, None)
        assert np.array_equal(
            np.concatenate([each["labels"] for each in alone]), together["labels"]
        )


def test_what_is_too_far_or_cannot_be_compared_is_nobody(tmp_path: Path) -> None:
    answers = np.arange(40, dtype=np.float32)[:, None] + 1
    index = opened(tmp_path, vectors=GALLERY, answer=answers)
    odd = np.stack([GALLERY[3], -GALLERY[3] * 0, GALLERY[3] * np.nan, GALLERY[3] * np.inf])
    found = index.search(odd, 1, 1e-3)
    assert found["labels"].tolist() == [3, -1, -1, -1]
    assert found["distances"].tolist() == [pytest.approx(0, abs=1e-5), *[np.inf] * 3]
    assert found["answer"].tolist() == [[4.0], [0.0], [0.0], [0.0]]


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({}, "vectors"),
        ({"vectors": GALLERY[0]}, "vectors"),
        ({"vectors": GALLERY.astype(np.int32)}, "vectors"),
        ({"vectors": GALLERY[:0]}, "not 0"),
        ({"vectors": GALLERY[:, :0]}, "of 0"),
        ({"vectors": np.where(GALLERY > 2, np.nan, GALLERY)}, "not finite"),
        ({"vectors": GALLERY.astype(np.float64) * 1e300}, "not finite"),
        ({"vectors": np.zeros((2, 3), np.float32)}, "zero"),
        ({"vectors": GALLERY, "ids": np.zeros(40, np.int64)}, "id 0 stands there twice"),
        ({"vectors": GALLERY, "ids": np.arange(39)}, "40 whole numbers"),
        ({"vectors": GALLERY, "ids": np.arange(40.0)}, "40 whole numbers"),
        ({"vectors": GALLERY, "ids": np.arange(40) - 1}, "from 0 on"),
        ({"vectors": GALLERY, "ids": np.arange(40, dtype=np.uint64) + 2**63}, "INT64"),
        ({"vectors": GALLERY, "labels": np.arange(40)}, "labels"),
        ({"vectors": GALLERY, "names": np.array(["a"] * 40)}, "names"),
        ({"vectors": GALLERY, "answer": np.arange(39)}, "answer"),
        ({"vectors": GALLERY, "answer": np.float32(1)}, "answer"),
        ({"vectors": GALLERY, "a b": np.arange(40)}, "tensor"),
    ],
)
def test_an_archive_that_makes_no_index_is_refused(
    tmp_path: Path, arrays: dict[str, Any], says: str
) -> None:
    with pytest.raises(CompositionError, match=says):
        opened(tmp_path, "cos", **arrays)


def test_what_is_no_archive_is_refused(tmp_path: Path) -> None:
    for number, data in enumerate((b"", b"PK\x03\x04", b"text", b"\x93NUMPY")):
        file = tmp_path / f"{number}.npz"
        file.write_bytes(data)
        with pytest.raises(CompositionError, match="archive"):
            made_index(file, "cos", tmp_path)
    single = tmp_path / "single.npy"
    np.save(single, GALLERY)
    with pytest.raises(CompositionError, match="archive"):
        made_index(single, "cos", tmp_path)
    pickled = tmp_path / "pickled.npz"
    np.savez(pickled, vectors=np.array([{}], object))
    with pytest.raises(CompositionError, match="archive"):
        made_index(pickled, "cos", tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: (folder / VECTORS).write_bytes(b"x" * 5000),
        lambda folder: (folder / VECTORS).write_bytes((folder / VECTORS).read_bytes()[:-500]),
        lambda folder: (folder / VECTORS).write_bytes(b""),
        lambda folder: np.save(folder / "ids.npy", np.arange(39)),
        lambda folder: np.save(folder / "ids.npy", np.arange(40.0)),
        lambda folder: (folder / "ids.npy").write_bytes(b"nothing"),
        lambda folder: np.save(folder / "payload-answer.npy", np.zeros((40, 2), np.float32)),
        lambda folder: (folder / "payload-answer.npy").unlink(),
    ],
)
@pytest.mark.parametrize("held", [False, True])
def test_files_of_another_index_are_refused(tmp_path: Path, change: Any, held: bool) -> None:
    folder = tmp_path / "index"
    folder.mkdir()
    answers = np.zeros((40, 3), np.float32)
    about = made_index(archive(tmp_path, vectors=GALLERY, answer=answers), "cos", folder)
    change(folder)
    with pytest.raises(CompositionError, match="gallery"):
        NearestIndex(about, lambda file: (folder / file).read_bytes() if held else folder / file,
                     "gallery")  # fmt: skip


GOOD = IndexAbout("cos", 6, 40, {"answer": ("FP32", (3,))}).to_doc()


@pytest.mark.parametrize(
    "raw",
    [
        None,
        [],
        {},
        {**GOOD, "metric": "hamming"},
        {**GOOD, "dimensions": 0},
        {**GOOD, "dimensions": True},
        {**GOOD, "count": 1 << 40},
        {**GOOD, "payload": []},
        {**GOOD, "payload": {"a": "FP32"}},
        {**GOOD, "payload": {"a": ["FP33", [1]]}},
        {**GOOD, "payload": {"a": ["FP32", ["x"]]}},
    ],
)
def test_what_tells_of_no_index_is_refused(tmp_path: Path, raw: object) -> None:
    (tmp_path / ABOUT).write_text(json.dumps(raw), encoding="utf-8")
    with pytest.raises(CompositionError, match="gallery"):
        read_about(tmp_path, "gallery")


def test_without_its_library_an_index_is_not_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "usearch", None)
    monkeypatch.setitem(sys.modules, "usearch.index", None)
    with pytest.raises(ModuleNotFoundError):
        made_index(archive(tmp_path, vectors=GALLERY), "cos", tmp_path)


# --- in a composition --------------------------------------------------------------------

ABOUT_GALLERY = IndexAbout("cos", 6, 40, {"answer": ("FP32", (3,))})


def declared(nearest: Any, outputs: Any = None) -> Any:
    return {
        "inputs": {"v": {"datatype": "FP32", "shape": [-1, 6]}, "w": {"datatype": "FP64",
                   "shape": [1, 6]}, "u": {"datatype": "FP32", "shape": [1, 5]}},
        "part": [{"name": "known", "nearest": nearest}],
        "outputs": outputs or {"label": "known.labels", "answer": "known.answer"},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("nearest", "says"),
    [
        ({"index": "gallery"}, "PART.TENSOR"),
        ({"of": "v"}, "index"),
        ({"of": "v", "index": "a/b"}, "index"),
        ({"of": "v", "index": "gallery", "k": 0}, "`k`"),
        ({"of": "v", "index": "gallery", "k": 257}, "`k`"),
        ({"of": "v", "index": "gallery", "k": 41}, "40 vectors"),
        ({"of": "v", "index": "gallery", "most_distance": "0"}, "most_distance"),
        ({"of": "v", "index": "gallery", "most_distance": float("nan")}, "most_distance"),
        ({"of": "v", "index": "gallery", "near": 1}, "near"),
        ({"of": "v", "index": "other"}, "no index 'other'"),
        ({"of": "w", "index": "gallery"}, "FP64"),
        ({"of": "u", "index": "gallery"}, "1,5"),
        ("gallery", "table"),
    ],
)
def test_what_an_index_does_not_take_is_refused_by_part(nearest: Any, says: str) -> None:
    def checked() -> None:
        composition = composition_of(declared(nearest))
        check(replace(composition, indexes={"gallery": ABOUT_GALLERY}), {})

    with pytest.raises(CompositionError, match=says) as error:
        checked()
    assert "known" in str(error.value)


@pytest.mark.parametrize("rows", [0, 1, 2, 30])
async def test_a_composition_gives_ids_and_what_belongs_to_them(tmp_path: Path, rows: int) -> None:
    answers = np.arange(120, dtype=np.float32).reshape(40, 3)
    index = opened(tmp_path, vectors=GALLERY, answer=answers)
    composition = replace(
        composition_of(declared({"of": "v", "index": "gallery"})), indexes={"gallery": index}
    )
    specs = {spec.name: spec for spec in check(composition, {}).outputs}
    assert specs["answer"].shape == (-1, 3)

    async def ask(*_: Any) -> Any:
        raise AssertionError("there is no model")

    ran = await run(composition, {}, {"v": GALLERY[:rows]}, ask)
    assert ran.outputs["label"].tolist() == list(range(rows))
    assert np.array_equal(ran.outputs["answer"], answers[:rows])
    assert ran.parts["known"].rows == rows
    with pytest.raises(CompositionError, match="known"):
        await run(composition, {}, {"v": np.zeros((1025, 6), np.float32)}, ask)
    unopened = replace(composition, indexes={"gallery": index.about})
    with pytest.raises(CompositionError, match="not open"):
        await run(unopened, {}, {"v": GALLERY[:1]}, ask)
