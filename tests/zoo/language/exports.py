"""Language models as exporters really write them, through the splitter and through a mesh.

    PYTHONPATH=tests uv run python -m zoo.language.exports table FOLDER [FAMILY …]

For each family and each exporter: an environment of its own (`uv run --with`, versions in
`EXPORTERS`) makes a model of Hugging Face's form from a seed, with true layers and small sizes, has
it exported, and writes what transformers, and for its own exports onnxruntime-genai, answer to a
prompt. Then the export is cut in three, proved, and served by three nodes, and the tokens that a
client gets are compared with those. Prints a table; what is in FOLDER already is not made again.
Exits 1 where an answer differs, or where a refusal is no error of this project.
A step by hand: `make`, in the exporter's environment, and `check`. `rows` quantizes one export and
cuts it again.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import pydoc_data.topics
import subprocess
import sys
from importlib import import_module
from itertools import takewhile
from pathlib import Path
from typing import Any

TOKENS, PROMPT = 64, 80  # of an answer, and before it: both reach beyond each window
# No other size of a layer is the same: the builder of genai takes it for the head.
VOCABULARY = 4000
WINDOW = 32
_PATIENCE_S = 300
_ONE_THREAD = {"intra_op_num_threads": 1}
_TORCH = "torch==2.15.0"
EXPORTERS = {
    "optimum": ("optimum-onnx==0.1.0", "transformers==4.57.6", "onnxruntime==1.32.0", _TORCH),
    "genai": (
        "onnxruntime-genai==0.18.0",
        "transformers==5.23.0",
        "onnx==1.23.2",
        "onnx-ir==1.1.0",
        _TORCH,
    ),
}
COLUMNS = {
    "optimum": ("optimum",),
    "genai": ("genai-fp32", "genai-int4"),
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 32.0,
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 64,
}
LONG = {
    "type": "longrope",
    "short_factor": [1 + 0.01 * at for at in range(16)],
    "long_factor": [1 + 0.1 * at for at in range(16)],
}
_LLAMA = {
    "hidden_size": 128,
    "intermediate_size": 320,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
_WINDOWS = {"sliding_window": WINDOW}
_MULTI = {"num_key_value_heads": 4}
_GPT2 = {"n_embd": 128, "n_layer": 4, "n_head": 4, "n_positions": 256}
# The configuration's class in transformers, and what is given to it.
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2Config", _GPT2),
    "opt": (
        "OPTConfig",
        {
            "hidden_size": 128,
            "ffn_dim": 512,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "max_position_embeddings": 256,
            "word_embed_proj_dim": 128,
        },
    ),
    "opt-projected": (  # as opt-350m
        "OPTConfig",
        {
            "hidden_size": 128,
            "ffn_dim": 512,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "max_position_embeddings": 256,
            "word_embed_proj_dim": 64,
            "do_layer_norm_before": False,
        },
    ),
    "gptj": ("GPTJConfig", _GPT2 | {"rotary_dim": 16}),
    "gpt-neox": ("GPTNeoXConfig", _LLAMA),
    "bloom": ("BloomConfig", {"hidden_size": 128, "n_layer": 4, "n_head": 4}),
    "gpt-bigcode": ("GPTBigCodeConfig", _GPT2),
    "falcon": (
        "FalconConfig",
        {
            "hidden_size": 128,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "max_position_embeddings": 256,
        },
    ),
    "llama3": ("LlamaConfig", _LLAMA | {"rope_scaling": LLAMA3, "tie_word_embeddings": True}),
    "mistral": ("MistralConfig", _LLAMA | {"sliding_window": None}),
    "mistral-window": ("MistralConfig", _LLAMA | _WINDOWS),
    "qwen2": ("Qwen2Config", _LLAMA | {"tie_word_embeddings": True}),
    "qwen2-window": (
        "Qwen2Config",
        _LLAMA | _WINDOWS | {"use_sliding_window": True, "max_window_layers": 2},
    ),
    "qwen3": ("Qwen3Config", _LLAMA | {"head_dim": 64, "tie_word_embeddings": True}),
    "phi3": ("Phi3Config", _LLAMA | _MULTI | {"sliding_window": 255}),
    "phi3-window": ("Phi3Config", _LLAMA | _MULTI | _WINDOWS),
    "phi3-long": (
        "Phi3Config",
        _LLAMA
        | _MULTI
        | {
            "rope_scaling": LONG,
            "original_max_position_embeddings": 192,
            "sliding_window": None,
        },
    ),
    "gemma": ("GemmaConfig", _LLAMA | {"head_dim": 32}),
    "gemma2": ("Gemma2Config", _LLAMA | _WINDOWS | {"head_dim": 32, "query_pre_attn_scalar": 32}),
    "gemma3": (
        "Gemma3TextConfig",
        _LLAMA | _WINDOWS | {"num_hidden_layers": 6, "head_dim": 32, "query_pre_attn_scalar": 32},
    ),
    "gpt-oss": (
        "GptOssConfig",
        _LLAMA | _WINDOWS | {"head_dim": 32, "num_local_experts": 4, "num_experts_per_tok": 2},
    ),
    "granite": ("GraniteConfig", _LLAMA),
    "olmo2": ("Olmo2Config", _LLAMA | _MULTI),
    "smollm3": ("SmolLM3Config", _LLAMA),
    "stablelm": ("StableLmConfig", _LLAMA | _MULTI),
}
CHAT = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
EXPECTED, FAILED = "expected.json", "failed.txt"


def table(target: Path, families: list[str]) -> bool:
    """Make, export, check and print; whether all that was served was right."""
    for exporter, packages in EXPORTERS.items():
        wanted = [f for f in families if not _made(target, exporter, f)]
        given = [argument for package in packages for argument in ("--with", package)]
        python = ["uv", "run", "--no-project", "--isolated", "--python", "3.11", *given, "python"]
        if wanted:
            call = [*python, __file__, "make", str(target), *wanted, "--exporter", exporter]
            subprocess.run(call, check=True)
    columns = (*COLUMNS["optimum"], *COLUMNS["genai"])
    print(f"| family | {' | '.join(columns)} |")
    print("|" + "---|" * (1 + len(columns)), flush=True)
    held = True
    for family in families:
        cells = []
        for column in columns:
            right, cell = asyncio.run(check(target / column / family))
            held &= right
            cells.append(cell)
        print(f"| {family} | {' | '.join(cells)} |", flush=True)
    return held


def _made(target: Path, exporter: str, family: str) -> bool:
    return all(
        any((target / column / family / name).exists() for name in (EXPECTED, FAILED))
        for column in COLUMNS[exporter]
    )


def make(target: Path, exporter: str, families: list[str]) -> None:
    """The exports of some families, from seeds, with the answers that are expected of them."""
    texts = _tokenizer(import_module("transformers"))
    for family in families:
        source = target / f"hf-{exporter}" / family
        try:
            expected = _hugging_face(family, source, texts)
            reason = ""
        except Exception as error:  # transformers of this exporter may not know the family
            expected, reason = None, f"transformers: {error!r:.200}"
        for column in COLUMNS[exporter]:
            export = target / column / family
            export.mkdir(parents=True, exist_ok=True)
            if expected is not None:
                reason = _export(exporter, source, export, column)
            if reason:
                (export / FAILED).write_text(reason)
            else:
                answers = {"transformers": expected}
                if exporter != "optimum":
                    answers["genai"] = _genai(export)
                (export / EXPECTED).write_text(json.dumps(answers))
            print(export, reason or "made", flush=True)


def _prompt() -> list[int]:
    import numpy as np

    return [int(each) for each in np.random.default_rng(0).integers(3, VOCABULARY, PROMPT)]


def _hugging_face(family: str, source: Path, texts: Any) -> list[int]:
    """Save a model and its tokenizer. Returns its greedy answer, computed without a cache."""
    torch, transformers = import_module("torch"), import_module("transformers")
    kind, settings = FAMILIES[family]
    ids = {"bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 0, "vocab_size": VOCABULARY}
    config = getattr(transformers, kind)(**{"tie_word_embeddings": False, **settings, **ids})
    torch.manual_seed(0)
    made = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    made = made.float().eval()
    with torch.no_grad():
        for key, weight in made.named_parameters():
            if weight.dim() > 1:
                weight.normal_(0, weight.shape[-1] ** -0.5)
            elif "bias" in key:  # the builder of genai leaves out those that are zero
                weight.normal_(0, 0.1)
            else:
                weight.uniform_(0.8, 1.2)
        made.save_pretrained(source)
        if family == "gpt-oss":
            _add_packed_experts(source, config)
        texts.save_pretrained(source)
        answer = _prompt()
        for _ in range(TOKENS):
            logits = made(torch.tensor([answer]), use_cache=False).logits
            answer.append(int(logits[0, -1].argmax()))
    return answer[PROMPT:]


def _add_packed_experts(source: Path, config: Any) -> None:
    """Experts of 4 bits with shared exponents, as the published files of gpt-oss have them; the
    builder of genai takes these for its own 4 bits."""
    torch, files = import_module("torch"), import_module("safetensors.torch")
    stored = files.load_file(source / "model.safetensors")
    inside, outside = config.intermediate_size, config.hidden_size
    for layer in range(config.num_hidden_layers):
        for name, rows, read in (("gate_up", 2 * inside, outside), ("down", outside, inside)):
            shape = (config.num_local_experts, rows, read // 32)
            begin = f"model.layers.{layer}.mlp.experts.{name}_proj"
            stored[f"{begin}_blocks"] = torch.randint(0, 256, (*shape, 16), dtype=torch.uint8)
            stored[f"{begin}_scales"] = torch.full(shape, 123, dtype=torch.uint8)
    files.save_file(stored, source / "model.safetensors", {"format": "pt"})


def _export(exporter: str, source: Path, export: Path, column: str) -> str:
    """Run the exporter. Returns why it failed; an empty text if it did not."""
    if exporter == "optimum":
        call = ["optimum.exporters.onnx", "-m", str(source), str(export)]
        call += ["--task", "text-generation-with-past"]
    else:
        call = ["onnxruntime_genai.models.builder", "-i", str(source), "-o", str(export)]
        call += ["-p", column.removeprefix("genai-"), "-e", "cpu", "-c", f"{export}.cache"]
    given = [sys.executable, "-m", *call]
    ended = subprocess.run(given, capture_output=True, text=True, timeout=_PATIENCE_S)
    said = [line for line in ended.stderr.splitlines() if line.strip()]
    failed = ended.returncode or not list(export.glob("*.onnx"))
    return f"{exporter}: {said[-1] if said else 'no file'}"[:300] if failed else ""


def _genai(export: Path) -> list[int]:
    """The greedy answer of onnxruntime-genai, up to an end token."""
    try:
        genai = import_module("onnxruntime_genai")
        config = genai.Config(str(export))
        config.overlay(json.dumps({"model": {"decoder": {"session_options": _ONE_THREAD}}}))
        model = genai.Model(config)
        params = genai.GeneratorParams(model)
        params.set_search_options(do_sample=False, max_length=PROMPT + TOKENS)
        generator = genai.Generator(model, params)
        generator.append_tokens(_prompt())
        while not generator.is_done():
            generator.generate_next_token()
        return [int(each) for each in generator.get_sequence(0)][PROMPT:]
    except Exception as error:  # an export that its own runtime does not take
        print(f"{export}: genai: {error!r:.300}", flush=True)
        return []


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


async def check(export: Path) -> tuple[bool, str]:
    """Cut, prove, serve and compare one export. Returns whether it holds, and a table's cell."""
    from support.meshes import mesh_of

    from shards.errors import ShardsError
    from shards.language.decoder import Decoder
    from shards.language.folder import read_folder
    from shards.split.split import split

    if (export / FAILED).exists():
        return True, f"not exported: {(export / FAILED).read_text()}"
    answers = json.loads((export / EXPECTED).read_text())
    try:
        model, language = read_folder(export)
        result = split(model, name="export", stages=3, profile=False, hints=language)
    except ShardsError as error:
        return True, f"refused: {error}"
    described = Decoder.of(result.manifest)
    assert described is not None
    roles = [f"shard-{shard.stage}" for shard in result.manifest.shards]
    async with mesh_of(result, *roles) as local:
        room = described.context - PROMPT
        if room < 1:
            return True, f"sessions end at {described.context} tokens: {result.notes[0]}"
        wanted = min(TOKENS, room)
        answer = local.mesh.generate("export", _prompt(), max_tokens=wanted, budget=120.0)
        made = [token.token async for token in answer]
    kept = {name: _equal(made, expected) for name, expected in answers.items() if expected}
    # Weights of 4 bits answer otherwise than those of transformers, and a sum that becomes a node
    # may turn a token where two logits are close: no difference there is wrong for sure.
    right = "int4" in str(export) or kept["transformers"] == len(made)
    cell = ", ".join(f"{name} {count}" for name, count in kept.items())
    exact = "" if described.proof and not described.proof.differing else f" ({described.proof})"
    return right, f"{cell} of {len(made)}{exact}"


