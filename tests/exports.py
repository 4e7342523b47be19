"""Language models as exporters really write them, through the splitter and through a mesh.

    python tests/exports.py make FOLDERS              # needs torch and transformers
    uv run python tests/exports.py check EXPORT …     # folders of an exporter

`make` writes a folder of Hugging Face's form for each family: true shapes of a layer, few layers,
random weights, a tokenizer. An exporter, in an environment of its own, turns it into a folder with
a model of ONNX (shards/decoder/README.md has the commands and the versions that were tried).
`check` cuts each export in three, proves it, serves it by three nodes, and compares the tokens that
a client gets with those of the whole export, as it lies there, by ONNX Runtime alone. Exits 1 where
a graph without weights of 4 bits says another token, or a folder cannot be split.
"""

from __future__ import annotations

import argparse
import asyncio
import pydoc_data.topics
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

TOKENS = 64  # of an answer
PROMPT = "The import statement"
VOCABULARY = (
    4000  # no other size of a layer is the same: the builder of genai mistakes it for the head
)
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 32.0,
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 2048,
}
LONG = {
    "type": "longrope",
    "short_factor": [1 + 0.01 * at for at in range(32)],
    "long_factor": [1 + 0.1 * at for at in range(32)],
}
# Class of the configuration; hidden, feedforward, layers, heads, KV heads, context; tied; the rest.
FAMILIES: dict[str, tuple[str, tuple[int, ...], bool, dict[str, Any]]] = {
    "qwen2": ("Qwen2Config", (896, 4864, 3, 14, 2, 2048), True, {"rope_theta": 1e6}),
    "qwen2-untied": ("Qwen2Config", (896, 4864, 3, 14, 2, 2048), False, {}),
    "qwen2-vocabulary": (
        "Qwen2Config",
        (896, 4864, 3, 14, 2, 32768),
        True,
        {"vocab_size": 151936, "rope_theta": 1e6},
    ),
    "qwen3": ("Qwen3Config", (1024, 3072, 3, 16, 8, 4096), True, {"head_dim": 128}),
    "llama3": ("LlamaConfig", (2048, 8192, 2, 32, 8, 8192), True, {"rope_scaling": LLAMA3}),
    "llama3-untied": ("LlamaConfig", (1024, 3584, 4, 8, 2, 4096), False, {"rope_theta": 5e5}),
    "phi3": ("Phi3Config", (1024, 2816, 4, 16, 16, 4096), False, {"sliding_window": 2047}),
    "phi3-long": (
        "Phi3Config",
        (1024, 2816, 3, 16, 16, 8192),
        False,
        {"rope_scaling": LONG, "original_max_position_embeddings": 4096, "sliding_window": None},
    ),
}
SIZES = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "max_position_embeddings",
)
CHAT = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def make(target: Path) -> None:
    """The folders of all families, from seeds."""
    torch, transformers = import_module("torch"), import_module("transformers")
    texts = _tokenizer(transformers)
    for name, (kind, sizes, tied, more) in FAMILIES.items():
        settings = dict(zip(SIZES, sizes, strict=True)) | {"vocab_size": VOCABULARY} | more
        ids = {"bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 0}
        config = getattr(transformers, kind)(tie_word_embeddings=tied, **settings, **ids)
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(config)
        with torch.no_grad():
            for key, weight in model.named_parameters():
                if weight.dim() > 1:
                    weight.normal_(0, weight.shape[1] ** -0.5)
                elif key.endswith("bias"):  # the builder of genai leaves out those that are zero
                    weight.normal_(0, 0.1)
                else:
                    weight.uniform_(0.8, 1.2)
        model.save_pretrained(target / name)
        texts.save_pretrained(target / name)
        print(target / name, flush=True)


def _tokenizer(transformers: Any) -> Any:
    tokenizers = import_module("tokenizers")
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIAL,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(pydoc_data.topics.topics.values(), trainer)
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token=SPECIAL[2], pad_token=SPECIAL[0]
    )
    fast.chat_template = CHAT
    return fast


async def check(export: Path) -> bool:
    """Cut, prove, serve and compare one export; prints a row. Returns whether it holds."""
    from support.meshes import mesh_of

    from shards.decoder.folder import read_folder
    from shards.decoder.texts import Texts
    from shards.errors import ShardsError
    from shards.runtimes.synthetic import TOLERANCE_QUANTIZED
    from shards.split.split import split

    try:
        model, language = read_folder(export)
        result = split(model, name="export", stages=3, profile=False, language=language)
    except ShardsError as error:
        print(f"| {export.name} | {error} |", flush=True)
        return False
    described = result.manifest.decoder
    assert described is not None
    ids = Texts.of(language.files).tokenizer.encode(PROMPT)
    expected = _whole(model, ids, described)
    roles = [f"shard-{shard.stage}" for shard in result.manifest.shards]
    async with mesh_of(result, *roles) as local:
        answer = local.mesh.generate("export", PROMPT, max_tokens=TOKENS, budget=120.0)
        made = [token.token async for token in answer]
    pairs = enumerate(zip(made, expected, strict=False))  # an end token ends an answer sooner
    equal = next((at for at, (ours, theirs) in pairs if ours != theirs), len(made))
    cells = (
        export.name,
        " + ".join(f"{shard.bytes / 1e6:.0f}" for shard in result.manifest.shards),
        " ".join("{}-{}".format(*part.layers) for part in described.stages),
        str(described.proof or "unproven"),
        f"{described.proof.apart:.1g}" if described.proof else "",
        f"{equal} of {len(made)}",
    )
    print(f"| {' | '.join(cells)} |", flush=True)
    return result.manifest.extra["tolerance"] == TOLERANCE_QUANTIZED or equal == len(made)


def _whole(model: Path, ids: list[int], described: Any) -> list[int]:
    """What the file says, by its highest logits: `TOKENS` tokens behind `ids`."""
    import numpy as np
    import onnxruntime

    from shards.specs import DTYPES

    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]
    shape = (1, described.kv_heads, 0, described.head_dim)
    pairs = [pair for part in described.stages for pair in part.states]
    past = {name: np.zeros(shape, DTYPES[described.kv_datatype]) for name, _ in pairs}
    made: list[int] = []
    rows, held = np.array([ids], np.int64), 0
    while len(made) < TOKENS:
        behind = held + rows.shape[1]
        given = {
            "input_ids": rows,
            "attention_mask": np.ones((1, behind), np.int64),
            "position_ids": np.arange(held, behind, dtype=np.int64)[None],
        }
        feeds = {name: array for name, array in (given | past).items() if name in names}
        logits, *grown = session.run(["logits", *(present for _, present in pairs)], feeds)
        past = {name: array for (name, _), array in zip(pairs, grown, strict=True)}
        made.append(int(logits[0, -1].argmax()))
        rows, held = np.array([made[-1:]], np.int64), behind
    return made


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", choices=("make", "check"))
    parser.add_argument("folders", nargs="+", type=Path)
    given = parser.parse_args()
    if given.what == "make":
        make(given.folders[0])
        return 0
    held = [asyncio.run(check(folder)) for folder in given.folders]  # each one has its row
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
