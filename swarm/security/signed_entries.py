"""Signed values of a key store: desired state and manifests, with a counter that only grows.

The signature travels in a header of the stored message, beside the value, which stays plain JSON:

    Swarm-Signature: 1 COUNTER PUBLIC-KEY SIGNATURE       (the last one in base 64)

    signed payload:  len u16 | store | len u16 | key | counter u64 | value        (big-endian)

It holds for one store, one key and one counter: a value that is copied under another key, or into
another mesh, has no valid signature there, and an older value of the same key is refused once a
newer one was seen. Nothing parses a value before `Verifier.check` has returned.
"""

from __future__ import annotations

import base64
import binascii
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from swarm.errors import BadKey, BadSignature, Untrusted
from swarm.security.identity import Identity
from swarm.security.signing import sign, verify
from swarm.security.trusted_keys import TrustedKeys

log = logging.getLogger("swarm.security")

HEADER = "Swarm-Signature"
MOST = 2**63 - 1  # of a counter
_CONTEXT = "swarm entry 1"
_FORM = re.compile(r"1 ([0-9]{1,19}) (U[A-Z2-7]{55}) ([A-Za-z0-9+/]{86}==)")
_HEADER_LINE = re.compile(rb"\r\n" + HEADER.encode() + rb": *([^\r\n]{0,256})\r\n")


@dataclass(frozen=True, slots=True)
class Signature:
    """Who signed a value, and which counter it has."""

    public: str
    counter: int
    signature: bytes

    def text(self) -> str:
        """The header's value."""
        return f"1 {self.counter} {self.public} {base64.b64encode(self.signature).decode()}"


def sign_entry(identity: Identity, store: str, key: str, counter: int, value: bytes) -> Signature:
    """The identity's signature of a value under `key` in the bucket `store`."""
    return Signature(
        identity.public, counter, sign(identity, _CONTEXT, _payload(store, key, counter, value))
    )


def signature_in(headers: bytes) -> Signature | None:
    """The signature in a block of headers, not verified; None where there is none."""
    found = _HEADER_LINE.search(headers)
    match = _FORM.fullmatch(found[1].decode("ascii", "replace").strip()) if found else None
    if match is None or int(match[1]) > MOST:
        return None
    try:
        return Signature(match[2], int(match[1]), base64.b64decode(match[3], validate=True))
    except binascii.Error:
        return None


class Highest:
    """The highest counter that was seen of each key; `on_growth(known)` is told of each growth.

    known: what an earlier process saw; whatever is no counter in it is left out.
    """

    def __init__(
        self,
        known: Mapping[str, object] | None = None,
        on_growth: Callable[[Mapping[str, int]], None] = lambda known: None,
    ) -> None:
        given = (known or {}).items()
        self._known = {k: c for k, c in given if isinstance(c, int) and 0 <= c <= MOST}
        self._on_growth = on_growth

    def of(self, name: str) -> int:
        """0 for a name that was never seen."""
        return self._known.get(name, 0)

    def saw(self, name: str, counter: int) -> None:
        """Note a counter; a lower one than the highest changes nothing."""
        if counter > self.of(name):
            self._known[name] = counter
            self._on_growth(self._known)


class Verifier:
    """Decides whether a value of a key store is taken.

    highest: None remembers for as long as this lives. own: a key that is trusted beside the others.
    """

    def __init__(self, trusted: TrustedKeys, highest: Highest | None = None, own: str = "") -> None:
        self.trusted = trusted
        self._own = own
        self._highest = Highest() if highest is None else highest

    def check(self, store: str, key: str, value: bytes, headers: bytes) -> Signature:
        """The value's signature. Raises `Untrusted` for a value that is unsigned, altered, signed
        by a key that is not trusted, or older than one that was seen."""
        signature = signature_in(headers)
        if signature is None:
            raise Untrusted(
                f"{key} in {store} is unsigned: whoever put it there signs it by `swarm model push`"
                " or `promote`; --allow-unsigned takes it as it is"
            )
        try:
            trusted = signature.public == self._own or self.trusted.allows(signature.public)
        except BadKey as error:
            raise Untrusted(f"{key} in {store} is not taken: {error}") from None
        if not trusted:
            raise Untrusted(
                f"{key} in {store} is signed by {signature.public}, which is not in "
                f"{self.trusted}: if that key is yours, `swarm keys trust {signature.public}`"
            )
        payload = _payload(store, key, signature.counter, value)
        try:
            verify(signature.public, _CONTEXT, payload, signature.signature)
        except BadSignature:
            raise Untrusted(
                f"{key} in {store} was altered after {signature.public} had signed it: "
                "push or promote it again"
            ) from None
        name = f"{store}/{key}"
        if signature.counter < self._highest.of(name):
            raise Untrusted(
                f"{key} in {store} is older ({signature.counter}) than the value that was there "
                f"before ({self._highest.of(name)}): to go back, sign the return by "
                "`swarm model promote NAME@VERSION` or `rollback`. A counter is the millisecond of "
                "its signing. If that clock is behind and the server has lost the value before, "
                "set the clock first. If the value before was signed by a clock that was ahead, "
                "stop this node, remove its MESH-ROLE-seen.checkpoint in --state-dir, where there "
                "is one, and start it again"
            )
        self._highest.saw(name, signature.counter)
        return signature


def _payload(store: str, key: str, counter: int, value: bytes) -> bytes:
    names = (name.encode() for name in (store, key))
    framed = b"".join(len(name).to_bytes(2, "big") + name for name in names)
    return framed + counter.to_bytes(8, "big") + value
