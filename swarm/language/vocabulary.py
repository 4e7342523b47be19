"""Whether token ids are a model's own, and whether a step fits its stage. Pure.

Ids come from clients, from other nodes, and from texts whose tokenizer may have more of them than
the model: what is not checked where it comes in fails in a run, beside other clients' sessions.
"""

from __future__ import annotations

from swarm.errors import InvalidArgument, Status
from swarm.language.limits import Shape
from swarm.language.request import GenerateRequest
from swarm.language.steps import Failed, Forward, TokenStep


def check_ids(request: GenerateRequest, vocabulary: int) -> None:
    """Raise `InvalidArgument` that names the field and the place of the first id that is none of
    the model's: those are 0 to `vocabulary` - 1."""
    first = request.sampling.first
    for name, ids in (
        ("prompt", request.prompt),
        ("given", request.given),
        ("made", request.made),
        ("stop_ids", request.stop_ids),
        ("first", () if first is None else (first,)),
    ):
        if ids and (min(ids) < 0 or max(ids) >= vocabulary):
            at = next(at for at, one in enumerate(ids) if not 0 <= one < vocabulary)
            place = "" if name == "first" else f" at {at}"
            raise InvalidArgument(
                f"{name}: {ids[at]}{place} is no token of this model, whose ids are 0 to "
                f"{vocabulary - 1}"
            )


def sorted_out(
    message: Forward, shape: Shape, stage: int, node: str
) -> tuple[list[TokenStep], list[Failed]]:
    """The steps of a message that this stage of this node can compute, and a word for the session
    of each other one."""
    steps, others = [], list(message.unread)
    for step in message.steps:
        if why := _misfit(step, shape, stage):
            others.append((step.session, why))
        else:
            steps.append(step)
    where = f"stage {stage} on {node}"
    return steps, [Failed(key, f"{where}: {why}", Status.INVALID_ARGUMENT) for key, why in others]


def _misfit(step: TokenStep, shape: Shape, stage: int) -> str:
    """Why a step of another node cannot be computed, "" where it can."""
    if stage == 1:
        return "a step came to stage 1, which feeds its sessions itself"
    if max(step.ids + step.drafts + step.accepted) >= shape.vocabulary:
        last = shape.vocabulary - 1
        return f"a step has ids that are no tokens of this model: those are 0 to {last}"
    end = step.end + len(step.drafts)
    if end > shape.context:
        return f"a step ends at token {end}, and the context has {shape.context}"
    if step.rows is None or step.rows.shape != (len(step.fed), shape.width):
        got = "none" if step.rows is None else str(list(step.rows.shape))
        return f"a step has hidden states {got}, and needs {[len(step.fed), shape.width]}"
    return ""
