"""Weight versions: a chain of records that can be restored, and that nobody changes unseen."""

from __future__ import annotations

import json
from dataclasses import replace
from hashlib import sha256
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarm.errors import DecodeError, InvalidArgument, NotFound
from swarm.learning.record import KEPT, Ledger, TensorOf, WeightRecord, packed, unpacked

BASE = "ab" * 32


def head(value: float) -> dict[str, np.ndarray]:
    return {
        "weight": np.full((10, 4), value, np.float32),
        "bias": np.full(10, -value, np.float32),
    }


def mint(ledger: Ledger, value: float, **more: Any) -> Ledger:
    given: dict[str, Any] = {
        "by": "learner-1",
        "at": 5.0,
        "accuracy": 0.5,
        "samples": 20,
        "taught": ["learner-1", "learner-2"],
    }
    return ledger.minted(head(value), **(given | more))


def test_a_record_follows_the_one_before_it_and_the_first_follows_the_base() -> None:
    one = mint(Ledger(BASE), 1.0)
    two = mint(one, 2.0)
    assert [r.n for r in two.records] == [1, 2]
    assert two.records[0].parent == BASE
    assert two.records[1].parent == one.records[0].hash
    assert (Ledger(BASE).n, one.n, two.n) == (0, 1, 2)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.one_of(st.floats(-9, 9, width=32), st.just("back")), max_size=3 * KEPT))
def test_a_ledger_reads_back_as_it_was_whatever_was_minted_and_restored(steps: list[Any]) -> None:
    ledger = Ledger(BASE)
    for step in steps:
        if step != "back":
            ledger = mint(ledger, step)
        elif ledger.records:
            ledger = ledger.restored(ledger.records[0].n, by="operator", at=6.0)
    again = Ledger.from_json(ledger.to_json())
    assert again == ledger
    assert len(again.records) <= KEPT
    assert again.n == min(len(steps), again.n)


def test_going_back_has_the_next_number_the_old_tensors_and_a_raised_epoch() -> None:
    ledger = mint(mint(mint(Ledger(BASE), 1.0), 2.0), 3.0)
    back = ledger.restored(2, by="operator", at=9.0)
    present = back.present
    assert present is not None
    assert (present.n, present.epoch, present.restores) == (4, 1, 2)
    assert present.tensors == ledger.record(2).tensors
    assert present.stored == ledger.record(2).stored
    assert mint(back, 4.0).epoch == 1


def test_going_back_to_zero_restores_the_base_without_tensors() -> None:
    back = mint(Ledger(BASE), 1.0).restored(0, by="operator", at=9.0)
    assert back.present is not None
    assert (back.present.tensors, back.present.stored, back.present.restores) == ({}, "", 0)
    assert Ledger.from_json(back.to_json()) == back


def test_a_version_that_is_not_kept_cannot_be_restored_and_the_error_names_those_that_are() -> None:
    ledger = Ledger(BASE)
    for value in range(KEPT + 3):
        ledger = mint(ledger, value)
    with pytest.raises(NotFound, match=f"kept are 4 to {KEPT + 3}"):
        ledger.restored(3, by="operator", at=9.0)
    with pytest.raises(InvalidArgument, match="no weight version yet"):
        Ledger(BASE).restored(0, by="operator", at=9.0)


def test_stored_tensors_are_garbage_only_when_no_kept_or_coming_record_can_need_them() -> None:
    ledger = mint(mint(Ledger(BASE), 1.0), 2.0)
    assert not any(ledger.is_garbage(stored) for stored in ledger.stored())
    assert ledger.is_garbage("2-of-one-who-lost")
    assert not ledger.is_garbage("3-of-one-who-mints-now")
    assert ledger.is_garbage("no-number")


def changed(ledger: Ledger, index: int, fields: dict[str, Any]) -> bytes:
    doc = json.loads(ledger.to_json())
    doc["records"][index] |= fields
    return json.dumps(doc).encode()


@pytest.mark.parametrize(
    "fields",
    [
        {"accuracy": 0.99},
        {"by": "somebody-else"},
        {"n": 7},
        {"epoch": 1},
        {"base": "cd" * 32},
        {"tensors": {}},
        {"signature": "00"},
        {"parent": "cd" * 32},
    ],
)
def test_a_changed_record_breaks_the_chain(fields: dict[str, Any]) -> None:
    ledger = mint(mint(mint(Ledger(BASE), 1.0), 2.0), 3.0)
    with pytest.raises(DecodeError):
        Ledger.from_json(changed(ledger, 1, fields))


@pytest.mark.parametrize(
    "fields",
    [
        {"n": True},
        {"n": 0},
        {"n": 1 << 64},
        {"at": float("nan")},
        {"accuracy": "good"},
        {"tensors": {"w": {"datatype": "FP32", "shape": [-1], "sha256": BASE}}},
        {"tensors": {"w": {"datatype": "FP31", "shape": [1], "sha256": BASE}}},
        {"tensors": {"w": {"datatype": "FP32", "shape": [1], "sha256": "xy"}}},
        {"tensors": {"w": None}},
        {"stored": "../*"},
        {"signature": "zz"},
        {"taught": ["x"] * 99},
        {"restores": -1},
    ],
)
def test_a_malformed_record_is_refused(fields: dict[str, Any]) -> None:
    ledger = mint(Ledger(BASE), 1.0)
    with pytest.raises(DecodeError):
        Ledger.from_json(changed(ledger, 0, fields))


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"v": 2}', b"[" * 4000, b" " * (2 << 20)])
def test_bytes_that_are_no_ledger_are_refused(data: bytes) -> None:
    with pytest.raises(DecodeError):
        Ledger.from_json(data)


def test_a_signature_is_of_everything_but_itself() -> None:
    signed: list[bytes] = []

    def sign(payload: bytes) -> bytes:
        signed.append(payload)
        return b"signature"

    record = mint(Ledger(BASE), 1.0, key="UKEY", sign=sign).records[0]
    assert record.signature == b"signature"
    assert signed == [record.payload()]
    assert b"signature" not in record.payload()


def test_tensors_come_back_bit_for_bit_and_other_bytes_are_refused() -> None:
    record = mint(Ledger(BASE), 0.1).records[0]
    data = packed(head(0.1))
    for name, array in unpacked(record, data).items():
        np.testing.assert_array_equal(array, head(0.1)[name])
    with pytest.raises(DecodeError, match="another hash"):
        unpacked(record, data[:-1] + b"x")
    with pytest.raises(DecodeError, match="too few"):
        unpacked(record, data[:-4])


def test_a_shape_that_no_array_may_have_is_refused() -> None:
    """Its size is 0, so that its bytes are right."""
    record = mint(Ledger(BASE), 1.0).records[0]
    empty = TensorOf("FP32", (0, 1 << 31, 1 << 31, 1 << 31), sha256(b"").hexdigest())
    hostile = replace(record, tensors={"weight": empty})
    read = WeightRecord.from_doc(json.loads(json.dumps(hostile.as_doc())))
    with pytest.raises(DecodeError, match="too large"):
        unpacked(read, b"")


def test_tensors_that_are_not_finite_are_no_weight_version() -> None:
    with pytest.raises(InvalidArgument, match="not finite"):
        mint(Ledger(BASE), float("nan"))
    with pytest.raises(InvalidArgument, match="1 to 64 tensors"):
        Ledger(BASE).minted({}, by="n", at=0, accuracy=None, samples=0, taught=())
