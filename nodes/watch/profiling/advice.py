"""What to do about the slowest stage: a decision of a profile alone."""

from __future__ import annotations

from nodes.watch.profiling.spent import OUTSIDE, Profile, StageProfile

BUSY = 0.7  # share of its time that a stage computes, from which on its queue is its load's
MUCH = 0.35  # share of a request's time from which on a part is worth a line
UNEVEN = 1.5  # times the mean that the slowest stage computes, from which on cuts are uneven


def advise(profile: Profile) -> list[str]:
    """Lines that say what to do next, the most worth it first; none where nothing stands out."""
    slowest = profile.slowest
    if slowest is None:
        return []
    lines: list[str] = []
    whole = sum(stage.p50 for stage in profile.stages) or slowest.p50 or 1.0
    compute = _median(slowest, "compute")
    waits = _median(slowest, "queue") + _median(slowest, "lane")
    computes = [_median(s, "compute") for s in profile.stages if s.stage != OUTSIDE]
    mean = sum(computes) / len(computes) if computes else 0.0
    if slowest.busy >= BUSY or (waits > compute and waits > MUCH * whole):
        lines.append(
            f"replicas: stage {slowest.stage} is busy {slowest.busy:.0%} of the time and requests "
            f"wait {waits:.2f} ms: start another node (`swarm-node --role shard-{slowest.stage}`)"
        )
    if len(computes) > 1 and mean and compute > UNEVEN * mean:
        lines.append(
            f"another cut: stage {slowest.stage} computes {compute:.2f} ms, the stages' mean is "
            f"{mean:.2f}: split anew on such a device (`swarm model split`)"
        )
    if compute > MUCH * whole:
        lines.append(
            f"quantize: computing in stage {slowest.stage} is {compute / whole:.0%} of a request: "
            "`swarm model quantize` tells whether INT8 pays here"
        )
    onward = sum(_median(s, "onward") for s in profile.stages)
    if onward > MUCH * whole:
        lines.append(
            f"a codec: features are on their way for {onward:.2f} ms, {onward / whole:.0%} of a "
            "request: allow one (`swarm model push --allow-codec i8`), or cut at smaller ones"
        )
    company = sum(_median(s, "batch wait") for s in profile.stages)
    if company > MUCH * whole:
        lines.append(f"batches: requests wait {company:.2f} ms for company: a lower `--max-wait`")
    return lines


def _median(stage: StageProfile, kind: str) -> float:
    for name, spread in stage.parts.items():
        if name == kind:
            return spread.p50
    if kind == "compute" and stage.live_compute is not None:
        return stage.live_compute.p50
    if kind == "queue" and stage.live_queue is not None:
        return stage.live_queue.p50
    return 0.0
