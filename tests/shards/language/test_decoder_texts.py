"""The texts of a language model: tokenizer, chat template, the folder that they come in."""

import json
import time
from pathlib import Path

import onnx
import pytest
from tokenizers import Tokenizer as Maker
from tokenizers import decoders, models, pre_tokenizers
from zoo.language.decoder_graph import DecoderShape, Form, decoder

from shards.errors import ArtifactError, ModelError
from shards.language.chat_template import ChatTemplate, TemplateRefused
from shards.language.decoder import Decoder
from shards.language.folder import read_folder
from shards.language.texts import Texts
from shards.language.tokenizer import Tokenizer
from shards.manifest import read_dir, write_dir
from shards.split.split import split

CHAT = [{"role": "system", "content": " Be brief. "}, {"role": "user", "content": "Hello."}]
QWEN = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + "
    "message['content'] | trim + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def _tokenizer() -> bytes:
    """One token for each byte."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    maker = Maker(models.BPE(vocab={char: at for at, char in enumerate(alphabet)}, merges=[]))
    maker.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    maker.decoder = decoders.ByteLevel()
    return maker.to_str().encode()


def _folder(path: Path, template: str = QWEN) -> Path:
    path.mkdir()
    (path / "model.onnx").write_bytes(decoder(DecoderShape(layers=4)))
    (path / "tokenizer.json").write_bytes(_tokenizer())
    settings = {"bos_token": {"content": "<s>"}, "chat_template": template}
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    (path / "generation_config.json").write_text('{"eos_token_id": [1, 2], "top_p": 0.8}')
    (path / "config.json").write_text('{"max_position_embeddings": 128}')
    return path


def test_a_chat_becomes_the_prompt_of_its_template() -> None:
    assert ChatTemplate(QWEN).render(CHAT) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello.<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    tools = "{% for tool in tools %}{{ tool | tojson }}{% endfor %}{{ bos_token }}"
    assert ChatTemplate(tools, {"bos_token": "<s>"}).render(CHAT, tools=[{"a": 1}]) == '{"a": 1}<s>'


_GROWING = "{% set ns = namespace(x=%s) %}{% for i in range(60) %}{% set ns.x = %s %}{% endfor %}"


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__ }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ messages[0]['content'] | attr('__class__') }}",
        "{{ '{0.__class__}'.format(1) }}",
        "{{ '{:>1000000000}'['format'](1) }}",
        "{{ _budget.take }}",
        "{{ self }}",
        "{{ messages.append(1) }}",
        "{% include 'x' %}",
        "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}",
        "{% for a in range(9999) %}{{ range(9999) | list | length }}{% endfor %}",
        "{% macro f(n) %}{{ f(n - 1) }}{{ f(n - 1) }}{% endmacro %}{{ f(30) }}",
        "{% for i in messages recursive %}{{ loop(messages) }}{% endfor %}",
        "{{ 'a' * 1000000000 }}",
        "{{ '%1000000000d' % 3 }}",
        "{{ 'a' | center(1000000000) }}",
        "{{ 'a'.ljust(1000000000) }}",
        "{{ 9 ** 9 ** 9 }}",
        "{% for",
        _GROWING.replace("%s", "'a'", 1).replace("%s", "ns.x ~ ns.x") + "{{ ns.x }}",
        _GROWING.replace("%s", "'a'", 1).replace("%s", "ns.x.replace('a', 'aaaaaaaa')"),
        _GROWING.replace("%s", "[1]", 1).replace("%s", "ns.x + ns.x"),
        _GROWING.replace("%s", "[1]", 1).replace("%s", "[ns.x, ns.x]") + "{{ ns.x }}",
        _GROWING.replace("%s", "2", 1).replace("%s", "ns.x * ns.x"),
        "{{ raise_exception('no system role') }}",
    ],
)
def test_a_template_that_reaches_out_or_works_without_an_end_is_refused(source: str) -> None:
    begin = time.process_time()
    with pytest.raises(TemplateRefused):
        ChatTemplate(source).render(CHAT)
    assert time.process_time() - begin < 5.0


def test_a_folder_is_split_with_its_texts_and_what_they_tell(tmp_path: Path) -> None:
    model, language = read_folder(_folder(tmp_path / "hf"))
    result = split(model, name="m", stages=2, profile=False, hints=language)
    write_dir(tmp_path / "out", result.manifest, result.files)
    manifest, fetch = read_dir(tmp_path / "out")
    assert Decoder.of(manifest) is not None
    assert (Decoder.of(manifest).context, Decoder.of(manifest).end_tokens) == (128, (1, 2))
    texts = Texts.load(manifest, fetch)
    assert texts.template is not None
    assert texts.template.render(CHAT).endswith("assistant\n")
    assert texts.chat.sampling == {"top_p": 0.8}
    (tmp_path / "out" / "tokenizer.json").write_bytes(b"{}")
    with pytest.raises(ArtifactError, match="SHA-256"):
        Texts.load(manifest, fetch)


def test_a_folder_without_a_tokenizer_or_with_a_hostile_template_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TemplateRefused):
        read_folder(_folder(tmp_path / "hostile", "{{ messages.__class__ }}"))
    folder = _folder(tmp_path / "hf")
    (folder / "generation_config.json").write_text("[")
    with pytest.raises(ModelError, match="is not JSON"):
        read_folder(folder)
    (folder / "tokenizer.json").unlink()
    (folder / "generation_config.json").unlink()
    with pytest.raises(ModelError, match="save the tokenizer beside the model"):
        read_folder(folder)


@pytest.mark.parametrize("more", [1, 700])
def test_a_tokenizer_with_more_ids_than_the_model_is_refused_where_it_is_split(
    tmp_path: Path, more: int
) -> None:
    folder = _folder(tmp_path / "llm")
    known = Tokenizer(_tokenizer())
    file = folder / "tokenizer.json"
    file.write_text(known.to_json(*(f"<extra-{at}>" for at in range(more))))
    model, hints = read_folder(folder)
    assert hints.largest == (256 + more - 1, f"<extra-{more - 1}>")
    with pytest.raises(ModelError, match=rf"'<extra-{more - 1}>' is {255 + more}.*0 to 255"):
        split(model, name="llm", stages=2, profile=False, hints=hints)
    file.write_text(known.to_json())
    model, hints = read_folder(folder)
    assert Decoder.of(split(model, name="llm", stages=2, profile=False, hints=hints).manifest)


@pytest.mark.parametrize("form", ["genai", "optimum"])
def test_a_head_that_chooses_ids_without_an_embedding_is_refused(form: Form) -> None:
    model = onnx.load_from_string(decoder(DecoderShape(layers=2), form=form))
    [table] = [each for each in model.graph.initializer if list(each.dims) == [256, 64]]
    rows = onnx.numpy_helper.to_array(table)[:200]
    table.CopyFrom(onnx.numpy_helper.from_array(rows, table.name))
    with pytest.raises(ModelError, match="among 256 ids, and its embedding has 200 rows"):
        split(model.SerializeToString(), name="llm", stages=1, profile=False)
