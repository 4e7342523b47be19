"""Whose a session is: whoever shows its key. Pure.

A key is 128 random bits that the session's client draws, or is given in the first answer to its
inbox. Each of two names follows from the one before, and nobody finds the way back:

    key ──► name between the nodes ──► id, which answers, audit and logs show

The id opens nothing. The name is what the nodes of all stages hold a session by: they tell it to
each other alone, and who does not know it finds no session. So there is nothing to look up before a
key is checked, and a wrong one is refused alike whether there is such a session or not.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from swarm.errors import InvalidArgument, PermissionDenied
from swarm.language.request import GenerateRequest

KEY = re.compile(r"[0-9a-f]{32}")
ID = re.compile(r"sid-[0-9a-f]{32}")


def new_key() -> str:
    """128 random bits, as 32 hexadecimal digits."""
    return secrets.token_hex(16)


def name_of(key: str) -> str:
    """What the nodes of all stages call the session of a key."""
    return _hashed("swarm session name 1", key)


def id_of(name: str) -> str:
    """What everybody may call the session that nodes know by this name."""
    return f"sid-{_hashed('swarm session id 1', name)}"


def session_id(key: Any) -> str:
    """The id of the session of a key, "" where that is none."""
    return id_of(name_of(key)) if isinstance(key, str) and KEY.fullmatch(key) else ""


def _hashed(purpose: str, text: str) -> str:
    return hashlib.sha256(f"{purpose}\0{text}".encode()).hexdigest()[:32]


def opened(request: GenerateRequest) -> GenerateRequest:
    """A client's request, with the key and the id of a new session of its own."""
    key = new_key()
    return replace(request, key=key, session=id_of(name_of(key)))


def admitted(request: GenerateRequest, draw: Callable[[], str] = new_key) -> GenerateRequest:
    """A client's request as nodes know it: `session` is their name of it, and `key` is left only
    where it was drawn here, for the client to be told.

    Without a key it opens a session, whatever text it calls that by; it may not go on with one.
    Raises `PermissionDenied` where it claims a session whose key it does not show, and
    `InvalidArgument` where its key is none.
    """
    if request.key:
        if KEY.fullmatch(request.key) is None:
            raise InvalidArgument("key: 32 hexadecimal digits, in lower case, drawn at random")
        name = name_of(request.key)
        if ID.fullmatch(request.session) and not hmac.compare_digest(request.session, id_of(name)):
            raise _not_yours()
        return replace(request, session=name, key="")
    if ID.fullmatch(request.session) or request.epoch or request.head or request.made:
        raise _not_yours()
    key = draw()
    return replace(request, session=name_of(key), key=key)


def _not_yours() -> PermissionDenied:
    return PermissionDenied(
        "there is no such session of this client: who goes on with one shows its key, which it "
        "drew itself (`key`) or was given with `accepted`"
    )
