"""onnxruntime-genai in one process: the same model as a folder of its builder, one batch of all
sessions.

    python -m bench.language.genai FOLDER

is that process, in the form of `bench.language.language`. It takes the likeliest token of every
session: it has no draws by (seed, position).
"""

from __future__ import annotations

import json
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from zoo.language.decoder_graph import decoder

from bench.language.language import PROMPT, SHAPE, prompt

PACKAGE = "onnxruntime_genai"


def unavailable() -> str:
    """Why it cannot take part; "" where it can."""
    if find_spec(PACKAGE) is None:
        return "not installed: uv run --with onnxruntime-genai swarm bench generate"
    return ""


def write(folder: Path) -> None:
    """The folder that its builder would write, without texts."""
    folder.mkdir()
    (folder / "model.onnx").write_bytes(decoder(SHAPE))
    names = {"past": "past_key_values.%d", "present": "present.%d"}
    parts = {
        f"{time}_{part}_names": f"{name}.{part}"
        for time, name in names.items()
        for part in ("key", "value")
    }
    config = {
        "model": {
            "type": "llama",
            "context_length": SHAPE.context,
            "vocab_size": SHAPE.vocabulary,
            "bos_token_id": 0,
            "eos_token_id": SHAPE.vocabulary - 1,
            "pad_token_id": 0,
            "decoder": {
                "filename": "model.onnx",
                "session_options": {"provider_options": [], "intra_op_num_threads": 1},
                "head_size": SHAPE.head_dim,
                "hidden_size": SHAPE.width,
                "num_attention_heads": SHAPE.heads,
                "num_hidden_layers": SHAPE.layers,
                "num_key_value_heads": SHAPE.kv_heads,
                "inputs": {
                    "input_ids": "input_ids",
                    "attention_mask": "attention_mask",
                    **{name: part for name, part in parts.items() if name.startswith("past")},
                },
                "outputs": {
                    "logits": "logits",
                    **{name: part for name, part in parts.items() if name.startswith("present")},
                },
            },
        },
        "search": {
            "do_sample": False,
            "max_length": SHAPE.context,
            "past_present_share_buffer": True,
        },
    }
    (folder / "genai_config.json").write_text(json.dumps(config))


def answers(model: Any, sessions: int, tokens: int) -> dict[str, Any]:
    """See `bench.language.language.answers`."""
    import onnxruntime_genai as genai

    began = time.perf_counter()
    params = genai.GeneratorParams(model)
    params.set_search_options(
        max_length=PROMPT + tokens, min_length=PROMPT + tokens, batch_size=sessions
    )
    generator = genai.Generator(model, params)
    generator.append_tokens(np.array([prompt(number) for number in range(sessions)], np.int32))
    generator.generate_next_token()
    first = [time.perf_counter() - began] * sessions
    turns = []
    for _ in range(tokens - 1):
        began = time.perf_counter()
        generator.generate_next_token()
        turns.append(time.perf_counter() - began)
    made = [generator.get_sequence(number)[PROMPT:].tolist() for number in range(sessions)]
    return {"ids": made, "first": first, "turns": turns}


def main(folder: str) -> None:
    import onnxruntime_genai as genai

    model = genai.Model(folder)
    for line in sys.stdin:
        sessions, tokens = json.loads(line)
        print(json.dumps(answers(model, sessions, tokens)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
