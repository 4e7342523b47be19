"""A stage of a language model: its sessions' keys and values, exact in any batch."""

import numpy as np
import pytest
from decoder_chains import greedy, run, stages_of, tiny, turn

from shards.errors import DoesNotFit, InputError, ModelError, RunError
from shards.language.decoder import Decoder
from shards.language.kv_stage import check_kv_fits
from shards.runtimes.load import load_stage

FORMS = ["genai", "optimum", "attention"]
PROMPTS = [[7, 3, 200, 41, 9], [5], [250, 1, 2, 3, 4, 5, 6, 7, 8], [12, 13, 12]]


@pytest.mark.parametrize("form", FORMS)
def test_sessions_of_different_lengths_keep_their_bits_in_one_turn(form: str) -> None:
    stages = stages_of(tiny(form))
    alone = [greedy(stages, prompt, 12, slot) for slot, prompt in enumerate(PROMPTS)]
    together = stages_of(tiny(form))
    first = [run(together, prompt, slot, 0) for slot, prompt in enumerate(PROMPTS)]
    tokens = [[int(logits.argmax())] for logits in first]
    for step in range(1, 12):
        held = [len(prompt) + step - 1 for prompt in PROMPTS]
        logits = turn(together, [each[-1] for each in tokens], held)
        for slot, (row, (_, expected)) in enumerate(zip(logits, alone, strict=True)):
            assert np.array_equal(row, expected[step]), (slot, step)
            tokens[slot].append(int(row.argmax()))
    assert tokens == [spoken for spoken, _ in alone]
    assert len({tuple(each) for each in tokens}) == len(PROMPTS)


@pytest.mark.parametrize("form", FORMS)
def test_a_step_that_is_run_again_gives_the_same_bits(form: str) -> None:
    stages = stages_of(tiny(form))
    tokens, logits = greedy(stages, PROMPTS[0], 8)
    for step in (3, 5):
        again = run(stages, tokens[step - 1 : step], 0, len(PROMPTS[0]) + step - 1)
        assert np.array_equal(again, logits[step])
    run(stages, [1, 2, 3], 0, len(PROMPTS[0]) + 2)  # tokens that are rejected afterwards
    for step in range(3, 8):
        again = run(stages, tokens[step - 1 : step], 0, len(PROMPTS[0]) + step - 1)
        assert np.array_equal(again, logits[step])


@pytest.mark.parametrize("form", FORMS)
def test_a_prefix_is_copied_into_another_slot(form: str) -> None:
    stages = stages_of(tiny(form))
    _, logits = greedy(stages, PROMPTS[2], 1)
    run(stages, PROMPTS[2][:6], 1, 0)
    for stage in stages:
        stage.copy(1, 3, 6)
    run(stages, [99], 1, 6)
    shared = run(stages, PROMPTS[2][6:], 3, 6)
    np.testing.assert_allclose(shared, logits[0], rtol=1e-4, atol=1e-5)
    assert np.array_equal(shared, _in_chunks(stages_of(tiny(form))))


def _in_chunks(stages: list) -> np.ndarray:
    run(stages, PROMPTS[2][:6], 0, 0)
    return run(stages, PROMPTS[2][6:], 0, 6)


@pytest.mark.parametrize("form", FORMS)
def test_positions_behind_a_gap_are_refused_and_change_nothing(form: str) -> None:
    stages = stages_of(tiny(form))
    tokens, logits = greedy(stages, PROMPTS[0], 3)
    held = len(PROMPTS[0]) + 2
    for stage in stages:
        rows = np.zeros((1, 1), np.int64) if stage.first else np.zeros((1, 1, 64), np.float32)
        with pytest.raises(InputError, match=f"at most {held}, which slot 0 holds"):
            stage.run(rows, 0, np.array([held + 1]))
        with pytest.raises(InputError, match="slot 1 holds"):
            stage.run(rows, 1, np.array([1]))
        with pytest.raises(InputError):
            stage.copy(0, 1, held + 1)
    assert np.array_equal(run(stages, tokens[1:2], 0, held - 1), logits[2])


def test_a_slot_forgets_its_session_when_another_begins() -> None:
    stages = stages_of(tiny())
    greedy(stages, PROMPTS[2], 8)
    _, expected = greedy(stages_of(tiny()), PROMPTS[1], 4)
    _, logits = greedy(stages, PROMPTS[1], 4)
    assert np.array_equal(logits, expected)
    with pytest.raises(InputError, match="at most 4"):
        run(stages, [1], 0, 9)


@pytest.mark.parametrize(
    ("rows", "slot", "positions"),
    [
        (np.zeros((1, 1), np.int32), 0, [0]),
        (np.zeros((1, 0), np.int64), 0, [0]),
        (np.zeros((2, 2), np.int64), 0, [0, 0]),
        (np.zeros((2, 1), np.int64), 0, [0]),
        (np.zeros((1, 1), np.int64), 8, [0]),
        (np.zeros((2, 1), np.int64), 7, [0, 0]),
        (np.zeros((1, 33), np.int64), 0, [0]),
        (np.full((1, 1), 256, np.int64), 0, [0]),
        (np.full((1, 1), -1, np.int64), 0, [0]),
        (np.zeros((1, 1), np.int64), 0, [-1]),
        (np.zeros((1, 1, 64), np.float32), 0, [0]),
    ],
)
def test_rows_that_do_not_fit_are_refused_before_they_run(
    rows: np.ndarray, slot: int, positions: list[int]
) -> None:
    stage = stages_of(tiny(), context=32)[0]
    with pytest.raises(InputError):
        stage.run(rows, slot, np.array(positions))


def test_the_last_stage_gives_the_logits_of_as_many_tokens_as_wanted() -> None:
    stages = stages_of(tiny())
    one_by_one = [run(stages, PROMPTS[2][:1], 0, 0)]
    one_by_one += [run(stages, [t], 0, at) for at, t in enumerate(PROMPTS[2][1:], 1)]
    rows = np.array([PROMPTS[2]])
    for stage in stages[:-1]:
        rows = stage.run(rows, 1, np.array([0]))
    some = stages[-1].run(rows, 1, np.array([0]), logits=4)
    assert some.shape == (1, 4, 256)
    np.testing.assert_allclose(some[0], one_by_one[-4:], rtol=1e-4, atol=1e-5)


def test_memory_of_sessions_is_known_and_refused_before_anything_is_loaded() -> None:
    result = tiny()
    stages = stages_of(result)
    assert (
        sum(s.kv_bytes_per_token for s in stages) == Decoder.of(result.manifest).kv_bytes_per_token
    )
    assert Decoder.of(result.manifest).kv_bytes_per_token == 5 * 2 * 2 * 16 * 4
    with pytest.raises(DoesNotFit, match="a context of 50 tokens fits"):
        check_kv_fits("stage 1", 4, 256, 1024, 4 * 50 * 1024)


def test_a_closed_stage_refuses_and_may_be_closed_twice() -> None:
    for form in FORMS:
        stage = stages_of(tiny(form))[0]
        stage.close()
        stage.close()
        with pytest.raises(RunError, match="closed"):
            stage.run(np.zeros((1, 1), np.int64), 0, np.array([0]))


def test_a_language_model_is_not_loaded_as_an_ordinary_stage() -> None:
    result = tiny()
    with pytest.raises(ModelError, match="is a language model: its stages keep sessions"):
        load_stage(result.manifest, 1, result.files.__getitem__)
