"""A plan that a person pushes is taken as it is, or refused whole with the reason."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.meshes import split_digits

from nodes.auto.asked_plan import asked_draft, stages_of
from nodes.auto.planning import facts_of
from swarm.auto.document import BadPlan
from swarm.auto.slots import AutoNode
from swarm.model import ModelInfo

STAGES = 4
MANIFEST = split_digits(stages=STAGES).manifest
FACTS = facts_of(MANIFEST, ModelInfo.from_manifest(MANIFEST.to_json()), "auto")
ENDS = [[spec.name for spec in shard.sends] for shard in MANIFEST.shards]
DIGEST = MANIFEST.source_sha256
NODES = tuple(AutoNode(name, 1 << 30, (100, 100, 100, 100)) for name in "abc")
HALVES = [range(1, 3), range(3, 5)]


def test_cuts_of_a_plan_are_ends_of_stages_whether_the_folder_is_its_own_or_a_finer_one() -> None:
    assert stages_of(MANIFEST, [ENDS[1]], DIGEST) == HALVES
    assert stages_of(MANIFEST, ENDS[:-1], DIGEST) == [range(n, n + 1) for n in range(1, 5)]
    assert stages_of(MANIFEST, [], DIGEST) == [range(1, 5)]


@pytest.mark.parametrize(
    ("cuts", "digest", "why"),
    [
        ([ENDS[1]], "", "nobody knows which file"),
        ([ENDS[1]], "0" * 64, "another model"),
        ([["no such tensor"]], DIGEST, "no stage of digits@1 ends at its cut no such tensor"),
        ([ENDS[1], ENDS[0]], DIGEST, "no stage of digits@1 ends"),
    ],
    ids=["without a hash", "another hash", "a strange cut", "cuts out of order"],
)
def test_a_plan_of_another_model_or_of_other_stages_is_refused(
    cuts: list[list[str]], digest: str, why: str
) -> None:
    with pytest.raises(BadPlan, match=why):
        stages_of(MANIFEST, cuts, digest)


def test_slots_are_as_the_plan_says_with_what_the_nodes_have_measured() -> None:
    draft = asked_draft(HALVES, [["b"], ["a", "c"]], FACTS, NODES, ())
    found = [(s.first, s.last, s.node, s.replicas, s.compute_us) for s in draft.slots]
    assert found == [(1, 2, "b", 1, 200), (3, 4, "a", 2, 200)]
    assert draft.period == 700, "200 us, and a hop"
    assert draft.slots[0].need == FACTS[0].need + FACTS[1].need


def test_a_device_that_is_not_there_has_no_room_or_two_places_is_named() -> None:
    with pytest.raises(BadPlan, match="called gone; there are: a, b, c"):
        asked_draft(HALVES, [["gone"], ["a"]], FACTS, NODES, ())
    small = (replace(NODES[0], room=1_000_000), *NODES[1:])
    with pytest.raises(BadPlan, match=r"a has 1 MB, of .* that stages 1-2 need"):
        asked_draft(HALVES, [["a"], ["b"]], FACTS, small, ())
    with pytest.raises(BadPlan, match="a has two places"):
        asked_draft(HALVES, [["a"], ["b", "a"]], FACTS, NODES, ())


def test_nodes_named_by_hand_keep_their_stages_which_are_in_no_slot() -> None:
    hand = [AutoNode("hand", serves=frozenset([1]))]
    ranges = [range(1, 2), range(2, 5)]
    draft = asked_draft(ranges, [["hand"], ["a"]], FACTS, NODES, hand)
    assert [(slot.first, slot.last) for slot in draft.slots] == [(2, 4)]
    with pytest.raises(BadPlan, match="hand was named by hand for stage 1"):
        asked_draft(HALVES, [["a"], ["b"]], FACTS, NODES, hand)
    with pytest.raises(BadPlan, match="hand was named by hand, and serves what it serves"):
        asked_draft(HALVES, [["hand"], ["b"]], FACTS, NODES, hand)