def rows(export: Path) -> bool:
    """Quantize one export by rows, and cut what comes of it. Prints the loss and the proof."""
    import numpy as np

    from shards.errors import ShardsError
    from shards.language.decoder import Decoder
    from shards.language.folder import read_folder
    from shards.language.quantize import quantize_language
    from shards.split.split import split

    try:
        model, language = read_folder(export)
        text = np.array(_prompt(), np.int64)
        small, report = quantize_language(model, text, mode="rows", max_drop=1.0)
        result = split(small, name="export", stages=3, profile=False, hints=language)
    except ShardsError as error:
        print(f"{export}: refused: {error}", flush=True)
        return False
    described = Decoder.of(result.manifest)
    assert described is not None
    print(f"{export}: {report.verdict}; {described.proof}", flush=True)
    return described.proof is not None and not described.proof.differing


def _equal(made: list[int], expected: list[int]) -> int:
    """How many tokens are equal from the first on."""
    pairs = zip(made, expected, strict=False)  # an end token ends an answer sooner
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", choices=("table", "make", "check", "rows"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("families", nargs="*", default=[])
    parser.add_argument("--exporter", choices=EXPORTERS, default="optimum")
    given = parser.parse_args()
    families = given.families or list(FAMILIES)
    if given.what == "table":
        return 0 if table(given.folder, families) else 1
    if given.what == "make":
        make(given.folder, given.exporter, families)
        return 0
    if given.what == "rows":
        return 0 if rows(given.folder) else 1
    right, cell = asyncio.run(check(given.folder))
    print(cell)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
