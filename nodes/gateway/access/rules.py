"""The file of who may ask a gateway.

    [[key]]
    agent = "camera-1"            # the mesh's name for who has the key
    sha256 = "9f86d081884c7d65…"  # of the key, 64 hexadecimal digits
    quota = 100                   # requests a second; left out: any number

    [[token]]
    algorithm = "EdDSA"           # or ES256, RS256, HS256: a token of another one is refused
    key = "issuer.pem"            # a public key, PEM; of HS256 the secret. Beside this file
    issuer = "https://login.example"  # left out: `iss` is not looked at
    audience = "swarm"            # left out: a token that names an audience is refused
    claim = "sub"                 # has the agent's name; one that another block owns is refused
    quota = 50                    # of each agent that no other block gives one

    [[certificate]]
    name = "robot-7"              # the common name in a client's certificate
    agent = "robot-7"
    priority = "high"             # of its requests that name none; left out: normal
    most_priority = "high"        # the highest that they may name; left out: priority, or normal
    share = 3                     # of the turns while many wait; left out: 1, if others have one

Other features may add fields to all blocks, beside `quota`.

A key is 256 random bits, so a hash without salt tells nothing of it.
"""

from __future__ import annotations

import base64
import re
import secrets
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from nodes.gateway.added import added
from nodes.gateway.call import Standing
from swarm.errors import BadKey, InvalidArgument, SwarmError
from swarm.security.files import read_private
from swarm.subjects import token
from swarm.wire.urgency import NAMES

QUOTA = "quota"  # the field of requests a second
ALGORITHMS = ("HS256", "RS256", "ES256", "EdDSA")
PREFIX = "swk_"  # of a key, so that people and scanners of repositories know it
MOST_BYTES = 4 << 20  # of the file
MOST_ISSUERS = 16  # each may be asked about a token
LEAST_SECRET = 32  # bytes of a secret of HS256, RFC 7518, 3.2
LEAST_RSA = 2048  # bits, RFC 7518, 3.3
PRIORITY, MOST_PRIORITY, SHARE = "priority", "most_priority", "share"
MOST_SHARE = 1000.0  # times that of a caller without one
_FIELDS = {
    "key": {"agent", "sha256"},
    "token": {"algorithm", "key", "issuer", "audience", "claim"},
    "certificate": {"name", "agent"},
}


@dataclass(frozen=True, slots=True)
class Issuer:
    """Whose tokens are taken. key: bytes of a secret, or a public key of `cryptography`. quotas:
    and standing: of each of its agents, see `Caller`."""

    algorithm: str
    key: Any
    issuer: str
    audience: str
    claim: str
    quotas: Mapping[str, float]
    standing: Standing


@dataclass(frozen=True, slots=True)
class Rules:
    """keys: agents by the SHA-256 of their keys. certificates: agents by common name. quotas,
    standings: by agent, see `Caller`. own: agents that have a key or a
    certificate here, which no token may name. files: all that they were read from."""

    keys: Mapping[bytes, str]
    certificates: Mapping[str, str]
    issuers: tuple[Issuer, ...]
    quotas: Mapping[str, Mapping[str, float]]
    standings: Mapping[str, Standing]
    own: frozenset[str]
    files: tuple[Path, ...]


def new_key() -> str:
    """A key for a client."""
    return PREFIX + base64.urlsafe_b64encode(secrets.token_bytes(32)).decode().rstrip("=")


def hash_of(key: str) -> bytes:
    """What the file knows of a key."""
    return sha256(key.encode()).digest()


def block(agent: str, key: str, quota: float) -> str:
    """The lines of a key. quota: 0.0 for any number. Raises `InvalidArgument`."""
    token(agent, "agent's name")
    lines = ["[[key]]", f'agent = "{agent}"', f'sha256 = "{hash_of(key).hex()}"']
    return "\n".join([*lines, *([f"quota = {quota:g}"] if quota else [])]) + "\n"


def read_rules(path: str | Path) -> Rules:
    """Raises `BadKey`, which names the file and the block, for a file that cannot be used."""
    path = Path(path)
    try:
        document = tomllib.loads(read_private(path, MOST_BYTES).decode())
        return _rules(path, document)
    except (OSError, ValueError, SwarmError) as error:
        raise BadKey(f"--gateway-callers {path}: {error}") from None


