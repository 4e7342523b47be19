"""What sets some exports apart is served as the whole says it, and so is what quantizing makes."""

from typing import Any

import numpy as np
import onnx
import pytest
from decoder_chains import greedy, stages_of, turn
from exporter_forms import FORMS, SHAPE, WINDOW, with_windows
from zoo.language.decoder_graph import decoder

from shards.language.decoder import Decoder, LanguageHints
from shards.language.quantize import quantize_language
from shards.language.rows import by_rows
from shards.language.split.graph import TOKENS
from shards.quantize import tools
from shards.runtimes.ort import make_session
from shards.split.split import split

PROMPT = [int(i) for i in np.random.default_rng(0).integers(0, SHAPE.vocabulary, 3 * WINDOW)]


def whole(model: bytes, ids: list[int]) -> np.ndarray:
    """The logits behind all of these ids, computed at once, without keys and values: [s, v]."""
    session = make_session(model)
    feeds: dict[str, Any] = {
        TOKENS: np.array([ids]),
        "attention_mask": np.ones((1, len(ids)), np.int64),
        "position_ids": np.arange(len(ids))[None],
    }
    empty = np.zeros((1, SHAPE.kv_heads, 0, SHAPE.head_dim), np.float32)
    names = [each.name for each in session.get_inputs()]
    feeds |= {name: empty for name in names if name.startswith("past")}
    (logits,) = session.run(["logits"], {name: feeds[name] for name in names})
    return np.asarray(logits[0])


@pytest.mark.parametrize("form", FORMS)
def test_an_exports_form_is_served_token_for_token(form: str) -> None:
    model = FORMS[form]()
    result = split(model, name="m", stages=3, profile=False)
    answer, _ = greedy(stages_of(result, slots=1), PROMPT, 24)
    # The reference attends within the window in one run, where no cache is to be moved along.
    plain = {"windows": 32, "windows in 4 bits": 4}
    reference = with_windows(moved=False, bits=plain[form]) if form in plain else model
    said = whole(reference, [*PROMPT, *answer])[len(PROMPT) - 1 : -1].argmax(axis=1)
    assert answer == said.tolist()
    assert len(set(answer)) > 3
    assert Decoder.of(result.manifest) is not None
    assert Decoder.of(result.manifest).width == SHAPE.width


@pytest.mark.parametrize("form", FORMS)
def test_sessions_of_unlike_lengths_share_a_run(form: str) -> None:
    stages = stages_of(split(FORMS[form](), name="m", stages=3, profile=False), slots=2)
    alone = [greedy(stages, PROMPT[:length], 2, slot)[1][1] for slot, length in enumerate((5, 20))]
    first = [greedy(stages, PROMPT[:length], 1, slot)[0][0] for slot, length in enumerate((5, 20))]
    np.testing.assert_array_equal(turn(stages, first, [5, 20]), np.stack(alone))


@pytest.mark.parametrize("form", FORMS)
def test_an_exports_form_in_eight_bits_is_split_and_served(form: str) -> None:
    model = by_rows(tools.prepare(onnx.load_from_string(FORMS[form]())))
    gathers = [n for n in model.graph.node if n.op_type == "Gather"]
    assert any(n.input[0].endswith(".scales") for n in gathers)  # the embedding's, by ids
    small = model.SerializeToString()
    answer, _ = greedy(
        stages_of(split(small, name="m", stages=3, profile=False), slots=1), PROMPT, 9
    )
    if "windows" not in form:  # whose caches one run does not move along
        said = whole(small, [*PROMPT, *answer])[len(PROMPT) - 1 : -1].argmax(axis=1)
        assert answer == said.tolist()


@pytest.mark.parametrize("form", ["gpt2", "windows"])
def test_what_quantize_makes_of_an_exports_form_is_split(form: str) -> None:
    small, report = quantize_language(FORMS[form](), np.array(PROMPT), mode="rows", max_drop=10.0)
    assert report.gain
    described = Decoder.of(split(small, name="m", stages=2, profile=False).manifest)
    assert described is not None
    assert described.proof is not None
    assert described.proof.differing == 0


def test_a_window_that_the_graph_lacks_bounds_the_sessions() -> None:
    """The builder of genai leaves Mistral's window out of the graph, and names it beside it."""
    hints = LanguageHints(context=128, window=WINDOW)
    result = split(decoder(SHAPE), name="m", stages=2, profile=False, hints=hints)
    assert Decoder.of(result.manifest) is not None
    assert Decoder.of(result.manifest).context == WINDOW
    assert any("window of 8 tokens" in note for note in result.notes)
    inside = split(with_windows(), name="m", stages=2, profile=False, hints=hints)
    assert Decoder.of(inside.manifest) is not None
    assert Decoder.of(inside.manifest).context == 128
