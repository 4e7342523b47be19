"""Signed values of a key store: what a verifier takes, and what it refuses unread."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.errors import BadKey, Untrusted
from swarm.security.identity import Identity
from swarm.security.signed_entries import (
    HEADER,
    Highest,
    Signature,
    Verifier,
    sign_entry,
)
from swarm.security.trusted_keys import (
    TrustedKeys,
    distrust,
    own_key,
    own_key_file,
    own_trust_file,
    trust,
)

SIGNER = Identity.make()
STORE, KEY = "swarm-default-config", "serve.digits"


def headers(signature: Signature | str) -> bytes:
    text = signature if isinstance(signature, str) else signature.text()
    return f"NATS/1.0\r\nBefore: x\r\n{HEADER}: {text}\r\nNats-Sequence: 7\r\n\r\n".encode()


def signed(counter: int, value: bytes, store: str = STORE, key: str = KEY) -> bytes:
    return headers(sign_entry(SIGNER, store, key, counter, value))


@pytest.fixture
def verifier(tmp_path: Path) -> Verifier:
    trust(SIGNER.public, "the operator", tmp_path / "trusted")
    return Verifier(TrustedKeys([tmp_path / "trusted"]))


def test_a_signed_value_is_taken_again_and_again(verifier: Verifier) -> None:
    for _ in range(2):
        assert verifier.check(STORE, KEY, b"value", signed(5, b"value")).counter == 5
    assert verifier.check(STORE, KEY, b"newer", signed(6, b"newer")).public == SIGNER.public


@pytest.mark.parametrize(
    "lines",
    [
        b"",
        b"NATS/1.0\r\n\r\n",
        headers(""),
        headers("1 5"),
        headers(f"2 5 {SIGNER.public} {'A' * 86}=="),
        headers(f"1 -5 {SIGNER.public} {'A' * 86}=="),
        headers(f"1 9999999999999999999 {SIGNER.public} {'A' * 86}=="),
    ],
)
def test_a_value_without_a_signature_is_refused(verifier: Verifier, lines: bytes) -> None:
    with pytest.raises(Untrusted, match="unsigned"):
        verifier.check(STORE, KEY, b"value", lines)


@given(data=st.data(), value=st.binary(max_size=64))
def test_no_other_value_store_key_or_counter_has_that_signature(
    data: st.DataObject, value: bytes
) -> None:
    good = {"store": STORE, "key": KEY, "counter": 5, "value": value}
    other = {
        "store": st.text("abc.-", max_size=20),
        "key": st.text("abc.-", max_size=20),
        "counter": st.integers(0, 2**63 - 1),
        "value": st.binary(max_size=64),
    }
    field = data.draw(st.sampled_from(sorted(other)))
    wrong = good | {field: data.draw(other[field].filter(lambda drawn: drawn != good[field]))}
    signature = sign_entry(SIGNER, STORE, KEY, 5, value)
    moved = Signature(signature.public, int(str(wrong["counter"])), signature.signature)
    checks = Verifier(TrustedKeys([]), own=SIGNER.public)
    assert isinstance(wrong["value"], bytes)
    with pytest.raises(Untrusted, match="altered"):
        checks.check(str(wrong["store"]), str(wrong["key"]), wrong["value"], headers(moved))
    checks.check(STORE, KEY, value, headers(signature))


def test_an_unknown_signer_is_named_with_the_command_that_trusts_it(verifier: Verifier) -> None:
    stranger = Identity.make()
    lines = headers(sign_entry(stranger, STORE, KEY, 5, b"value"))
    with pytest.raises(Untrusted, match=f"swarm keys trust {stranger.public}"):
        verifier.check(STORE, KEY, b"value", lines)


def test_an_older_value_is_refused_and_a_newly_signed_return_is_taken(verifier: Verifier) -> None:
    verifier.check(STORE, KEY, b"version 2", signed(6, b"version 2"))
    with pytest.raises(Untrusted, match="older"):
        verifier.check(STORE, KEY, b"version 1", signed(5, b"version 1"))
    verifier.check(STORE, KEY, b"version 1", signed(7, b"version 1"))
    other = "serve.other"
    verifier.check(STORE, other, b"", signed(1, b"", key=other))


def test_a_refused_value_does_not_raise_the_counter(verifier: Verifier) -> None:
    forged = Signature(SIGNER.public, 2**63 - 1, b"\0" * 64)
    with pytest.raises(Untrusted, match="altered"):
        verifier.check(STORE, KEY, b"value", headers(forged))
    verifier.check(STORE, KEY, b"value", signed(5, b"value"))


@given(st.lists(st.integers(0, 50)))
def test_the_counters_that_are_taken_never_fall_across_restarts(counters: list[int]) -> None:
    kept: dict[str, object] = {"foreign": "x", "negative": -1}
    taken: list[int] = []
    for counter in counters:
        highest = Highest(kept, kept.update)
        checks = Verifier(TrustedKeys([]), highest, own=SIGNER.public)
        try:
            checks.check(STORE, KEY, b"", signed(counter, b""))
        except Untrusted:
            assert counter < max(taken)
        else:
            taken.append(counter)
    assert taken == sorted(taken)


def test_a_list_that_changes_is_read_again_by_who_has_it_open(tmp_path: Path) -> None:
    file, late = tmp_path / "trusted", Identity.make().public
    trust(SIGNER.public, "first", file)
    keys = TrustedKeys([file])
    assert not keys.allows(late)
    trust(late, "second\nline", file)
    assert keys.listed() == {SIGNER.public: "first", late: "second line"}
    assert distrust(late, file)
    assert not distrust(late, file)
    assert not keys.allows(late)
    assert keys.allows(SIGNER.public)


def test_the_users_own_list_may_come_later_and_any_other_must_be_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    keys = TrustedKeys.of("")
    assert not keys.allows(SIGNER.public)
    mine = own_key()
    assert keys.allows(mine.public)
    assert own_key().public == mine.public
    assert own_key_file().stat().st_mode & 0o777 == 0o600
    assert len(own_trust_file().read_text().splitlines()) == 1
    with pytest.raises(BadKey, match="does not exist"):
        TrustedKeys.of(f"{own_trust_file()},{tmp_path / 'typo'}")


def test_a_list_that_others_may_write_to_or_that_holds_no_keys_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "trusted"
    trust(SIGNER.public, "", file)
    os.chmod(file, 0o666)
    with pytest.raises(BadKey, match="chmod go-w"):
        TrustedKeys([file])
    os.chmod(file, 0o600)
    keys = TrustedKeys([file])
    file.write_text("SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY\n")
    with pytest.raises(Untrusted, match="line 1"):
        Verifier(keys).check(STORE, KEY, b"", signed(1, b""))


def test_a_key_file_of_the_wrong_kind_is_named_with_a_remedy(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    with pytest.raises(BadKey, match=f"swarm keys new {missing}"):
        own_key(missing)
    public = tmp_path / "public"
    public.write_text(SIGNER.public)
    public.chmod(0o600)
    with pytest.raises(BadKey, match="no seed"):
        own_key(public)
    public.chmod(0o644)
    with pytest.raises(BadKey, match="chmod 600"):
        own_key(public)
