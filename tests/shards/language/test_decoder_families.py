"""Folders of known families, shapes true and weights random, as exporters name their files."""

import json
from pathlib import Path
from typing import Any

import onnx
import pytest
from decoder_chains import greedy, stages_of
from onnx import helper, numpy_helper
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from zoo.language.decoder_graph import DecoderShape, Form, decoder

from shards.language.decoder import Decoder
from shards.language.folder import read_folder
from shards.language.texts import Texts
from shards.split.split import split

IM = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
HEADERS = (
    "{{ bos_token }}{% for m in messages %}{{ '<|start_header_id|>' + m['role'] + "
    "'<|end_header_id|>\n\n' + m['content'] | trim + '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
ROLES = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|>\n' + m['content'] + '<|end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)
SPECIAL = ["<|im_end|>", "<|eot_id|>", "<|end|>", "<|begin_of_text|>"]
# Of each family: what sets its graph apart, the end of an answer, its template.
FAMILIES: dict[str, tuple[dict[str, Any], str, str]] = {
    "qwen2": ({"bias": True, "tied": True, "theta": 1e6}, "<|im_end|>", IM),
    "llama": ({"packed": False, "tied": True, "theta": 5e5}, "<|eot_id|>", HEADERS),
    "phi3": ({"packed": True, "kv_heads": 4}, "<|end|>", ROLES),
}


def folder_of(path: Path, family: str, form: Form, bits: int) -> Path:
    """As optimum or the builder of onnxruntime-genai leave it."""
    more, end, template = FAMILIES[family]
    shape = DecoderShape(layers=4, vocabulary=300, context=160, bits=4 if bits == 4 else 32, **more)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    maker: Any = Tokenizer(models.BPE(vocab={c: at for at, c in enumerate(alphabet)}, merges=[]))
    maker.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    maker.decoder = decoders.ByteLevel()
    maker.add_special_tokens(SPECIAL)
    path.mkdir()
    (path / "model.onnx").write_bytes(decoder(shape, form=form))
    (path / "tokenizer.json").write_text(maker.to_str())
    (path / "chat_template.jinja").write_text(template)
    documents: dict[str, dict[str, Any]] = {
        "tokenizer_config.json": {"eos_token": end, "bos_token": "<|begin_of_text|>"},
        "generation_config.json": {"eos_token_id": [maker.token_to_id(end)], "top_p": 0.8},
    }
    if form == "genai":
        part = {"filename": "model.onnx", "num_attention_heads": shape.heads}
        documents["genai_config.json"] = {
            "model": {"type": family, "context_length": shape.context, "decoder": part}
        }
    else:
        documents["config.json"] = {
            "model_type": family,
            "max_position_embeddings": shape.context,
            "num_attention_heads": shape.heads,
        }
    for name, document in documents.items():
        (path / name).write_text(json.dumps(document))
    return path


@pytest.mark.parametrize(("form", "bits"), [("genai", 32), ("genai", 4), ("optimum", 32)])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_familys_folder_becomes_stages_that_are_the_whole_bit_by_bit(
    tmp_path: Path, family: str, form: Form, bits: int
) -> None:
    model, language = read_folder(folder_of(tmp_path / family, family, form, bits))
    result = split(model, name="llm", stages=3, profile=False, hints=language)
    described = Decoder.of(result.manifest)
    assert described is not None
    assert described.proof is not None
    assert (described.proof.differing, described.exact_batch) == (0, True)
    assert (described.layers, described.context, described.vocabulary) == (4, 160, 300)
    assert described.shares_buffers == (form == "genai")
    texts = Texts.of(language.files)
    assert described.end_tokens == (texts.tokenizer.id_of(FAMILIES[family][1]),)
    assert texts.template is not None
    prompt = texts.template.render([{"role": "user", "content": "Where is the cup?"}])
    ids = texts.tokenizer.encode(prompt, special=False)
    answer, _ = greedy(stages_of(result, slots=1), ids, 24)
    assert len(answer) == 24
    assert len(set(answer)) > 3


def test_a_session_stays_within_the_shorter_of_two_rotary_tables() -> None:
    """The builder of genai lets a session's length choose one for Phi-3 with long contexts: beyond
    the shorter table a chunk would be turned otherwise than the chunks before it."""
    model = onnx.load_from_string(decoder(DecoderShape(context=256)))
    branches: list[list[Any]] = [[], []]
    for name in ("cos_cache", "sin_cache"):
        stored = next(each for each in model.graph.initializer if each.name == name)
        model.graph.initializer.remove(stored)
        rows = numpy_helper.to_array(stored)
        for nodes, table in zip(branches, (rows, rows[:96]), strict=True):
            value = numpy_helper.from_array(table)
            nodes.append(helper.make_node("Constant", [], [f"{name}.{len(table)}"], value=value))
    then, otherwise = (
        helper.make_graph(
            nodes, "tables", [], [helper.make_empty_tensor_value_info(n.output[0]) for n in nodes]
        )
        for nodes in branches
    )
    model.graph.initializer.append(helper.make_tensor("short", onnx.TensorProto.INT64, [], [96]))
    at = next(i for i, n in enumerate(model.graph.node) if "mask.total" in n.output) + 1
    model.graph.node.insert(at, helper.make_node("Greater", ["mask.total", "short"], ["is.long"]))
    tables = ["cos_cache", "sin_cache"]
    choice = helper.make_node("If", ["is.long"], tables, then_branch=then, else_branch=otherwise)
    model.graph.node.insert(at + 1, choice)
    described = Decoder.of(
        split(model.SerializeToString(), name="m", stages=2, profile=False).manifest
    )
    assert described is not None
    assert described.context == 96
