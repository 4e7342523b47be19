"""Weight versions in a real server: one minter wins each number, and old tensors are let go."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from real_server import cut
from support.waiting import eventually

from swarm.errors import (
    BadSignature,
    DecodeError,
    InvalidArgument,
    NotAllowed,
    NotFound,
    Unavailable,
)
from swarm.learning.record import KEPT, Ledger, WeightRecord
from swarm.learning.subjects import LearningSubjects
from swarm.learning.weights import PART, Weights, ledger_of
from swarm.link import Link, jetstream
from swarm.security.identity import Identity
from swarm.security.trusted_keys import AllowList
from swarm.subjects import api

pytestmark = pytest.mark.integration
SUBJECTS = LearningSubjects("test")
BASE = "ab" * 32


def head(value: float, size: int = 10) -> dict[str, np.ndarray]:
    return {"weight": np.full((size, 4), value, np.float32), "bias": np.zeros(size, np.float32)}


@pytest.fixture
async def weights(link: Link) -> Weights:
    made = Weights(link, SUBJECTS)
    await made.prepare()
    return made


async def mint(weights: Weights, value: float, by: str = "n", **more: Any) -> WeightRecord | None:
    held = await weights.read("m", "1")
    given: dict[str, Any] = {"at": 1.0, "accuracy": 0.5, "samples": 9, "taught": [by]}
    return await weights.mint("m", "1", BASE, held, head(value), by=by, **(given | more))


async def until_stored(link: Link, wanted: set[str]) -> None:
    """Deleted keys leave a marker behind for a second."""

    async def are_stored() -> bool:
        return await stored(link) == wanted

    await eventually(are_stored, f"{wanted} are stored")


async def stored(link: Link) -> set[str]:
    keys = await jetstream.kv_keys(link, SUBJECTS.weights_bucket, "tensors.m.1")
    return {key.split(".")[3] for key in keys}


async def test_a_minted_version_is_read_back_bit_for_bit(weights: Weights) -> None:
    record = await mint(weights, 0.1, by="learner-1")
    assert record is not None
    ledger = (await weights.read("m", "1")).document
    assert ledger is not None
    assert ledger.records == (record,)
    tensors = await weights.tensors("m", "1", record)
    for name, array in head(0.1).items():
        np.testing.assert_array_equal(tensors[name], array)


async def test_tensors_of_several_parts_come_back_whole(weights: Weights) -> None:
    rng = np.random.default_rng(0)
    large = {"w": rng.standard_normal(PART).astype(np.float32)}  # four parts
    held = await weights.read("m", "1")
    record = await weights.mint(
        "m", "1", BASE, held, large, by="n", at=1.0, accuracy=None, samples=0, taught=()
    )
    assert record is not None
    np.testing.assert_array_equal((await weights.tensors("m", "1", record))["w"], large["w"])


async def test_a_mesh_without_learning_has_no_ledger(link: Link) -> None:
    held = await Weights(link, SUBJECTS).read("m", "1")
    assert (held.document, held.revision) == (None, 0)


async def test_of_minters_of_one_number_one_wins_and_the_others_leave_nothing(
    weights: Weights, link: Link
) -> None:
    held = await weights.read("m", "1")
    made = await asyncio.gather(
        *(
            weights.mint(
                "m",
                "1",
                BASE,
                held,
                head(value),
                by=f"n{value}",
                at=1.0,
                accuracy=0.5,
                samples=1,
                taught=(),
            )
            for value in range(5)
        )
    )
    winners = [record for record in made if record is not None]
    assert len(winners) == 1
    ledger = (await weights.read("m", "1")).document
    assert ledger is not None
    assert ledger.records == (winners[0],)
    await until_stored(link, {winners[0].stored})


async def test_what_is_kept_is_bounded_and_what_the_ledger_forgets_is_deleted(
    weights: Weights, link: Link
) -> None:
    for value in range(2 * KEPT + 1):
        assert await mint(weights, value) is not None
    ledger = (await weights.read("m", "1")).document
    assert ledger is not None
    assert [r.n for r in ledger.records] == list(range(KEPT + 2, 2 * KEPT + 2))
    await until_stored(link, ledger.stored())


async def test_tensors_that_a_crashed_minter_left_are_deleted_later(
    weights: Weights, link: Link
) -> None:
    bucket = SUBJECTS.weights_bucket
    await jetstream.kv_put(link, bucket, "tensors.m.1.1-crashed.0", b"x")
    for value in range(KEPT):
        await mint(weights, value)
    ledger = (await weights.read("m", "1")).document
    assert ledger is not None
    await until_stored(link, ledger.stored())


async def test_a_rollback_brings_the_old_tensors_back_under_a_new_number(weights: Weights) -> None:
    for value in (1.0, 2.0, 3.0):
        await mint(weights, value)
    back = await weights.roll_back("m", "1", 1, by="operator", at=2.0)
    assert (back.n, back.epoch, back.restores) == (4, 1, 1)
    np.testing.assert_array_equal(
        (await weights.tensors("m", "1", back))["weight"], head(1.0)["weight"]
    )
    base = await weights.roll_back("m", "1", 0, by="operator", at=2.0)
    assert (base.n, base.epoch) == (5, 2)
    assert await weights.tensors("m", "1", base) == {}


async def test_a_minter_who_read_before_a_rollback_does_not_undo_it(weights: Weights) -> None:
    await mint(weights, 1.0)
    await mint(weights, 2.0)
    held = await weights.read("m", "1")
    await weights.roll_back("m", "1", 1, by="operator", at=2.0)
    late = await weights.mint(
        "m", "1", BASE, held, head(3.0), by="n", at=3.0, accuracy=None, samples=0, taught=()
    )
    assert late is None
    ledger = (await weights.read("m", "1")).document
    assert ledger is not None
    assert ledger.present is not None
    assert ledger.present.restores == 1


async def test_a_rollback_among_minters_succeeds_and_comes_once(weights: Weights) -> None:
    await mint(weights, 1.0)

    async def keep_minting() -> None:
        for value in range(8):
            await mint(weights, float(value))

    _, back = await asyncio.gather(
        keep_minting(), weights.roll_back("m", "1", 1, by="operator", at=2.0)
    )
    ledger = (await weights.read("m", "1")).document
    assert ledger is not None
    assert [r.n for r in ledger.records if r.restores is not None] == [back.n]
    assert ledger.epoch == 1


async def test_errors_say_what_cannot_be_restored(weights: Weights) -> None:
    with pytest.raises(InvalidArgument, match="learned nothing"):
        await weights.roll_back("m", "1", 0, by="operator", at=2.0)
    await mint(weights, 1.0)
    with pytest.raises(NotFound, match="kept are 1 to 1"):
        await weights.roll_back("m", "1", 7, by="operator", at=2.0)


async def test_weight_versions_of_another_base_are_not_continued(weights: Weights) -> None:
    await mint(weights, 1.0)
    held = await weights.read("m", "1")
    with pytest.raises(InvalidArgument, match="of the base"):
        ledger_of(held, "cd" * 32)


async def test_a_watcher_hears_of_each_change_and_looks_again_after_a_reconnect(
    weights: Weights, link: Link
) -> None:
    heard: list[int] = []
    end = weights.watch("m", "1", lambda: heard.append(1))
    await mint(weights, 1.0)
    await eventually(lambda: len(heard) == 1)
    await weights.roll_back("m", "1", 0, by="operator", at=2.0)
    await eventually(lambda: len(heard) == 2)
    cut(link)
    await eventually(lambda: len(heard) >= 3)
    await link.ready(5.0)
    end()
    heard.clear()
    await mint(weights, 2.0)
    await link.flush()
    assert heard == []


async def test_tampered_ledgers_and_tensors_are_refused(weights: Weights, link: Link) -> None:
    record = await mint(weights, 1.0)
    assert record is not None
    bucket = SUBJECTS.weights_bucket
    await jetstream.kv_put(link, bucket, f"tensors.m.1.{record.stored}.0", b"\0" * 200)
    with pytest.raises(DecodeError, match="another hash"):
        await weights.tensors("m", "1", record)
    await jetstream.call(
        link,
        f"$JS.API.STREAM.PURGE.KV_{bucket}",
        {"filter": f"$KV.{bucket}.tensors.>"},
    )
    with pytest.raises(Unavailable, match="are gone"):
        await weights.tensors("m", "1", record)
    await jetstream.kv_put(link, bucket, "ledger.m.2", b'{"v": 1}')
    with pytest.raises(DecodeError):
        await weights.read("m", "2")


async def test_a_ledger_that_is_spoilt_gives_way_to_the_one_before_and_the_next_minter_mends_it(
    weights: Weights, link: Link
) -> None:
    for value in (1.0, 2.0):
        record = await mint(weights, value)
    bucket, key = SUBJECTS.weights_bucket, "ledger.m.1"
    good = await jetstream.kv_get(link, bucket, key)
    for spoilt in (b"{}", b'{"stream": "x", "seq": 7}'):
        await jetstream.kv_put(link, bucket, key, spoilt)
    for reader in (weights, Weights(link, SUBJECTS)):
        held = await reader.read("m", "1")
        assert held.document is not None
        assert held.document.present == record
        assert isinstance(held.refusal, DecodeError)
    assert (await mint(weights, 3.0)) is not None
    held = await weights.read("m", "1")
    assert (ledger_of(held, BASE).n, held.refusal) == (3, None)
    # What is older than a reader has seen is nothing to go back to.
    await jetstream.call(
        link, api("STREAM.PURGE", f"KV_{bucket}"), {"filter": f"$KV.{bucket}.{key}"}
    )
    assert good is not None
    await jetstream.kv_put(link, bucket, key, good)
    await jetstream.kv_put(link, bucket, key, b"{}")
    with pytest.raises(DecodeError):
        await weights.read("m", "1")
    assert ledger_of(await Weights(link, SUBJECTS).read("m", "1"), BASE).n == 2


async def test_signed_records_are_taken_only_from_those_who_may_teach(link: Link) -> None:
    teacher, stranger = Identity.make(), Identity.make()
    allowed = AllowList({teacher.public: "learner-1"})
    signing, reading = Weights(link, SUBJECTS, teacher), Weights(link, SUBJECTS, None, allowed)
    await signing.prepare()
    record = await mint(signing, 1.0)
    assert record is not None
    assert record.key == teacher.public
    assert (await reading.read("m", "1")).document is not None
    for other in (Weights(link, SUBJECTS, stranger), Weights(link, SUBJECTS)):
        await mint(other, 2.0)
        held = await reading.read("m", "1")
        assert ledger_of(held, BASE).present == record, "the last of who may teach"
        assert "no key on the list" in str(held.refusal)
        with pytest.raises(NotAllowed, match="no key on the list"):
            await mint(reading, 3.0)
    await signing.roll_back("m", "1", 1, by="operator", at=3.0)
    assert (await reading.read("m", "1")).document is not None


async def test_where_signatures_are_needed_a_weight_version_of_nobody_is_refused(
    link: Link,
) -> None:
    reading = Weights(link, SUBJECTS, signed=True)
    await reading.prepare()
    await mint(Weights(link, SUBJECTS, Identity.make()), 1.0)
    assert (await reading.read("m", "1")).document is not None
    await mint(Weights(link, SUBJECTS), 2.0)
    held = await reading.read("m", "1")
    assert (ledger_of(held, BASE).n, isinstance(held.refusal, NotAllowed)) == (1, True)
    assert "signed by nobody" in str(held.refusal)


async def test_a_signature_of_one_model_is_none_of_another(link: Link) -> None:
    signing = Weights(link, SUBJECTS, Identity.make())
    await signing.prepare()
    await mint(signing, 1.0)
    bucket = SUBJECTS.weights_bucket
    ledger = await jetstream.kv_get(link, bucket, "ledger.m.1")
    assert ledger is not None
    await jetstream.kv_put(link, bucket, "ledger.m.2", ledger)
    with pytest.raises(BadSignature):
        await Weights(link, SUBJECTS).read("m", "2")


async def test_behind_a_ledger_that_the_server_lost_the_numbers_and_the_epoch_go_on(
    weights: Weights, link: Link
) -> None:
    for value in (1.0, 2.0):
        assert await mint(weights, value) is not None
    await jetstream.call(link, api("STREAM.DELETE", f"KV_{SUBJECTS.weights_bucket}"))
    await weights.prepare()
    lost = await weights.read("m", "1")
    assert lost.document is None
    known = replace(lost, document=Ledger(BASE, lost=(2, 1)))
    given: dict[str, Any] = {"by": "n", "at": 1.0, "accuracy": 0.5, "samples": 9, "taught": ["n"]}
    record = await weights.mint("m", "1", BASE, known, head(3.0), **given)
    assert record is not None
    assert (record.n, record.epoch) == (3, 1)
    present = ledger_of(await weights.read("m", "1"), BASE).present
    assert present == record
    assert await mint(weights, 4.0) is not None
    assert ledger_of(await weights.read("m", "1"), BASE).n == 4
