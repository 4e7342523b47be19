"""One session of eight in a batch is bad: it ends with an error that says so, and the others get
the tokens that they get alone."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from zoo.language.decoder_graph import Form

from swarm.errors import Status, SwarmError
from swarm.language.choice import SlotCandidate
from swarm.language.limits import Shape
from swarm.language.request import GenerateRequest, Opening, Sampling
from swarm.language.stage import StageCore
from swarm.language.steps import Failed, Forward, Full, TokenStep

from .line import SLOTS, STAGES, VOCABULARY, Line, Spoiled

FORMS: list[Form] = ["genai", "optimum"]
TOKENS = 6


def request(number: int, length: int) -> GenerateRequest:
    """Prompts of one token are computed together from the first turn on."""
    prompt = tuple((37 * number + 11 * at + 3) % VOCABULARY for at in range(length))
    drawn = Sampling(temperature=0.8, seed=number) if number % 2 else Sampling()
    return GenerateRequest(
        session=f"s{number}", prompt=prompt, max_tokens=TOKENS, sampling=drawn, budget=60.0
    )


@cache
def alone(form: Form, length: int, number: int) -> tuple[int, ...]:
    line = Line(form)
    line.answers([request(number, length)], {})
    assert line.ends == {f"s{number}": Status.OK}
    return tuple(line.tokens[f"s{number}"])


def bad_ids(field: str, bad: GenerateRequest) -> GenerateRequest:
    ids = (1, VOCABULARY, 2)
    if field == "first":
        return replace(bad, sampling=replace(bad.sampling, first=VOCABULARY))
    if field == "single":
        return replace(bad, prompt=(99999,), max_tokens=1)
    return replace(bad, **{field: ids})  # type: ignore[arg-type]


IDS = ["single", "prompt", "given", "made", "first", "stop_ids"]


def in_transit(kind: str, name: str, at: int, stage: int, step: TokenStep) -> TokenStep:
    """A step of the bad session, as a node that is wrong would send it to stage `at`."""
    if step.session != name or stage != at:
        return step
    if kind == "id":
        return replace(step, ids=tuple(VOCABULARY for _ in step.ids))
    if kind == "position":
        more = 1 << 20
        return replace(step, position=step.position + more, known=step.known + more)
    if kind == "drafts":  # behind a step that asks for nothing
        rows = np.repeat(step.rows, 2, axis=0)[: len(step.ids) + 1]
        return replace(step, known=step.end + 1, drafts=(1,), rows=rows)
    assert step.opening is not None
    return replace(step, opening=replace(step.opening, stops=("x" * 1000,)))


IN_A_RUN: dict[str, Exception | float] = {
    "raises": RuntimeError("Gather: index out of range"),
    "lacks memory": MemoryError("bad_alloc"),
    "nan": float("nan"),
    "inf": float("inf"),
}
IN_TRANSIT = ["id", "position", "drafts", "opening"]


def spoiled_line(form: Form, kind: str, stage: int, name: str) -> Line:
    if kind in IN_A_RUN:
        return Line(form, {stage: partial(Spoiled, bad=[name], what=IN_A_RUN[kind])})
    return Line(form, spoil=partial(in_transit, kind, name, stage))


def others_answer_as_alone(
    line: Line,
    form: Form,
    length: int,
    bad: int,
    wish: GenerateRequest | None,
    status: Status,
    reply: str = "",
) -> SwarmError:
    requests = [request(number, length) for number in range(SLOTS)]
    if wish is not None:
        requests[bad] = wish
    line.answers(requests, {f"s{bad}": reply} if reply else {})
    error = line.ends.pop(f"s{bad}")
    assert isinstance(error, SwarmError), error
    assert error.status is status
    assert line.ends == {f"s{n}": Status.OK for n in range(SLOTS) if n != bad}
    for number in range(SLOTS):
        if number != bad:
            assert tuple(line.tokens[f"s{number}"]) == alone(form, length, number), number
    assert not any(core.sessions for core in line.cores.values())
    return error


@pytest.mark.parametrize("form", FORMS)
def test_without_a_bad_one_all_eight_share_runs_and_answer_as_alone(form: Form) -> None:
    line = Line(form)
    line.answers([request(number, 1) for number in range(SLOTS)], {})
    assert line.largest == SLOTS
    assert [tuple(line.tokens[f"s{n}"]) for n in range(SLOTS)] == [
        alone(form, 1, n) for n in range(SLOTS)
    ]


@pytest.mark.parametrize("place", range(SLOTS))
def test_ids_that_are_no_tokens_are_refused_by_their_fields_name(place: int) -> None:
    for field in IDS:
        wish = bad_ids(field, request(place, 1))
        line = Line()
        others_answer_as_alone(line, "genai", 1, place, wish, Status.INVALID_ARGUMENT)


@given(
    kind=st.sampled_from([*IN_A_RUN, *IN_TRANSIT]),
    stage=st.integers(1, STAGES),
    place=st.integers(0, SLOTS - 1),
    form=st.sampled_from(FORMS),
    length=st.sampled_from([1, 1, 5]),
)
@settings(max_examples=50, deadline=None)
def test_a_session_that_fails_in_a_run_or_between_stages_fails_alone(
    kind: str, stage: int, place: int, form: Form, length: int
) -> None:
    in_a_run = kind in IN_A_RUN
    line = spoiled_line(form, kind, stage if in_a_run else max(2, stage), f"s{place}")
    status = Status.INTERNAL if in_a_run else Status.INVALID_ARGUMENT
    error = others_answer_as_alone(line, form, length, place, None, status)
    if in_a_run:  # what is no number goes to no other stage, whose slot would hold it
        assert str(error).startswith(f"stage {stage} on n{stage}: ")


def test_an_inbox_that_no_stage_reads_ends_the_session_of_its_client_alone() -> None:
    status, place = Status.INVALID_ARGUMENT, 3
    others_answer_as_alone(Line(), "genai", 1, place, None, status, reply="r" * 600)


@pytest.mark.parametrize("stage", range(1, STAGES + 1))
def test_a_beginning_that_cannot_be_copied_costs_no_other_session_its_answer(stage: int) -> None:
    length, name = 80, "s5"  # a whole chunk is shared
    asked = [
        replace(request(number, length), prompt=(*range(70), *range(number, number + 10)))
        for number in range(SLOTS)
    ]
    right = Line()
    right.answers(asked[:1], {})
    right.answers(asked[1:], {})
    assert right.cores[stage].counts["reused_tokens"] > 0
    spoiled = partial(Spoiled, bad=[name], what=MemoryError("no room for a copy"))
    line = Line(spoiled={stage: spoiled})
    line.answers(asked[:1], {})
    line.answers(asked[1:], {})
    assert line.ends.pop(name).status is Status.INTERNAL
    assert set(line.ends.values()) == {Status.OK}
    line.tokens.pop(name, None)
    right.tokens.pop(name)
    assert line.tokens == right.tokens


def test_a_follower_whose_run_fails_lets_go_and_the_session_goes_on_where_it_is_served() -> None:
    shape = Shape(8, 64, 4, 64, VOCABULARY)
    core = StageCore(2, 3, "follower", shape, lambda stage: [SlotCandidate("n3")])
    opening = Opening("client", "head", 1, 5, Sampling())
    rows = np.ones((1, 8), np.float32)
    for number, ids in enumerate([(3,), (VOCABULARY,)]):
        step = TokenStep(f"s{number}", 0, 0, 1, ids, rows, opening)
        core.take(Forward("before", [step], follow=True), 0.0)
    for run in core.plan(0.0):
        core.failed(run, RuntimeError("a fault"))
    assert core.flush().words == {"before": [Full("s1"), Full("s0")]}
    assert not core.sessions
    # The session may still be taken over, or be followed anew.
    core.take(Forward("before", [TokenStep("s0", 0, 0, 1, (3,), rows, opening)]), 0.0)
    assert list(core.sessions) == ["s0"]


@pytest.mark.parametrize("rows", [None, np.ones((1, 9), np.float32), np.ones((2, 8), np.float32)])
def test_hidden_states_that_do_not_fit_a_step_are_told_its_sender(rows: np.ndarray | None) -> None:
    core = StageCore(
        2, 3, "n", Shape(8, 64, 4, 64, VOCABULARY), lambda stage: [SlotCandidate("n3")]
    )
    opening = Opening("client", "head", 1, 5, Sampling())
    core.take(Forward("before", [TokenStep("s", 0, 0, 1, (3,), rows, opening)]), 0.0)
    [word] = core.flush().words["before"]
    assert isinstance(word, Failed)
    assert word.status == Status.INVALID_ARGUMENT
    assert core.plan(0.0) == []
