"""The zoo's decoders: equal each time, and one function in each exporter's form."""

import numpy as np
import pytest
from zoo.language.decoder_graph import DecoderShape, Form, decoder

from shards.runtimes.ort import make_session


def _greedy(model: bytes, shape: DecoderShape, prompt: list[int], count: int) -> list[int]:
    """The next tokens by the highest logit, with keys and values that grow."""
    session = make_session(model)
    names = [each.name for each in session.get_outputs()]
    wanted = {each.name for each in session.get_inputs()}
    empty = np.zeros((1, shape.kv_heads, 0, shape.head_dim), np.float32)
    past = {name: empty for name in wanted if name.startswith("past")}
    rows, held, tokens = np.array([prompt]), 0, []
    for _ in range(count):
        total = held + rows.shape[1]
        feeds = {
            "input_ids": rows,
            "attention_mask": np.ones((1, total), np.int64),
            "position_ids": np.arange(held, total)[None],
            **past,
        }
        made = session.run(None, {k: v for k, v in feeds.items() if k in wanted})
        out = dict(zip(names, made, strict=True))
        past = {k.replace("present", "past_key_values"): out[k] for k in out if k != "logits"}
        held, rows = total, out["logits"][:, -1:].argmax(axis=-1)
        tokens.append(int(rows[0, 0]))
    return tokens


@pytest.mark.parametrize("form", ["optimum", "attention"])
@pytest.mark.parametrize("extra", [{}, {"bias": True, "tied": True, "packed": False}])
def test_all_forms_of_a_decoder_say_the_same(form: Form, extra: dict[str, bool]) -> None:
    shape = DecoderShape(**extra)  # type: ignore[arg-type]
    prompt = [5, 9, 2, 77, 31]
    spoken = _greedy(decoder(shape, seed=3), shape, prompt, 16)
    assert _greedy(decoder(shape, form=form, seed=3), shape, prompt, 16) == spoken
    assert len(set(spoken)) > 4
