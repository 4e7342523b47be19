"""What a request leaves to the model's owner: the sampling of its folder."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.talker import texts

from nodes.language.prompts import with_sampling
from shards.language.texts import ChatFile, Texts
from swarm.errors import InvalidArgument
from swarm.language.request import RECOMMENDED, GenerateRequest, Sampling

ASKED = GenerateRequest(prompt=(1,), recommended=RECOMMENDED)


def owned(**sampling: float) -> Texts:
    """A version whose owner recommends this."""
    return replace(texts(), chat=ChatFile(None, {}, sampling))


def test_what_is_left_out_is_taken_as_recommended_and_what_is_named_is_not() -> None:
    version = owned(temperature=0.6, top_k=20.0)
    taken = with_sampling(ASKED, version)
    assert taken.sampling == Sampling(temperature=0.6, top_k=20)
    assert taken.recommended == ()
    named = replace(ASKED, recommended=("top_k",))
    assert with_sampling(named, version).sampling == Sampling(top_k=20)
    assert with_sampling(replace(ASKED, recommended=()), version).sampling == Sampling()
    assert with_sampling(ASKED, None).sampling == Sampling()


def test_a_recommendation_that_cannot_be_is_named() -> None:
    with pytest.raises(InvalidArgument, match="temperature"):
        with_sampling(ASKED, owned(temperature=-3.0))
    with pytest.raises(InvalidArgument, match="seed"):
        GenerateRequest.read({"prompt": [1], "recommended": ["seed"]})


def test_the_fields_of_a_request_travel_with_it() -> None:
    assert GenerateRequest.decode(ASKED.encode()) == ASKED