def _rules(path: Path, document: dict[str, Any]) -> Rules:
    """Raises `InvalidArgument`, `ValueError`, `OSError`."""
    if unknown := sorted(set(document) - set(_FIELDS)):
        raise InvalidArgument(f"[[{unknown[0]}]]: a block is key, token or certificate")
    keys: dict[bytes, str] = {}
    certificates: dict[str, str] = {}
    issuers: list[Issuer] = []
    quotas: dict[str, dict[str, float]] = {}
    standings: dict[str, Standing] = {}
    counted = {QUOTA: "requests"}
    for feature in added():
        counted |= feature.quotas
    files = [path]
    for kind, fields in _FIELDS.items():
        blocks = document.get(kind, [])
        if not isinstance(blocks, list) or not all(isinstance(each, dict) for each in blocks):
            raise InvalidArgument(f"{kind}: write [[{kind}]] above each block")
        for number, each in enumerate(blocks, start=1):
            try:
                known = {*fields, *counted, PRIORITY, MOST_PRIORITY, SHARE}
                if unknown := sorted(set(each) - known):
                    raise InvalidArgument(f"{unknown[0]!r} is no field of it")
                quota, standing = _quotas(each, counted), _standing(each)
                if kind == "token":
                    file = path.parent / _text(each, "key")
                    files.append(file)
                    issuers.append(_issuer(each, file, quota, standing))
                    continue
                agent = token(_text(each, "agent"), "agent's name")
                if standings.setdefault(agent, standing) != standing:
                    raise InvalidArgument(f"agent {agent!r} has another standing in another block")
                if quotas.setdefault(agent, quota) != quota:
                    raise InvalidArgument(f"agent {agent!r} has another quota in another block")
                if kind == "key":
                    keys[_digest(each)] = agent
                else:
                    certificates[_text(each, "name")] = agent
            except (InvalidArgument, ValueError, OSError) as error:
                raise InvalidArgument(f"[[{kind}]] {number}: {error}") from None
    if len(issuers) > MOST_ISSUERS:
        raise InvalidArgument(f"{len(issuers)} blocks [[token]], of {MOST_ISSUERS} at most")
    own = frozenset(keys.values()) | frozenset(certificates.values())
    return Rules(keys, certificates, tuple(issuers), quotas, standings, own, tuple(files))


def _text(block: dict[str, Any], name: str, default: str | None = None) -> str:
    value = block.get(name, default)
    if not isinstance(value, str) or (default is None and not value):
        raise InvalidArgument(f"{name} is a text, and not left out")
    return value


def _quotas(block: dict[str, Any], counted: Mapping[str, str]) -> dict[str, float]:
    """Those of a block that are not 0, by name. counted: of what each is a number a second."""
    given = {name: block.get(name, 0.0) for name in counted}
    for name, value in given.items():
        if type(value) not in (int, float) or not 0 <= value < 1e9:
            raise InvalidArgument(f"{name} = {value!r}: it is {counted[name]} a second")
    return {name: float(value) for name, value in given.items() if value}


def _standing(block: dict[str, Any]) -> Standing:
    priority = block.get(PRIORITY, "normal")
    most = block.get(MOST_PRIORITY, priority if priority == "high" else "normal")
    for name, value in ((PRIORITY, priority), (MOST_PRIORITY, most)):
        if not isinstance(value, str) or value not in NAMES:
            raise InvalidArgument(f"{name} = {value!r}: it is low, normal or high")
    if NAMES[priority] > NAMES[most]:
        raise InvalidArgument(f"{PRIORITY} = {priority!r} is above {MOST_PRIORITY} = {most!r}")
    share = block.get(SHARE, 0.0)
    if type(share) not in (int, float) or not 0 <= share <= MOST_SHARE:
        raise InvalidArgument(f"{SHARE} = {share!r}: it is a number, {MOST_SHARE:g} at most")
    return Standing(priority, most, float(share))


def _digest(block: dict[str, Any]) -> bytes:
    value = _text(block, "sha256")
    if not re.fullmatch(r"[0-9a-fA-F]{64}", value):
        raise InvalidArgument("sha256 has 64 hexadecimal digits: `swarm keys gateway` makes one")
    return bytes.fromhex(value)


def _issuer(
    block: dict[str, Any], file: Path, quotas: Mapping[str, float], standing: Standing
) -> Issuer:
    algorithm = _text(block, "algorithm")
    if algorithm not in ALGORITHMS:
        raise InvalidArgument(f"algorithm {algorithm!r}: it is {', '.join(ALGORITHMS)}")
    return Issuer(
        algorithm,
        _secret(file) if algorithm == "HS256" else _public(file, algorithm),
        _text(block, "issuer", ""),
        _text(block, "audience", ""),
        _text(block, "claim", "sub"),
        quotas,
        standing,
    )


def _secret(file: Path) -> bytes:
    secret = read_private(file, MOST_BYTES).strip()
    if secret.startswith(b"-----BEGIN"):
        # A public key as a secret lets everybody who knows it make tokens.
        raise InvalidArgument(f"{file} is a key pair's; a secret of HS256 is random bytes")
    if len(secret) < LEAST_SECRET:
        raise InvalidArgument(f"{file} has {len(secret)} bytes: a secret has {LEAST_SECRET}")
    return secret


def _public(file: Path, algorithm: str) -> Any:
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        key = load_pem_public_key(file.read_bytes())
    except ValueError:
        raise InvalidArgument(f"{file} is no public key in PEM") from None
    fits = {
        "RS256": isinstance(key, rsa.RSAPublicKey) and key.key_size >= LEAST_RSA,
        "ES256": isinstance(key, ec.EllipticCurvePublicKey) and key.curve.name == "secp256r1",
        "EdDSA": isinstance(key, ed25519.Ed25519PublicKey),
    }
    if not fits[algorithm]:
        raise InvalidArgument(f"{file} is no key of {algorithm} (RSA has {LEAST_RSA} bits)")
    return key
