"""NATS's JWTs: what an operator says of an account, and an account's signing key of a user.

    base64url(header) . base64url(claims) . base64url(signature over both)       without padding

Source: github.com/nats-io/jwt (v2); the limits and the template of a scoped key as nats-server
2.15 reads them.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from swarm.security.authority.keys import AuthorityKey
from swarm.security.authority.limits import UNLIMITED, AccountLimits
from swarm.security.rights.permissions import subjects_of
from swarm.security.rights.store import ANSWERED_WITHIN, Store
from swarm.security.rights.table import TOKENS_WITHIN, offered_to_clients

_HEADER = {"typ": "JWT", "alg": "ed25519-nkey"}


def encode(
    issuer: AuthorityKey,
    subject: str,
    name: str,
    body: Mapping[str, Any],
    issued: int,
    expires: int = 0,
) -> str:
    """A signed JWT. subject: a public key. issued, expires: seconds since 1970; 0 for never."""
    claims: dict[str, Any] = {
        "iat": issued,
        "iss": issuer.public,
        "name": name,
        "sub": subject,
        "nats": {**body, "version": 2},
    }
    if expires:
        claims["exp"] = expires
    digest = hashlib.sha256(json.dumps(claims, sort_keys=True).encode()).digest()
    claims["jti"] = base64.b32encode(digest).decode().rstrip("=")
    signed = f"{_base64(json.dumps(_HEADER).encode())}.{_base64(json.dumps(claims).encode())}"
    return f"{signed}.{_base64(issuer.sign(signed.encode()))}"


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def operator_body(system_account: str) -> dict[str, Any]:
    return {"type": "operator", "system_account": system_account}


def account_body(
    limits: Mapping[str, Any],
    *,
    signing_keys: Sequence[Mapping[str, Any]] = (),
    revocations: Mapping[str, int] | None = None,
    exports: Sequence[Mapping[str, Any]] = (),
    imports: Sequence[Mapping[str, Any]] = (),
    mappings: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """An account. limits: of `AccountLimits`. revocations: public keys of users, and the time up to
    which their JWTs are."""
    return {
        "type": "account",
        "limits": dict(limits),
        "signing_keys": list(signing_keys),
        "revocations": dict(revocations or {}),
        "exports": list(exports),
        "imports": list(imports),
        "mappings": dict(mappings or {}),
    }


def client_exports(mesh: str) -> list[dict[str, Any]]:
    """What the members' account offers to the clients'."""
    return [
        _service(subject)
        | {"response_type": "Stream" if many else "Singleton"}
        | ({"response_threshold": TOKENS_WITHIN * 10**9} if many else {})
        for subject, many in offered_to_clients(mesh)
    ]


def client_imports(mesh: str, members: str) -> list[dict[str, Any]]:
    """The same for the clients' account. members: the other one's public key."""
    services = [_service(subject) for subject, _ in offered_to_clients(mesh)]
    return [service | {"account": members} for service in services]


def _service(subject: str) -> dict[str, Any]:
    return {"name": subject.split(".")[2], "subject": subject, "type": "service"}


def store_exports(store: Store) -> list[dict[str, Any]]:
    """What the account of the store offers the members' account."""
    services = [
        {
            "name": service.subject,
            "subject": service.subject,
            "type": "service",
            "response_type": "Stream" if service.many else "Singleton",
        }
        | ({"response_threshold": ANSWERED_WITHIN * 10**9} if service.many else {})
        for service in store.offered
    ]
    return services + [
        {"name": news.subject, "subject": news.subject, "type": "stream"} for news in store.news
    ]


def store_imports(store: Store, account: str) -> list[dict[str, Any]]:
    """What the members' account takes of it. account: the store's public key."""
    services = [
        {
            "name": service.imported,
            "subject": service.subject,
            "local_subject": service.imported,
            "account": account,
            "type": "service",
        }
        for service in store.services
    ]
    return services + [
        {
            "name": news.heard,
            "subject": news.subject,
            "account": account,
            "type": "stream",
        }
        | ({"local_subject": news.heard} if news.heard != news.subject else {})
        for news in store.news
    ]


def store_mappings(store: Store) -> dict[str, list[dict[str, Any]]]:
    """Where the members' account sends what its users publish to the store."""
    return {
        mapping.subject: [{"subject": mapping.target, "weight": 100}] for mapping in store.mappings
    }


def user_body(account: str, tags: Sequence[str]) -> dict[str, Any]:
    """A user of a scoped signing key: the key's template says what it may, its tags for what."""
    return {"type": "user", "issuer_account": account, "tags": list(tags)}


def unlimited_user_body(account: str) -> dict[str, Any]:
    """A user who may do everything in its account."""
    return {"type": "user", "issuer_account": account, "subs": -1, "data": -1, "payload": -1}


def scope(key: str, role: str, mesh: str, limits: AccountLimits) -> dict[str, Any]:
    """A signing key that can issue users of one role of one mesh, and no others."""
    allowed = subjects_of(
        role,
        {
            "mesh": [mesh],
            "model": ["{{tag(model)}}"],
            "asked": ["{{tag(asked)}}"],
            "stage": ["{{tag(stage)}}"],
            "next": ["{{tag(next)}}"],
            "user": ["{{name()}}"],
        },
        # nats-server 2.15 drops a template's subject with a queue group as invalid.
        queues=False,
    )
    template = {
        "pub": {"allow": list(allowed.publish)},
        "sub": {"allow": list(allowed.subscribe)},
        "subs": limits.subscriptions,
        "data": UNLIMITED,
        "payload": limits.message_of(role),
    }
    return {"kind": "user_scope", "key": key, "role": str(role), "template": template}


def credentials_text(jwt: str, seed: str) -> str:
    """The text of a credentials file, as all NATS clients read it."""
    return (
        f"-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
    )
