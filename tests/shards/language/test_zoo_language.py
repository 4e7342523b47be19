"""The toy language model: its gradient, its graph, its size, and that it prefers English."""

import json
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from tokenizers import Tokenizer
from zoo.language.corpus import documents, parted, tokenizer_of
from zoo.language.decoder_graph import DecoderShape, Form, decoder_of, decoder_weights
from zoo.language.net import LanguageNet
from zoo.language.train import SHAPE, SHAPES, evaluate, stored, train
from zoo.numpy_network import cross_entropy

from shards.language.folder import read_folder
from shards.language.texts import Texts
from shards.language.toy import (
    DRAFT,
    TOKENIZER,
    TOY,
    Toy,
    data_file,
    toy_model,
    toy_weights,
    write_toy,
)

SMALL = DecoderShape(
    layers=2, width=24, head_dim=16, feedforward=32, vocabulary=50, context=32, tied=True
)
ENGLISH = [
    "Return a list of the names of all files in the directory. If the path does not exist, an "
    "error is raised.",
    "This method is called when the connection is closed by the other side. The default "
    "implementation does nothing.",
]


def test_the_gradient_is_the_slope_of_the_loss() -> None:
    weights = {name: array.astype(np.float64) for name, array in decoder_weights(SMALL, 1).items()}
    net = LanguageNet(SMALL, weights)
    random = np.random.default_rng(0)
    tokens, labels = random.integers(0, 50, (2, 9)), random.integers(0, 50, 18)
    _, gradient = cross_entropy(net.forward(tokens), labels)
    net.backward(gradient)
    found = {name: each.gradient.copy() for name, each in net.tensors.items()}
    for name, parameter in net.tensors.items():
        direction = random.standard_normal(parameter.value.shape) * 1e-6
        parameter.value += direction
        above, _ = cross_entropy(net.forward(tokens), labels)
        parameter.value -= 2 * direction
        below, _ = cross_entropy(net.forward(tokens), labels)
        parameter.value += direction
        slope = (found[name] * direction).sum()
        assert (above - below) / 2 == pytest.approx(slope, rel=1e-5), name


@pytest.mark.parametrize("form", ["genai", "optimum", "attention"])
def test_the_graph_computes_what_was_trained(form: Form) -> None:
    model = decoder_of(SHAPE, toy_weights(), form=form)
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    tokens = np.random.default_rng(0).integers(0, SHAPE.vocabulary, (2, 40))
    feeds = {
        "input_ids": tokens,
        "attention_mask": np.ones((2, 40), np.int64),
        "position_ids": np.tile(np.arange(40), (2, 1)),
    }
    names = [each.name for each in session.get_inputs()]
    empty = np.zeros((2, SHAPE.kv_heads, 0, SHAPE.head_dim), np.float32)
    feeds |= {name: empty for name in names if name.startswith("past")}
    (logits,) = session.run(["logits"], {name: feeds[name] for name in names})
    own = LanguageNet(SHAPE, toy_weights()).forward(tokens)
    np.testing.assert_allclose(logits.reshape(own.shape), own, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("toy", [TOY, DRAFT], ids=lambda toy: toy.name)
def test_the_shipped_file_has_the_graph_of_its_shape(toy: Toy) -> None:
    assert toy_model(toy) == decoder_of(SHAPES[toy], toy_weights(toy))


@pytest.mark.parametrize("toy", [TOY, DRAFT], ids=lambda toy: toy.name)
def test_the_toys_prefer_english_and_are_small(toy: Toy) -> None:
    tokenizer = Tokenizer.from_str(data_file(TOKENIZER).decode())
    perplexity, bits = evaluate(toy_weights(toy), tokenizer, ENGLISH, SHAPES[toy])
    words = " ".join(ENGLISH).split()
    shuffled = " ".join(words[at] for at in np.random.default_rng(1).permutation(len(words)))
    mixed, _ = evaluate(toy_weights(toy), tokenizer, [shuffled], SHAPES[toy])
    assert perplexity < 60
    assert bits < 2.5
    assert mixed > 5 * perplexity
    assert sum(map(len, map(data_file, (TOY.file, DRAFT.file, TOKENIZER)))) < 2_000_000


def test_stored_weights_are_within_half_a_step_of_the_trained() -> None:
    weights = decoder_weights(SMALL, 3)
    kept = stored(SMALL, weights)
    for name, array in weights.items():
        if array.ndim == 1:
            assert np.array_equal(kept[name], array)
            continue
        scale = kept[f"{name}.scale"]
        assert kept[name].dtype == np.int8
        assert np.all(np.abs(kept[name] * scale - array) <= 0.501 * scale)


def test_a_library_becomes_questions_answers_and_texts(tmp_path: Path) -> None:
    docstring = "Return the sum of all the numbers, and wait for those that come late."
    comment = "The sum is kept in a list of partial sums\n# so that no bit of the smaller is lost."
    source = f'def add(a):\n    """{docstring}"""\n    # {comment}\n    return a\n'
    (tmp_path / "sums.py").write_text(source)
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "test_sums.py").write_text(source.replace("sum", "product"))
    found = documents(tmp_path)
    assert sorted(found) == [
        f"<|user|>sums.add<|assistant|>{docstring}",
        comment.replace("# ", ""),
    ]
    learnt, held = parted([str(at) for at in range(60)])
    assert (len(learnt), len(held)) == (57, 3)
    tokenizer = tokenizer_of(found)
    ids = tokenizer.encode(found[0]).ids
    assert ids[0] == tokenizer.token_to_id("<|end|>")
    assert json.loads(tokenizer.to_str())["model"]["type"] == "BPE"


def test_training_learns_a_text_by_heart() -> None:
    net = LanguageNet(SMALL, decoder_weights(SMALL, 2))
    tokens = np.tile(np.random.default_rng(0).integers(0, 50, 20), 40)
    assert train(net, tokens, [(4, 24, 120)]) < 0.5


def test_a_folder_of_the_toy_has_a_chat_that_ends(tmp_path: Path) -> None:
    write_toy(tmp_path / "toy")
    model, language = read_folder(tmp_path / "toy")
    texts = Texts.of(language.files)
    assert model.name == "model.onnx"
    assert language.context == SHAPE.context
    assert texts.template is not None
    prompt = texts.template.render([{"role": "user", "content": "os.path"}])
    assert prompt == "<|end|><|user|>os.path<|assistant|>"
    ids = texts.tokenizer.encode(prompt, special=False)
    assert (ids[:2], ids[-1]) == ([0, 1], 2)
    assert language.end_tokens == (0,)
