"""The proof of a split: a stage whose weights are not the whole's is not handed out."""

from collections.abc import Callable, Sequence

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from zoo.language.decoder_graph import DecoderShape, decoder

from shards.errors import ModelError
from shards.language.decoder import Decoder, DecoderProof
from shards.language.kv_stage import KvStage
from shards.language.split import split as decoder_split
from shards.language.split.check import DecoderReport, check_decoder
from shards.language.split.graph import DecoderGraph
from shards.manifest import Manifest
from shards.split.split import SplitResult, split


def _other_weights(model: bytes, factor: float) -> bytes:
    """The model with each matrix but the first multiplied."""
    graph = onnx.load_from_string(model)
    matrices = [each for each in graph.graph.initializer if len(each.dims) == 2]
    for each in matrices[1:]:
        values = numpy_helper.to_array(each)
        if values.dtype == np.float32:
            other = values * np.float32(factor)
            each.CopyFrom(numpy_helper.from_array(other, each.name))
    return bytes(graph.SerializeToString())


@pytest.fixture
def split_beside(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], SplitResult]:
    """Splits a model, whose whole has weights multiplied by a factor."""

    def splitting(factor: float) -> SplitResult:
        def planted(
            whole: bytes | None, _: bytes | None, graph: DecoderGraph, stages: Sequence[KvStage]
        ) -> DecoderReport:
            assert whole is not None
            return check_decoder(_other_weights(whole, factor), None, graph, stages)

        monkeypatch.setattr(decoder_split, "check_decoder", planted)
        return split(decoder(DecoderShape(layers=4)), name="m", stages=3, profile=False)

    return splitting


def test_stages_that_are_the_whole_are_so_bit_by_bit(
    split_beside: Callable[[float], SplitResult],
) -> None:
    result = split_beside(1.0)
    proof = Decoder.of(Manifest.from_json(result.manifest.to_json())).proof
    assert proof == DecoderProof(runs=66, differing=0, deviation=0.0, apart=0.0)
    assert not any("off" in note for note in result.notes)


def test_stages_with_other_weights_than_the_whole_are_refused(
    split_beside: Callable[[float], SplitResult],
) -> None:
    with pytest.raises(ModelError, match="another token than the whole"):
        split_beside(-1.0)


def test_logits_that_are_off_are_refused_even_if_the_token_is_the_same(
    split_beside: Callable[[float], SplitResult],
) -> None:
    with pytest.raises(ModelError, match=r"logits are \S+ off the whole's, more than 0.0001"):
        split_beside(1.0003)


def test_other_bits_within_the_tolerance_are_told_with_their_figures(
    split_beside: Callable[[float], SplitResult],
) -> None:
    result = split_beside(1.0000004)
    proof = Decoder.of(Manifest.from_json(result.manifest.to_json())).proof
    assert proof == Decoder.of(result.manifest).proof
    assert 0 < proof.differing <= proof.runs == 66
    assert 0 < proof.deviation <= 1e-4
    assert str(proof) in result.notes
