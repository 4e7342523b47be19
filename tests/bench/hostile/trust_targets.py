"""Parsers of keys, credentials, seals, signatures and checkpoints."""

from __future__ import annotations

import base64
import binascii
import json
import tempfile
import zlib
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from bench.hostile.target import FLOOR, Case, Target, json_objects
from nodes.connection.checkpoint import MAGIC, Checkpoint
from swarm.errors import BadSignature, InvalidArgument, SwarmError, Untrusted
from swarm.link.access import read_credentials
from swarm.security.attestation import attest, attested_key
from swarm.security.authority.authority import Authority
from swarm.security.authority.claims import credentials_text
from swarm.security.authority.keys import AuthorityKey
from swarm.security.identity import Identity
from swarm.security.nkey import ACCOUNT, decode_public, decode_seed, encode_public, encode_seed
from swarm.security.sealed import ModelKey
from swarm.security.signed_entries import HEADER, Verifier, sign_entry
from swarm.security.trusted_keys import AllowList, TrustedKeys
from swarm.wire.maps import ZERO_COPY_FROM, pack

_ONE = Identity(b"\x11" * 32)
_STORE, _ENTRY = "swarm-default-config", "serve.digits"


def _folder(stack: ExitStack) -> Path:
    return Path(stack.enter_context(tempfile.TemporaryDirectory()))


def _in_file(stack: ExitStack, read: Callable[[Path], object]) -> Callable[[bytes], object]:
    """A parser of a file's bytes."""
    path = _folder(stack) / "file"
    path.touch(0o600)

    def parse_file(data: bytes) -> object:
        path.write_bytes(data)
        return read(path)

    return parse_file


def _open_nkeys(stack: ExitStack) -> Case:
    def read(data: bytes) -> None:
        text = data.decode("latin-1")
        try:
            decode_public(text)
        except InvalidArgument:
            decode_seed(text)

    def checked(body: bytes) -> bytes:
        """With a checksum that is right."""
        sum_ = binascii.crc_hqx(body, 0).to_bytes(2, "little")
        return base64.b32encode(body + sum_).rstrip(b"=")

    texts = (_ONE.public, encode_seed(b"\x01" * 32), encode_public(b"\x02" * 32, ACCOUNT))
    padded = (text + "=" * (-len(text) % 8) for text in texts)
    return Case(tuple(base64.b32decode(text)[:-2] for text in padded), read, checked)


def _open_identity(stack: ExitStack) -> Case:
    seeds = (encode_seed(b"\x01" * 32).encode() + b"\n",)

    def read(path: Path) -> None:
        try:
            Identity.load(path)
        except SwarmError:
            AuthorityKey.read(path, ACCOUNT)

    return Case(seeds, _in_file(stack, read))


def _open_credentials(stack: ExitStack) -> Case:
    key = AuthorityKey("U", b"\x03" * 32)
    claims = {"sub": key.public, "name": "camera-1", "exp": 1_900_000_000, "nats": {"version": 2}}

    def jwt(body: bytes) -> str:
        return ".".join(
            base64.urlsafe_b64encode(part).rstrip(b"=").decode()
            for part in (b'{"typ":"JWT","alg":"ed25519-nkey"}', body, b"\x00" * 64)
        )

    def file(body: bytes) -> bytes:
        return credentials_text(jwt(body), key.seed).encode()

    return Case(
        (json.dumps(claims).encode(),),
        _in_file(stack, lambda path: read_credentials(str(path))),
        file,
        declared=json_objects,
    )


def _open_lists(stack: ExitStack) -> Case:
    def read(path: Path) -> None:
        TrustedKeys([path]).listed()
        AllowList.read(path)

    text = f"# hall 3\n{_ONE.public}  camera-1\n{_ONE.public} b # c\n".encode()
    return Case((text,), _in_file(stack, read), declared=lambda m: 24 * len(m))


def _open_model_key(stack: ExitStack) -> Case:
    def read(path: Path) -> None:
        ModelKey.of(f"file:{path}")

    return Case((b"ab" * 32 + b"\n", base64.b64encode(b"\x05" * 32)), _in_file(stack, read))


def _open_authority(stack: ExitStack) -> Case:
    folder = _folder(stack) / "auth"
    made = Authority.create(folder, "default")
    made.add("camera-1", "edge", ["digits"])
    path = folder / "authority.json"
    seed = path.read_bytes()

    def read(data: bytes) -> None:
        path.write_bytes(data)
        Authority(folder)

    return Case((seed,), read, declared=json_objects)


def _open_sealed(stack: ExitStack) -> Case:
    key = ModelKey(b"\x05" * 32)
    seeds = tuple(b"".join(key.seal([bytes(size)])) for size in (0, 100, 5000))
    return Case(seeds, lambda data: key.unseal(data, "stage-1.onnx"))


def _open_entries(stack: ExitStack) -> Case:
    trusted = _folder(stack) / "trusted"
    trusted.write_text(_ONE.public + "\n")
    trusted.chmod(0o600)
    verifier = Verifier(TrustedKeys([trusted]))
    value = b'{"serve":[{"version":"1","share":100}]}'
    signature = sign_entry(_ONE, _STORE, _ENTRY, 7, value).text()
    seeds = (
        f"NATS/1.0\r\n{HEADER}: {signature}\r\nNats-Sequence: 7\r\n\r\n".encode(),
        f"NATS/1.0\r\nBefore: x\r\n{HEADER}: {signature}\r\n\r\n".encode(),
    )
    return Case(seeds, lambda data: verifier.check(_STORE, _ENTRY, value, data))


def _open_attestation(stack: ExitStack) -> Case:
    public, signature = attest(_ONE, "default", "node-a")
    assert isinstance(public, str)
    assert isinstance(signature, bytes)

    def read(data: bytes) -> None:
        value = [data[:56].decode("latin-1"), data[56:]]
        if attested_key(value, "default", "node-a") is None:
            raise BadSignature("nothing is proved")

    return Case((public.encode() + signature,), read)


def _open_checkpoint(stack: ExitStack) -> Case:
    folder = _folder(stack)
    checkpoint = Checkpoint(str(folder), "default", "shard-1")
    assert checkpoint.path is not None
    path = checkpoint.path

    def with_checksum(body: bytes) -> bytes:
        return MAGIC + zlib.crc32(body).to_bytes(4, "big") + body

    def read(data: bytes) -> None:
        path.write_bytes(data)
        if not checkpoint.load():
            raise Untrusted("ignored, as it should be")

    state = {"generation": 7, "seen": {"a": 1, "b": [1, 2, b"\x00" * 40]}, "peers": ["x", "y"]}
    return Case((pack(state),), read, with_checksum, floor=FLOOR + 96 * ZERO_COPY_FROM)


TARGETS = (
    Target("nkeys", "bytes", _open_nkeys, 0.5),
    Target("identity-file", "bytes", _open_identity, 0.2),
    Target("credentials-file", "json", _open_credentials, 0.3),
    Target("key-lists", "bytes", _open_lists, 0.2),
    Target("model-key", "bytes", _open_model_key, 0.2),
    Target("authority-file", "json", _open_authority, 0.2),
    Target("sealed-file", "bytes", _open_sealed, 0.5),
    Target("signed-entries", "bytes", _open_entries, 0.5),
    Target("attestation", "bytes", _open_attestation, 0.2),
    Target("checkpoints", "msgpack", _open_checkpoint, 0.3),
)
