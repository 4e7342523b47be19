"""`swarm bench generate`: its ways agree, its targets are named, its kills change no text."""

from __future__ import annotations

import pytest
from support.slow_link import unavailable

from bench.fleets.links import Shape
from bench.language.drafts import DRAFTS, DraftPlan
from bench.language.flood import FLOOD, FloodPlan
from bench.language.generate import GENERATE, GeneratePlan
from bench.language.killed_stages import KILLED, KillPlan
from bench.language.language import SHAPE
from bench.language.link import LINKED, LinkPlan
from bench.language.memory import MEMORY, MemoryPlan
from bench.language.prefixes import PREFIXES, PrefixPlan
from bench.language.resident import RESIDENT, ResidentPlan


@pytest.mark.benchmark
def test_shards_answer_as_one_process_does_and_so_they_do_when_they_die() -> None:
    """Both benchmarks, once: a wrong text raises in the first, and counts in the second."""
    document = GENERATE.document(GeneratePlan((1, 4), tokens=40, rounds=1))
    assert document["figures"]["4/shards/share"]["value"] > 0
    killed = KILLED.document(KillPlan(kills=1, sessions=4, tokens=150, follow=True))
    assert (killed["texts"], killed["wrong"]) == (24, 0)


@pytest.mark.benchmark
def test_texts_with_drafts_are_those_without_also_when_stages_die() -> None:
    document = DRAFTS.document(DraftPlan(tokens=60, rounds=1))
    assert DRAFTS.misses is not None
    assert DRAFTS.misses(document) == []
    cells = [cell for ways in document["cells"].values() for cell in ways.values()]
    assert any(cell["accepted_share"] > 0.1 for cell in cells)
    killed = KILLED.document(KillPlan(kills=1, sessions=1, tokens=150, drafts=4))
    assert (killed["texts"], killed["wrong"]) == (3, 0)
    assert killed["accepted_drafts"] > 0


@pytest.mark.benchmark
def test_a_flood_of_chats_leaves_another_client_its_slots() -> None:
    document = FLOOD.document(FloodPlan(seconds=3, rounds=1))
    assert document["failed"] == {"alone": 0, "with the flood": 0}
    assert document["flood"]["refused"] > 100


@pytest.mark.benchmark
def test_a_copied_beginning_gives_the_same_answers_sooner() -> None:
    document = PREFIXES.document(PrefixPlan(prompts=4, rounds=1, replicas=2))
    assert document["compared"] == 8
    assert document["figures"]["share"]["value"] < 1


@pytest.mark.benchmark
@pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))
def test_behind_a_slow_link_a_token_takes_its_round_trip_and_keeps_its_text() -> None:
    document = LINKED.document(LinkPlan(Shape(20, 10, 0), (2,), tokens=30, rounds=1))
    cell = document["cells"]["2"]
    assert cell["far_ms"]["value"] > cell["near_ms"]["value"] + 9
    assert cell["bytes_a_token"] > 4 * SHAPE.width


@pytest.mark.benchmark
def test_nodes_are_looked_at_when_all_sessions_have_their_prompts() -> None:
    document = RESIDENT.document(ResidentPlan(4, 2, tokens=128, answered=16, shape=SHAPE))
    looks, stages = document["looks"], document["stages"]
    assert sum(stage["kv"] for stage in stages.values()) == 2 * 128 * 6 * 2 * 2 * 32 * 4
    for role, need in stages.items():
        assert looks["held"][role]["pss"] > sum(need.values())
        assert looks["peak"][role]["pss"] >= looks["peak"][role]["private"] > sum(need.values())
    assert document["share"] > 1  # three interpreters, and hardly a model


@pytest.mark.benchmark
def test_nodes_have_their_memory_back_behind_many_sessions() -> None:
    document = MEMORY.document(MemoryPlan(sessions=60))
    assert 0.5 < document["ratio"] < 1.3
