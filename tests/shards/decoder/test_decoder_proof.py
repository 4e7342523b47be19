"""The proof of a split: a stage whose weights are not the whole's is not handed out."""

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from shards.errors import ModelError
from shards.graph.decoder import DecoderGraph
from shards.runtimes.kv_stage import KvStage
from shards.split import decoder_split
from shards.split.decoder_check import DecoderReport, check_decoder
from shards.split.split import split
from shards.zoo.decoder_graph import DecoderShape, decoder


def _other_weights(model: bytes) -> bytes:
    """The model with the sign of each matrix but the first turned."""
    graph = onnx.load_from_string(model)
    matrices = [each for each in graph.graph.initializer if len(each.dims) == 2]
    for each in matrices[1:]:
        values = numpy_helper.to_array(each)
        if values.dtype == np.float32:
            each.CopyFrom(numpy_helper.from_array(-values, each.name))
    return bytes(graph.SerializeToString())


def test_stages_with_other_weights_than_the_whole_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def planted(
        whole: bytes | None, _: bytes | None, graph: DecoderGraph, stages: Sequence[KvStage]
    ) -> DecoderReport:
        assert whole is not None
        return check_decoder(_other_weights(whole), None, graph, stages)

    model = decoder(DecoderShape(layers=4))
    split(model, name="m", stages=3, profile=False)
    monkeypatch.setattr(decoder_split, "check_decoder", planted)
    with pytest.raises(ModelError, match="another token than the whole"):
        split(model, name="m", stages=3, profile=False)
