"""Tokens, texts and messages of generation: exact, bounded, and the same whoever computes them."""

from __future__ import annotations

import contextlib
import json

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from swarm.errors import DecodeError, InvalidArgument, Status
from swarm.fleet.advertised import MOST_MARKS
from swarm.language import marks
from swarm.language.choice import SlotCandidate, with_room
from swarm.language.follow import Follower
from swarm.language.request import GenerateRequest, Opening, Sampling, is_json
from swarm.language.sampling import choose
from swarm.language.session import Session
from swarm.language.steps import (
    Alive,
    Failed,
    Forward,
    Full,
    Gone,
    Holds,
    MissingTokens,
    Moved,
    PassedRequest,
    Stale,
    Token,
    TokenStep,
    chunk_end,
    chunk_start,
    decode_words,
    encode_words,
)
from swarm.language.text import GeneratedText
from swarm.language.turns import plan
from swarm.wire.maps import pack

LOGITS = np.random.default_rng(0).normal(size=500).astype(np.float32)

# --- choosing -----------------------------------------------------------------------------


def test_without_temperature_the_likeliest_token_is_chosen() -> None:
    assert choose(LOGITS, Sampling(), [1, 2]).token == int(LOGITS.argmax())
    for temperature in (5e-324, 1e-320, 1e-308, 1e-300, 1e-101, 1e-50):
        coldest = Sampling(temperature=temperature, seed=3)
        assert choose(LOGITS * 1e4, coldest, [1, 2]).token == int(LOGITS.argmax())


def test_a_draw_depends_on_seed_and_position_alone() -> None:
    sampling = Sampling(temperature=1.0, seed=3)
    tokens = [choose(LOGITS, sampling, list(range(length))).token for length in range(1, 60)]
    again = [choose(LOGITS.copy(), sampling, [7] * length).token for length in range(1, 60)]
    other = [choose(LOGITS, Sampling(temperature=1.0, seed=4), [7] * n).token for n in range(1, 60)]
    assert tokens == again
    assert tokens != other
    assert len(set(tokens)) > 20


def test_draws_follow_the_probabilities() -> None:
    logits = np.log(np.array([0.5, 0.3, 0.2], np.float32))
    drawn = [
        choose(logits, Sampling(temperature=1.0, seed=seed), [0]).token for seed in range(4000)
    ]
    shares = np.bincount(drawn, minlength=3) / len(drawn)
    assert np.allclose(shares, [0.5, 0.3, 0.2], atol=0.03)


@given(
    allowed=st.sets(st.integers(0, 499), min_size=1),
    temperature=st.sampled_from([0.0, 0.5, 2.0]),
    top_p=st.sampled_from([0.1, 0.9, 1.0]),
    top_k=st.sampled_from([0, 1, 7]),
    seed=st.integers(0, 1 << 40),
)
def test_only_what_is_allowed_is_chosen_as_if_nothing_else_were_possible(
    allowed: set[int], temperature: float, top_p: float, top_k: int, seed: int
) -> None:
    sampling = Sampling(temperature, top_p, top_k, seed=seed, alternatives=1)
    ids = np.array(sorted(allowed))
    chosen = choose(LOGITS, sampling, [1, 2], ids)
    assert chosen.token in allowed
    alone = choose(LOGITS[ids], sampling, [1, 2])
    assert ids[alone.token] == chosen.token
    scores = LOGITS.astype(np.float64)
    assert chosen.logprob == pytest.approx(scores[chosen.token] - np.log(np.exp(scores).sum()))


def test_top_k_and_top_p_leave_the_likeliest_only() -> None:
    best = set(np.argsort(-LOGITS)[:3])
    top_k = {
        choose(LOGITS, Sampling(temperature=5.0, top_k=3, seed=n), [0]).token for n in range(200)
    }
    assert top_k == best
    logits = np.log(np.array([0.1, 0.6, 0.25, 0.05], np.float32))
    top_p = {
        choose(logits, Sampling(temperature=1.0, top_p=0.7, seed=n), [0]).token for n in range(300)
    }
    assert top_p == {1, 2}


def test_a_penalty_makes_tokens_that_occurred_less_likely() -> None:
    logits = np.array([2.0, 1.9, -1.0], np.float32)
    assert choose(logits, Sampling(repetition_penalty=1.5), [0]).token == 1
    assert choose(logits, Sampling(repetition_penalty=1.5), [2]).token == 0


