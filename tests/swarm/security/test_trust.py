"""Identities, signatures with a purpose, attestations, and the list of who is allowed."""

from __future__ import annotations

import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.errors import BadSignature, InvalidArgument
from swarm.security.attestation import attest, attested_key
from swarm.security.identity import Identity
from swarm.security.nkey import decode_public, decode_seed, encode_public, encode_seed
from swarm.security.signing import sign, verify
from swarm.security.trusted_keys import AllowList

# The pair of the NATS documentation ("Authentication with NKeys").
DOCUMENTED_SEED = "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY"
DOCUMENTED_PUBLIC = "UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4"


def test_seed_and_public_key_have_the_form_that_nats_gives_them() -> None:
    seed = decode_seed(DOCUMENTED_SEED)
    assert Identity(seed).public == DOCUMENTED_PUBLIC
    assert encode_seed(seed) == DOCUMENTED_SEED
    assert encode_public(decode_public(DOCUMENTED_PUBLIC)) == DOCUMENTED_PUBLIC


@given(st.integers(0, 55), st.sampled_from("ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"))
def test_a_public_key_with_one_wrong_character_is_refused(at: int, letter: str) -> None:
    wrong = DOCUMENTED_PUBLIC[:at] + letter + DOCUMENTED_PUBLIC[at + 1 :]
    if wrong != DOCUMENTED_PUBLIC:
        with pytest.raises(InvalidArgument):
            decode_public(wrong)


@pytest.mark.parametrize("text", ["", "U", DOCUMENTED_SEED, DOCUMENTED_PUBLIC + "A", "é" * 56])
def test_a_text_that_is_no_public_key_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument):
        decode_public(text)


def test_a_refused_seed_is_not_named_in_the_error() -> None:
    with pytest.raises(InvalidArgument) as refused:
        decode_seed(DOCUMENTED_SEED[:-1] + "A")
    assert DOCUMENTED_SEED[2:20] not in str(refused.value)


def test_an_identity_is_made_once_in_a_file_of_its_user_alone(tmp_path: Path) -> None:
    path = tmp_path / "made" / "identity.nk"
    first, again = Identity.load_or_make(path), Identity.load_or_make(path)
    assert first.public == again.public
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert [entry.name for entry in path.parent.iterdir()] == ["identity.nk"]


def test_processes_that_start_at_once_make_one_identity(tmp_path: Path) -> None:
    path = tmp_path / "identity.nk"
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: Identity.load_or_make(path).public, range(16)))
    assert len(set(made)) == 1


def test_an_identity_that_others_may_read_is_refused_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "identity.nk"
    Identity.load_or_make(path)
    path.chmod(0o640)
    with pytest.raises(InvalidArgument, match="chmod 600"):
        Identity.load_or_make(path)


@pytest.mark.parametrize("content", [b"", b"SUnonsense", b"\xff" * 9000])
def test_a_file_that_holds_no_identity_is_refused_and_stays(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "identity.nk"
    path.touch(mode=0o600)
    path.write_bytes(content)
    with pytest.raises(InvalidArgument, match=r"identity\.nk"):
        Identity.load_or_make(path)
    assert path.read_bytes() == content


def test_a_folder_that_cannot_be_made_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InvalidArgument, match="file"):
        Identity.load_or_make(tmp_path / "file" / "identity.nk")


def test_a_secret_does_not_show_in_the_text_of_an_identity() -> None:
    identity = Identity(decode_seed(DOCUMENTED_SEED))
    assert repr(identity) == f"Identity({DOCUMENTED_PUBLIC})"


@given(st.binary(max_size=200), st.integers(0, 511))
def test_a_signature_holds_for_its_bytes_its_purpose_and_its_key_alone(
    payload: bytes, bit: int
) -> None:
    ours, theirs = Identity(b"\1" * 32), Identity(b"\2" * 32)
    signature = sign(ours, "purpose 1", payload)
    verify(ours.public, "purpose 1", payload, signature)
    flipped = bytearray(signature)
    flipped[bit // 8] ^= 1 << bit % 8
    for public, context, data, given_signature in (
        (theirs.public, "purpose 1", payload, signature),
        (ours.public, "purpose 2", payload, signature),
        (ours.public, "purpose 1", payload + b"\0", signature),
        (ours.public, "purpose 1", payload, bytes(flipped)),
        (ours.public, "purpose 1", payload, signature[:-1]),
        (ours.public, "purpose 1", payload, b""),
    ):
        with pytest.raises(BadSignature):
            verify(public, context, data, given_signature)


def test_context_and_payload_cannot_trade_bytes() -> None:
    identity = Identity(b"\1" * 32)
    with pytest.raises(BadSignature):
        verify(identity.public, "ab", b"c", sign(identity, "a", b"bc"))


@pytest.mark.parametrize("context", ["", "x" * 65, "a\nb", "é"])
def test_a_context_that_is_no_short_printable_text_is_refused(context: str) -> None:
    with pytest.raises(InvalidArgument):
        sign(Identity(b"\1" * 32), context, b"")


def test_an_attestation_binds_one_key_to_one_node_of_one_mesh() -> None:
    identity, other = Identity(b"\1" * 32), Identity(b"\2" * 32)
    value = attest(identity, "default", "node-1")
    assert attested_key(value, "default", "node-1") == identity.public
    assert attested_key(tuple(value), "default", "node-1") == identity.public
    assert attested_key(value, "default", "node-2") is None
    assert attested_key(value, "other", "node-1") is None
    assert attested_key([other.public, value[1]], "default", "node-1") is None
    for nonsense in (None, [], "x", [1, 2], [identity.public], ["U" * 56, b"\0" * 64]):
        assert attested_key(nonsense, "default", "node-1") is None


def test_a_list_of_allowed_keys_allows_these_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "allowed"
    path.write_text(f"# hall 3\n\n{DOCUMENTED_PUBLIC} camera 1 # north\n")
    allowed = AllowList.read(path)
    assert allowed.allows(DOCUMENTED_PUBLIC)
    assert allowed.keys == {DOCUMENTED_PUBLIC: "camera 1"}
    assert not allowed.allows(Identity(b"\1" * 32).public)


def test_without_a_list_everybody_is_allowed_and_with_an_empty_one_nobody(tmp_path: Path) -> None:
    (tmp_path / "nobody").touch()
    assert AllowList.read("").allows(DOCUMENTED_PUBLIC)
    assert not AllowList.read(tmp_path / "nobody").allows(DOCUMENTED_PUBLIC)


def test_a_list_with_a_bad_line_is_refused_with_its_number(tmp_path: Path) -> None:
    path = tmp_path / "allowed"
    path.write_text(f"{DOCUMENTED_PUBLIC}\nUBAD\n")
    with pytest.raises(InvalidArgument, match="line 2"):
        AllowList.read(path)
    with pytest.raises(InvalidArgument, match="missing"):
        AllowList.read(tmp_path / "missing")


def test_cryptography_is_loaded_only_by_who_signs_or_verifies() -> None:
    code = (
        "import sys, swarm, swarm.security.signing, swarm.security.trusted_keys;"
        "import swarm.fleet.advertised;"
        "print('cryptography' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert done.stdout.split() == ["False"], done.stderr
