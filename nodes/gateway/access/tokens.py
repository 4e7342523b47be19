"""JSON Web Tokens (RFC 7519) of known issuers: each names an agent, and ends."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any, NamedTuple

from nodes.gateway.access.rules import Issuer
from nodes.gateway.call import Standing
from swarm.errors import Unauthenticated
from swarm.subjects import TOKEN

MOST_BYTES = 8 << 10  # of a token
MOST_AGENT = 64  # characters of an agent's name
LEEWAY = 60  # seconds by which the clock of who issued a token may differ from this one
MOST_KNOWN = 1024  # tokens whose signature need not be computed again


class Bearer(NamedTuple):
    """Whom a token names. until: seconds since 1970. quotas, standing: see
    `Issuer`."""

    agent: str
    quotas: Mapping[str, float]
    until: float
    standing: Standing


class Tokens:
    """`of` tells whom a token names. A token's algorithm is its issuer's, whatever it says."""

    def __init__(self, issuers: Sequence[Issuer]) -> None:
        self._issuers = issuers
        self._known: OrderedDict[bytes, Bearer] = OrderedDict()  # the longest unused first

    def of(self, token: str, now: float) -> Bearer:
        """now: seconds since 1970. Raises `Unauthenticated`."""
        if len(token) > MOST_BYTES:
            raise Unauthenticated(f"a token of {len(token)} bytes: at most {MOST_BYTES} are read")
        digest = sha256(token.encode()).digest()
        bearer = self._known.get(digest)
        if bearer is None:
            bearer = self._known[digest] = self._verified(token)
            if len(self._known) > MOST_KNOWN:
                self._known.popitem(last=False)
        self._known.move_to_end(digest)
        if bearer.until + LEEWAY <= now:
            del self._known[digest]
            raise Unauthenticated("the token has expired")
        return bearer

    def _verified(self, token: str) -> Bearer:
        import jwt  # a gateway without tokens needs it not

        why = "no issuer of this gateway has signed the token"
        for issuer in self._issuers:
            try:
                claims = jwt.decode(
                    token,
                    issuer.key,
                    algorithms=[issuer.algorithm],
                    issuer=issuer.issuer or None,
                    audience=issuer.audience or None,
                    options={"require": ["exp"]},
                    leeway=LEEWAY,
                )
            except (jwt.InvalidSignatureError, jwt.InvalidAlgorithmError):
                continue
            except (jwt.InvalidTokenError, RecursionError, ValueError) as error:
                # Of the right issuer, or of nobody: its own fault is the one to tell.
                why = f"the token is refused: {error}"
                continue
            return _bearer(claims, issuer)
        raise Unauthenticated(why[:200])


def _bearer(claims: dict[str, Any], issuer: Issuer) -> Bearer:
    agent = claims.get(issuer.claim)
    if not isinstance(agent, str) or len(agent) > MOST_AGENT or not TOKEN.fullmatch(agent):
        raise Unauthenticated(
            f"the token's claim {issuer.claim!r} is no agent's name: at most {MOST_AGENT} of "
            "letters, digits, - and _"
        )
    return Bearer(agent, issuer.quotas, float(claims["exp"]), issuer.standing)
