"""The parts of `swarm demo --learn`: its references, its targets, its plot, its attackers."""

from __future__ import annotations

import builtins
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nodes.learning.demo.attacker import FLIP, NOISE, hostile_update
from nodes.learning.demo.plot import picture, plot
from nodes.learning.demo.record import SERVED_OVER, LearnRecord, figures, missed
from nodes.learning.demo.story import CLASSES
from nodes.learning.head import HeadLayout
from nodes.learning.options import LearnOptions
from nodes.learning.references import References, references, split_by_label
from shards.zoo import digits_heldout, digits_training

LAYOUT = HeadLayout("w", "b", 64, 10, False)


def test_every_class_is_at_two_nodes_at_least_and_every_sample_at_one() -> None:
    labels = digits_training()[1]
    parts = split_by_label(labels, CLASSES)
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(labels)))
    for own, part in zip(CLASSES, parts, strict=True):
        assert set(labels[part].tolist()) == set(own)
        assert len(own) in (2, 3)
    assert all(sum(label in own for own in CLASSES) >= 2 for label in range(10))
    with pytest.raises(ValueError, match="class 9 is at 1 nodes"):
        split_by_label(labels, [*CLASSES[:-1], (7,)])


def test_together_learns_what_alone_cannot() -> None:
    (images, labels), (held, held_labels) = digits_training(), digits_heldout()
    found = references(
        LAYOUT,
        images.reshape(-1, 64),
        labels,
        split_by_label(labels, CLASSES),
        (held.reshape(-1, 64), held_labels),
        30,
        LearnOptions(rate=8.0),
    )
    assert len(found.alone) == len(found.gossip) == len(CLASSES)
    assert max(found.alone) < 0.35
    assert min(found.gossip) > 2 * max(found.alone)
    assert found.central > 0.9


def record_of(**more: Any) -> LearnRecord:
    record = LearnRecord(references=References((0.2, 0.3), (0.95, 0.96), 0.97), dense_bytes=1000)
    nodes = {f"learner-{number}": 0.965 for number in range(8)}
    record.before_attack = dict(nodes)
    record.at_end = dict(nodes)
    for name in nodes:
        record.tested(name, 0.5)
        record.learned(name, {"rounds": 100, "exchange": {"sent_bytes": 20_000}})
    for number in range(4 * SERVED_OVER):
        record.asked += 1
        record.answered(number > SERVED_OVER, 0.002, 1)
    for name, value in more.items():
        setattr(record, name, value)
    return record


def test_a_run_that_reached_its_targets_misses_none() -> None:
    doc = figures(record_of())
    assert missed(doc) == []
    assert doc["bytes"] == {"sent": 160_000, "full_gossip": 800_000, "share": 0.2, "rounds": 800}
    assert doc["accuracy"]["mean"] == 0.965
    assert doc["served"]["lost"] == 0
    assert doc["served"]["accuracy_first"] < doc["served"]["accuracy_last"] == 1.0


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"before_attack": dict.fromkeys("abcdefgh", 0.955)}, "mean accuracy"),
        ({"before_attack": {"a": 0.93, **dict.fromkeys("bcdefgh", 0.97)}}, "worst node's"),
        ({"at_end": {"a": 0.94, "b": 0.99}}, "under attack"),
        ({"dense_bytes": 700}, "of full gossip's bytes"),
        ({"asked": 500}, "100 of 500 requests were lost"),
        ({"served": [(0.0, 0.8, 0), (1.0, 0.9, 2)]}, "served accuracy"),
        ({"before_attack": {}, "at_end": {}}, "mean accuracy 0.0"),
    ],
)
def test_each_target_can_be_missed_and_is_named(change: dict[str, Any], sentence: str) -> None:
    assert any(sentence in line for line in missed(figures(record_of(**change))))


def test_bytes_of_a_node_are_those_of_its_last_word() -> None:
    record = LearnRecord()
    for sent in (10, 30, 20):
        record.learned("a", {"rounds": sent, "exchange": {"sent_bytes": sent}})
    assert (record.bytes_sent, record.rounds) == ({"a": 30}, {"a": 30})


def test_the_plot_shows_nodes_answers_and_references() -> None:
    drawn = plot(record_of(), 60.0).plain
    for sign in "·▪─┄":
        assert sign in drawn
    assert all(len(line) <= 80 for line in drawn.splitlines())


def test_the_picture_is_written_where_matplotlib_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "plot.png"
    original = builtins.__import__

    def without(name: str, *arguments: Any, **more: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return original(name, *arguments, **more)

    with monkeypatch.context() as patched:
        patched.setattr(builtins, "__import__", without)
        assert picture(record_of(), str(path)) == ""
    assert not path.exists()
    pytest.importorskip("matplotlib")
    assert picture(record_of(), str(path)) == str(path)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_attackers_send_noise_or_move_against_what_they_learned() -> None:
    rng = np.random.default_rng(0)
    honest = {"w": np.full((64, 10), 0.1, np.float32), "b": np.full(10, 0.1, np.float32)}
    flipped = hostile_update(FLIP, honest, rng)
    noise = hostile_update(NOISE, honest, rng)
    for name, value in honest.items():
        assert float((flipped[name] * value).sum()) < 0
        assert flipped[name].shape == noise[name].shape == value.shape
    lengths = [
        float(np.sqrt(sum(np.square(v).sum() for v in update.values())))
        for update in (honest, flipped, noise)
    ]
    assert lengths[1] == pytest.approx(5 * lengths[0])
    assert lengths[2] == pytest.approx(5 * lengths[0], rel=0.1)


def test_a_record_keeps_time_from_its_beginning() -> None:
    record = LearnRecord(began=time.monotonic() - 1000.0)
    record.say("something")
    ((at, text),) = record.story
    assert text == "something"
    assert at >= 1000.0