def test_log_probabilities_are_those_of_the_softmax() -> None:
    chosen = choose(LOGITS, Sampling(alternatives=2), [0])
    expected = np.log(np.exp(LOGITS.astype(float)) / np.exp(LOGITS.astype(float)).sum())
    order = np.argsort(-LOGITS)
    assert chosen.logprob == pytest.approx(expected[order[0]])
    assert [token for token, _ in chosen.alternatives] == list(order[:2])


# --- text ---------------------------------------------------------------------------------


def decode(ids: object) -> str:
    return bytes(ids).decode("utf-8", "replace")  # type: ignore[call-overload]


@given(st.text(max_size=40), st.lists(st.text(min_size=1, max_size=4), max_size=3))
@example("aab", ["ab"])
@example("€", [])
def test_pieces_make_the_text_up_to_its_first_stop_string(text: str, stops: list[str]) -> None:
    stream = GeneratedText(decode, stops)
    pieces = [stream.push(byte) for byte in text.encode()]
    whole = "".join(pieces) + stream.rest()
    found = [at for stop in stops if (at := text.find(stop)) >= 0]
    ends = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
    assert stream.stopped == bool(found)
    if not found:
        assert whole == text
    else:  # the stop string that is complete first; of several at once the longest
        first = min(end for end, _ in ends)
        assert whole == text[: min(begin for end, begin in ends if end == first)]


# --- messages -----------------------------------------------------------------------------

OPENING = Opening(
    "_INBOX.a.1",
    "_INBOX.b.2",
    3,
    9,
    Sampling(temperature=0.5, first=0),
    ("x",),
    (2,),
    True,
    "{}",
    2,
)


def steps() -> Forward:
    rows = np.arange(12, dtype=np.float32).reshape(4, 3)
    return Forward(
        "_INBOX.c.3",
        [
            TokenStep("s1", 2, 0, 5, (1, 2, 3), rows[:3], OPENING, {3: "n-1"}),
            TokenStep("s2", 0, 7, 8, (4,), rows[3:]),
        ],
        {"s3": 1},
        ["s4"],
        True,
        [PassedRequest(GenerateRequest(session="s5", prompt=(1,)), "_INBOX.d.4")],
        True,
    )


def joined(message: Forward) -> bytes:
    return b"".join(bytes(part) for part in message.parts())


def test_steps_come_as_they_were_sent() -> None:
    sent, come = steps(), Forward.decode(joined(steps()))
    for one, other in zip(sent.steps, come.steps, strict=True):
        assert np.array_equal(one.rows, other.rows)  # type: ignore[arg-type]
        one.rows = other.rows = None
    assert come == sent


def test_large_messages_go_in_pieces_of_the_same_steps() -> None:
    pieces = steps().pieces(300)
    assert [step.session for piece in pieces for step in piece.steps] == ["s1", "s2"]
    assert [bool(piece.probe) for piece in pieces] == [True, False]
    assert all(piece.follow for piece in pieces)


def test_only_steps_behind_a_token_that_came_back_may_overtake_what_went_before() -> None:
    decodes = [TokenStep("a", 0, 30, 31, (7,)), TokenStep("b", 0, 9, 10, (7,))]
    assert Forward("_INBOX.a.1", decodes).is_alone
    assert not Forward("_INBOX.a.1", [*decodes, TokenStep("c", 0, 0, 2, (1, 2))]).is_alone
    assert not Forward("_INBOX.a.1", [*decodes, TokenStep("c", 0, 1, 3, (2,))]).is_alone
    assert not Forward("_INBOX.a.1", decodes, left=["c"]).is_alone
    assert not Forward("_INBOX.a.1", decodes, closed={"c": 1}).is_alone


def test_words_come_as_they_were_said() -> None:
    words = [
        Alive(),
        MissingTokens("s", 4),
        Holds("s", 5),
        Token("s", 5, 6, "stop"),
        Moved("s", 2, "n-2"),
        Stale("s", 3),
        Full("s"),
        Gone("s"),
        Alive(),
    ]
    words += [Failed("s", "why"), Failed("s", "why", Status.INVALID_ARGUMENT)]
    assert decode_words(encode_words("n-1", words)) == ("n-1", words)
    for word in (["stale", "s", 3, 4], ["full"], ["token", "s", 1, 2], ["unknown", "s"]):
        with pytest.raises(DecodeError, match="unknown word"):
            decode_words(pack({"v": 1, "node": "n-1", "words": [word]}))


