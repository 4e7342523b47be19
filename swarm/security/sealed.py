"""Artifacts that are encrypted wherever they lie: AES-256-GCM in chunks of 1 MiB.

    header    "SWARMSL1" | key id 8 | nonce 12 | wrapped data key 48 | prefix 7
    chunks    each 1 MiB of plaintext and a tag of 16 bytes; the last one is shorter, or empty

The STREAM construction (Hoang, Reyhanitabar, Rogaway, Vizár: "Online Authenticated-Encryption and
its Nonce-Reuse Misuse-Resistance", 2015): the nonce of a chunk is prefix | counter u32 | last u8,
and the header is its associated data. So a chunk that is altered, left out, repeated, in another
place or from another artifact does not open, and neither does an artifact that ends early.

Each artifact has a data key of its own, wrapped by the model key (AES-256-GCM). The model key comes
from a file, the environment, or a command, which is the place for a KMS or a TPM.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import re
import shlex
import subprocess
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from swarm.errors import BadKey, BadSeal, InvalidArgument
from swarm.security.files import read_private

CHUNK = 1 << 20  # bytes of plaintext
COMMAND_TIMEOUT = 30.0  # seconds
LARGEST_KEY = 4096  # bytes of a key's text
_MAGIC = b"SWARMSL1"
_TAG, _NONCE, _PREFIX, _ID = 16, 12, 7, 8
_KEY = 32
_HEADER = len(_MAGIC) + _ID + _NONCE + _KEY + _TAG + _PREFIX
_MOST_CHUNKS = 2**32
_HEXADECIMAL = re.compile(rb"[0-9a-fA-F]{64}")


class ModelKey:
    """The key that wraps the data keys of artifacts."""

    def __init__(self, secret: bytes) -> None:
        """secret: 32 bytes. Raises `BadKey` for another length."""
        if len(secret) != _KEY:
            raise BadKey(f"a model key of {len(secret)} bytes; it has {_KEY}")
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        self._cipher = AESGCM(secret)
        self.id = hashlib.sha256(b"swarm model key\0" + secret).digest()[:_ID]

    @classmethod
    def of(cls, text: str, environment: Mapping[str, str] = os.environ) -> ModelKey | None:
        """From `file:PATH`, `env:NAME` or `command:CMD`, which hold or print 64 hexadecimal digits,
        or 32 bytes in base 64; None for "". Raises `BadKey`, which never names the key."""
        kind, colon, where = text.partition(":")
        if not text:
            return None
        if not colon or not where or kind not in ("file", "env", "command"):
            raise BadKey(
                "--model-key is file:PATH, env:NAME or command:CMD: "
                "`umask 077; openssl rand -hex 32 > model.key`, then file:model.key"
            )
        if kind == "file":
            try:
                found = read_private(where, LARGEST_KEY)
            except (OSError, InvalidArgument) as error:
                raise BadKey(f"the model key {where}: {error}") from None
        elif kind == "env":
            if not environment.get(where):
                raise BadKey(f"--model-key: the variable {where} is not set")
            found = environment[where].encode()
        else:
            found = _from_command(where)
        try:
            return cls(_decoded(found))
        except BadKey as error:
            raise BadKey(
                f"--model-key {kind}:{where if kind != 'command' else '…'}: {error}"
            ) from None

    def seal(self, plaintext: Iterable[bytes]) -> Iterator[bytes]:
        """The parts of an encrypted artifact, under a fresh data key. Raises `BadSeal` for one of
        more than 4 PiB."""
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        data_key, nonce, prefix = os.urandom(_KEY), os.urandom(_NONCE), os.urandom(_PREFIX)
        begin = _MAGIC + self.id
        header = begin + nonce + self._cipher.encrypt(nonce, data_key, begin) + prefix
        yield header
        cipher = AESGCM(data_key)
        for counter, (chunk, is_last) in enumerate(_chunked(plaintext)):
            if counter >= _MOST_CHUNKS:
                raise BadSeal("an artifact of more than 4 PiB is not encrypted")
            yield cipher.encrypt(_nonce_of(prefix, counter, is_last), chunk, header)

    def unseal(self, sealed: bytes | memoryview, title: str) -> bytes:
        """`unsealed`, as bytes."""
        return bytes(self.unsealed(sealed, title))

    def unsealed(self, sealed: bytes | memoryview, title: str) -> memoryview:
        """The plaintext of a whole encrypted artifact, named by `title` in errors.

        Raises `BadSeal` for bytes that this key does not open: of another key, altered, cut short,
        reordered. Nothing of them is returned then.
        """
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        view = memoryview(sealed)
        header = bytes(view[:_HEADER])
        if len(header) < _HEADER or not header.startswith(_MAGIC):
            raise BadSeal(f"{title} is no encrypted artifact, or was cut short: push it again")
        begin, rest = header[: len(_MAGIC) + _ID], header[len(_MAGIC) + _ID :]
        if begin != _MAGIC + self.id:
            raise BadSeal(
                f"{title} was encrypted with the model key {begin[len(_MAGIC) :].hex()}, and this "
                f"one is {self.id.hex()}: give that one by --model-key"
            )
        prefix = rest[-_PREFIX:]
        try:
            data_key = self._cipher.decrypt(rest[:_NONCE], rest[_NONCE:-_PREFIX], begin)
            cipher = AESGCM(data_key)
            body = view[_HEADER:]
            step = CHUNK + _TAG
            # The last chunk may be empty: it is a tag then. It is never missing.
            count = max(1, -(-len(body) // step))
            # NumPy asks for large pages: half of the time would go into taking small ones.
            plain = np.empty(max(0, len(body) - count * _TAG), np.uint8).data
            for counter in range(count):
                chunk = body[counter * step : (counter + 1) * step]
                nonce = _nonce_of(prefix, counter, counter == count - 1)
                place = plain[counter * CHUNK : (counter + 1) * CHUNK]
                if hasattr(cipher, "decrypt_into"):
                    cipher.decrypt_into(nonce, chunk, header, place)
                else:  # cryptography before 47
                    place[:] = cipher.decrypt(nonce, chunk, header)
        except (InvalidTag, ValueError, OverflowError):
            raise BadSeal(f"{title} was altered or cut short: push it again") from None
        return plain

    def __repr__(self) -> str:
        return f"ModelKey({self.id.hex()})"


def _nonce_of(prefix: bytes, counter: int, is_last: bool) -> bytes:
    return prefix + counter.to_bytes(4, "big") + bytes([is_last])


def _chunked(parts: Iterable[bytes]) -> Iterator[tuple[bytes, bool]]:
    """The same bytes in chunks of `CHUNK`, and whether each is the last one; one at least."""
    buffer = bytearray()
    for part in parts:
        buffer += part
        while len(buffer) > CHUNK:
            yield bytes(buffer[:CHUNK]), False
            del buffer[:CHUNK]
    yield bytes(buffer), True


def _decoded(text: bytes) -> bytes:
    """Raises `BadKey`."""
    text = text.strip()
    if _HEXADECIMAL.fullmatch(text):
        return bytes.fromhex(text.decode())
    try:
        decoded = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        decoded = b""
    if len(decoded) != _KEY:
        raise BadKey(
            "this is no model key: 64 hexadecimal digits, as `openssl rand -hex 32` prints"
        )
    return decoded


def _from_command(command: str) -> bytes:
    try:
        done = subprocess.run(
            shlex.split(command),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=COMMAND_TIMEOUT,
            check=False,
        )
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise BadKey(f"the command of --model-key: {error}") from None
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()[-200:]
        raise BadKey(f"the command of --model-key ended with {done.returncode}: {said}")
    return done.stdout[:LARGEST_KEY]
