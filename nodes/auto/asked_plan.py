"""A plan that a person puts in force: its slots, or why nodes of role auto cannot take it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from shards.manifest import Manifest
from swarm.auto.document import MOST_REPLICAS, BadPlan, PlanInForce, PlanSlot
from swarm.auto.drafts import Draft, StageEstimate, paces, predicted, slot_of
from swarm.auto.slots import AutoNode

Names = Sequence[Sequence[str]]


def stages_of(manifest: Manifest, cuts: Names, source_sha256: str) -> list[range]:
    """The stages of the manifest that lie between the cuts of a plan. Raises `BadPlan` where it is
    a plan for another model, or a cut lies inside of a stage."""
    title = f"{manifest.model}@{manifest.version}"
    if source_sha256 != manifest.source_sha256:
        made = source_sha256[:12] or "nobody knows which file"
        raise BadPlan(
            f"it was made for another model ({made}) than {title} ({manifest.source_sha256[:12]})"
        )
    if manifest.kind is not None or any(shard.stage == 0 for shard in manifest.shards):
        raise BadPlan(f"{title} has stages that no plan moves: sessions, or an edge's layers")
    ends = {frozenset(spec.name for spec in s.sends): s.stage for s in manifest.shards[:-1]}
    found = [0]
    for names in cuts:
        end = ends.get(frozenset(names))
        if end is None or end <= found[-1]:
            raise BadPlan(
                f"no stage of {title} ends at its cut {', '.join(names)}: split the file by this "
                "plan (`swarm model split FILE --plan …`), or plan for this folder"
            )
        found.append(end)
    found.append(manifest.stages)
    return [range(before + 1, end + 1) for before, end in pairwise(found)]


def asked_draft(
    ranges: Sequence[range],
    devices: Names,
    stages: Sequence[StageEstimate],
    nodes: Sequence[AutoNode],
    hand: Sequence[AutoNode],
) -> Draft:
    """The slots of a plan with these ranges of stages on these devices. nodes: of role auto that
    serve the model. hand: nodes named by hand, which keep their stages: no slot has those. Raises
    `BadPlan`."""
    by_id, by_hand = {node.node: node for node in nodes}, {node.node: node for node in hand}
    strange = sorted({n for names in devices for n in names} - by_id.keys() - by_hand.keys())
    if strange:
        there = ", ".join(sorted(by_id)) or "none"
        raise BadPlan(f"no node of role auto is called {', '.join(strange)}; there are: {there}")
    pace = paces(nodes, stages)
    slots: list[PlanSlot] = []
    filled: dict[str, int] = {}
    for own, names in zip(ranges, devices, strict=True):
        kept = {name: by_hand[name] for name in names if name in by_hand}
        for name, node in kept.items():
            if set(own) != node.serves or len(kept) < len(names):
                raise BadPlan(f"{name} was named by hand, and serves what it serves")
        if kept:
            continue
        for node in hand:
            if common := sorted(node.serves.intersection(own)):
                raise BadPlan(f"{node.node} was named by hand for stage {common[0]}: plan again")
        first, last = own[0], own[-1]
        slot = slot_of(stages, first, last, names[0], sum(pace[names[0]][first - 1 : last]))
        for name in names:
            if by_id[name].room < slot.need:
                raise BadPlan(
                    f"{name} has {by_id[name].room / 1e6:.0f} MB, of {slot.need / 1e6:.0f} MB that "
                    f"stages {first}-{last} need"
                )
            if name in filled:
                raise BadPlan(f"{name} has two places, and a node fills one")
            filled[name] = len(slots)
        slots.append(replace(slot, replicas=min(MOST_REPLICAS, len(names))))
    drafted = tuple(slots)
    return Draft(
        drafted, predicted(PlanInForce("", "", 1, drafted), filled, nodes, stages) if slots else 0.0
    )