@given(st.data())
def test_no_mutation_of_a_message_raises_anything_but_its_own_error(data: st.DataObject) -> None:
    whole = joined(steps())
    spot = data.draw(st.integers(0, len(whole) - 1))
    byte = bytes([data.draw(st.integers(0, 255))])
    cut = data.draw(st.integers(0, len(whole)))
    for mutated in (whole[:spot] + byte + whole[spot + 1 :], whole[:cut]):
        with contextlib.suppress(DecodeError):
            Forward.decode(mutated)
    with contextlib.suppress(DecodeError):
        decode_words(data.draw(st.binary(max_size=60)))


@pytest.mark.parametrize(
    "doc",
    [
        {},
        {"prompt": []},
        {"prompt": [-1]},
        {"prompt": [1], "text": "a"},
        {"prompt": [1], "max_tokens": 0},
        {"prompt": [1], "temperature": float("nan")},
        {"prompt": [1], "top_p": 2},
        {"prompt": [1], "stop": [""]},
        {"prompt": [1], "session": "a.b"},
        {"prompt": [1], "v": 2},
    ],
)
def test_a_bad_request_is_refused_by_name(doc: dict[str, object]) -> None:
    with pytest.raises(InvalidArgument):
        GenerateRequest.decode(pack(doc))
    with pytest.raises(InvalidArgument):
        GenerateRequest.decode(json.dumps(doc).encode())


def test_a_request_comes_as_it_was_sent() -> None:
    request = GenerateRequest(session="s", prompt=(1, 70000), stops=("a",), made=(4,), epoch=2)
    assert GenerateRequest.decode(request.encode()) == request


# --- beginnings ---------------------------------------------------------------------------

SIZE = 4
BEGINNINGS = st.lists(st.lists(st.integers(0, 1), max_size=40), max_size=12)


@given(BEGINNINGS, st.lists(st.integers(0, 1), max_size=40))
def test_what_a_node_tells_of_its_beginnings_is_bounded_and_true(
    held: list[list[int]], wanted: list[int]
) -> None:
    told = marks.tell(marks.chain(ids, SIZE) for ids in held)
    assert len(told) <= marks.MOST * marks.BYTES <= MOST_MARKS
    chunks = marks.known(told, marks.chain(wanted, SIZE))
    assert chunks == 0 or any(ids[: chunks * SIZE] == wanted[: chunks * SIZE] for ids in held)


def test_a_system_prompt_and_a_whole_chat_are_found_among_eight_others() -> None:
    system = list(range(13 * SIZE))
    chats = [[*system, *[number] * (3 * SIZE)] for number in range(100, 108)]
    told = marks.tell(marks.chain(ids, SIZE) for ids in chats)
    for chat in chats:
        assert marks.known(told, marks.chain([*chat, *range(40)], SIZE)) == 16
    assert marks.known(told, marks.chain([*system, *range(200, 240)], SIZE)) == 13
    one = marks.tell([marks.chain(chats[0], SIZE)])
    assert marks.known(one, marks.chain([*system, *range(200, 240)], SIZE)) == 12


def test_a_beginning_draws_sessions_to_nodes_with_room_only() -> None:
    def node(name: str, sessions: int, priority: int = 0, slots: int = 8) -> SlotCandidate:
        return SlotCandidate(name, priority, False, sessions, slots)

    def able(*nodes: SlotCandidate) -> list[str]:
        return [each.node for each in with_room(nodes, {"shunned"})]

    assert able(node("a", 5), node("b", 1), node("c", 6)) == ["b", "a"]
    assert able(node("a", 8), node("fallback", 0, 2), node("shunned", 0)) == []
    assert able(node("old", 0, slots=0), node("a", 1, slots=2)) == ["a"]


# --- turns --------------------------------------------------------------------------------


def test_a_turn_runs_neighbouring_slots_together_and_one_chunk_beside_them() -> None:
    def ready(slot: int, tokens: int) -> tuple[Session, TokenStep]:
        session = Session(f"s{slot}", OPENING, 0, slot, 0.0)
        return session, TokenStep(session.key, 0, 0, tokens, tuple(range(tokens)))

    runs = plan([ready(3, 1), ready(0, 9), ready(5, 7), ready(2, 1), ready(6, 1)])
    assert [(run.slot, len(run.steps)) for run in runs] == [(2, 2), (6, 1), (0, 1)]


@given(st.integers(1, 4096), st.integers(1, 2000), st.integers(0, 2000))
def test_whoever_cuts_a_prompt_cuts_it_in_the_same_places(
    width: int, prompt: int, position: int
) -> None:
    start = chunk_start(position, prompt, width)
    assert start <= position < chunk_end(start, prompt, width)
    assert chunk_end(position, prompt, width) == chunk_end(start, prompt, width)


# --- clients ------------------------------------------------------------------------------


def token(seq: int, **more: object) -> bytes:
    return pack({"v": 1, "session": "s", "seq": seq, "token": 10 + seq} | more)


def accepted(**more: object) -> bytes:
    return pack({"v": 1, "session": "s", "accepted": True} | more)


def test_a_client_takes_each_token_once_and_asks_again_for_a_lost_one() -> None:
    follower = Follower(GenerateRequest(session="s", prompt=(1,)), deadline=10.0)
    assert follower.due(0.0) is not None
    follower.take(accepted(node="n-1", epoch=0), b"", 0.1)
    assert follower.due(0.1) is None
    taken = [follower.take(token(seq), b"", 0.2) for seq in (0, 0, 2)]
    assert [one.seq for one in taken if one] == [0]
    again = follower.due(0.2)
    assert again is not None
    assert (again.made, again.epoch) == ((10,), 1)
    usage = {"prompt_tokens": 1, "completion_tokens": 2}
    last = follower.take(token(1, finish="length", usage=usage), b"", 0.3)
    assert last is not None
    assert last.usage is not None
    assert follower.done


@given(st.floats(0, 1e6))
@example(8471.3)
def test_no_request_asks_for_more_than_its_budget(now: float) -> None:
    request = GenerateRequest(session="s", prompt=(1,), budget=600.0)
    asked = Follower(request, deadline=now + 600.0).due(now)
    assert asked is not None
    assert asked.budget <= 600.0


def test_a_client_that_nobody_answers_asks_until_its_budget_ends() -> None:
    follower = Follower(GenerateRequest(session="s", prompt=(1,)), deadline=1.0)
    now, asked = 0.0, 0
    while not follower.done:
        asked += follower.due(now) is not None
        follower.take(b"", b"503", now)
        now = follower.wake(now) + 1e-6
    assert 3 < asked < 30
    assert str(follower.error).startswith("no node serves")


def test_who_answers_is_known_even_where_that_is_told_behind_the_last_token() -> None:
    follower = Follower(GenerateRequest(session="s", text="Once", max_tokens=1), deadline=10.0)
    follower.due(0.0)
    last = token(0, finish="length")
    assert follower.take(last, b"", 0.1) is not None
    assert follower.done
    assert not follower.accepted
    for data in (b"no document", b"", pack({"error": "late", "status": "INTERNAL"}), last):
        assert follower.take(data, b"", 0.2) is None
    assert follower.take(accepted(node="n", tokenizer="t"), b"", 0.3) is None
    assert (follower.accepted, follower.tokenizer, follower.error) == (True, "t", None)


@given(st.text())
def test_whatever_is_typed_in_place_of_a_request_is_told_the_form_in_json(text: str) -> None:
    data = text.encode("utf-8", "ignore")
    assert is_json(data)
    with pytest.raises(InvalidArgument, match='"text"'):
        GenerateRequest.decode(data)


@pytest.mark.parametrize("reply", ["swarm.m.status.a", "$JS.ACK.x", "$KV.a.b", "swarm.other.x"])
def test_a_node_tells_no_tokens_on_a_subject_of_the_mesh(reply: str) -> None:
    for field in ("reply", "head"):
        doc = {"reply": "_INBOX.a", "head": "_INBOX.b"} | {field: reply}
        with pytest.raises(DecodeError, match=field):
            Opening.read(doc)
    asked = Forward(
        "_INBOX.b", asks=[PassedRequest(GenerateRequest(prompt=(1,), max_tokens=1), reply)]
    )
    with pytest.raises(DecodeError):
        Forward.decode(b"".join(asked.parts()))
