"""Who may ask a gateway: keys, tokens and certificates of a file that changes, with quotas."""

from __future__ import annotations

import json
import math
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st
from support.commands import said

from nodes.gateway.access.callers import LOOK_EVERY, AnyCallers, ListedCallers
from nodes.gateway.access.rules import block, read_rules
from nodes.gateway.access.tokens import LEEWAY
from nodes.gateway.call import Caller
from swarm.errors import (
    BadKey,
    InvalidArgument,
    PermissionDenied,
    ResourceExhausted,
    Status,
    SwarmError,
    Unauthenticated,
)

SECRET = "k" * 32
KEY = "swk_" + "k" * 43
CERTIFICATE = '[[certificate]]\nname = "robot 7"\nagent = "robot-7"\n'
PEER = "192.0.2.7"


def file_of(folder: Path, text: str) -> Path:
    path = folder / "callers.toml"
    path.write_text(text)
    path.chmod(0o600)
    return path


def new_key(path: Path, agent: str, *more: str) -> str:
    """A key, as the command makes it."""
    done = said("keys", "gateway", agent, str(path), "--json", *more)
    assert done.code == 0, done.stderr
    return str(json.loads(done.stdout)["key"])


def bearer(shown: str) -> dict[str, str]:
    return {"authorization": f"Bearer {shown}"}


def token(key: Any, algorithm: str, **claims: Any) -> dict[str, str]:
    claims.setdefault("exp", time.time() + 60)
    kept = {name: value for name, value in claims.items() if value is not None}
    return bearer(jwt.encode(kept, key, algorithm))


# --- keys -------------------------------------------------------------------------------------


def test_a_key_names_its_agent_and_the_file_has_no_key(tmp_path: Path) -> None:
    path = tmp_path / "callers.toml"
    one, two = new_key(path, "camera-1"), new_key(path, "robot", "--quota", "5")
    callers = ListedCallers(str(path))
    assert callers.of(bearer(one), PEER) == Caller("camera-1", "key")
    assert callers.of({"x-api-key": two}, PEER) == Caller("robot", "key")
    assert one not in path.read_text()
    assert path.stat().st_mode & 0o077 == 0
    assert sorted(each.name for each in tmp_path.iterdir()) == [".callers.toml.lock", path.name]


@pytest.mark.parametrize(
    "headers",
    [{}, bearer("swk_wrong"), bearer("a.b.c"), bearer(""), {"authorization": "Basic YTpi"}],
)
def test_who_shows_nothing_that_is_known_is_refused(
    tmp_path: Path, headers: dict[str, str]
) -> None:
    path = tmp_path / "callers.toml"
    new_key(path, "camera-1")
    with pytest.raises(Unauthenticated):
        ListedCallers(str(path)).of(headers, PEER)


def test_a_key_counts_once_the_file_has_it_and_no_more_once_it_has_not(tmp_path: Path) -> None:
    path, now = tmp_path / "callers.toml", [0.0]
    first = new_key(path, "camera-1")
    before = path.read_text()
    callers = ListedCallers(str(path), clock=lambda: now[0])
    second = new_key(path, "camera-2")
    with pytest.raises(Unauthenticated):
        callers.of(bearer(second), PEER)
    now[0] += LOOK_EVERY
    assert callers.of(bearer(second), PEER).agent == "camera-2"
    path.write_text(before)
    now[0] += LOOK_EVERY
    with pytest.raises(Unauthenticated):
        callers.of(bearer(second), PEER)
    assert callers.of(bearer(first), PEER).agent == "camera-1"


def test_a_file_that_cannot_be_read_any_more_changes_nothing(tmp_path: Path) -> None:
    path, now = tmp_path / "callers.toml", [0.0]
    key = new_key(path, "camera-1")
    callers = ListedCallers(str(path), clock=lambda: now[0])
    whole = path.read_text()
    path.write_text("[[key]")
    now[0] += LOOK_EVERY
    assert callers.of(bearer(key), PEER).agent == "camera-1"
    path.write_text(whole.replace("camera-1", "camera-9"))
    now[0] += LOOK_EVERY
    assert callers.of(bearer(key), PEER).agent == "camera-9"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[[keys]]", "a block is key, token or certificate"),
        ('[[key]]\nagent = "a b"\nsha256 = "00"', "agent's name"),
        ('[[key]]\nagent = "a"\nsha256 = "00"', "64 hexadecimal"),
        ('[[key]]\nagent = "a"\nsha256 = "00"\ncolour = 1', "colour"),
        ('key = "x"', "[[key]]"),
        ('[[token]]\nalgorithm = "none"\nkey = "x"', "HS256"),
        ('[[token]]\nalgorithm = "HS256"\nkey = "absent"', "absent"),
        ('[[certificate]]\nname = "a"\nagent = "a"\nquota = -1', "requests a second"),
        (
            '[[certificate]]\nname = "a"\nagent = "a"\nquota = 1\n'
            '[[certificate]]\nname = "b"\nagent = "a"\nquota = 2',
            "another quota",
        ),
    ],
)
def test_a_file_with_a_fault_is_refused_by_name(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(BadKey, match=r"callers\.toml") as caught:
        ListedCallers(str(file_of(tmp_path, text)))
    assert says in str(caught.value)


def test_a_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    path = file_of(tmp_path, "")
    path.chmod(0o644)
    with pytest.raises(BadKey, match="chmod 600"):
        read_rules(path)


def test_a_key_is_added_to_no_file_that_a_gateway_could_not_read(tmp_path: Path) -> None:
    path = file_of(tmp_path, "[[key]")
    assert said("keys", "gateway", "camera-1", str(path)).code != 0
    assert path.read_text() == "[[key]"


# --- tokens -----------------------------------------------------------------------------------


def issuer(folder: Path, algorithm: str, key: Any, more: str = "") -> ListedCallers:
    name = folder / f"{algorithm}.key"
    data = key if isinstance(key, bytes) else pem(key)
    name.write_bytes(data)
    name.chmod(0o600)
    text = f'[[token]]\nalgorithm = "{algorithm}"\nkey = "{name.name}"\n{more}\n'
    return ListedCallers(str(file_of(folder, text)))


def pem(key: Any) -> bytes:
    return bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))


KEYS: dict[str, Callable[[], Any]] = {
    "HS256": SECRET.encode,
    "RS256": lambda: rsa.generate_private_key(65537, 2048),
    "ES256": lambda: ec.generate_private_key(ec.SECP256R1()),
    "EdDSA": ed25519.Ed25519PrivateKey.generate,
}


@pytest.mark.parametrize("algorithm", KEYS)
def test_a_token_names_its_agent_until_it_expires(tmp_path: Path, algorithm: str) -> None:
    key = KEYS[algorithm]()
    callers = issuer(tmp_path, algorithm, key)
    headers = token(key, algorithm, sub="robot-7")
    for _ in range(2):
        assert callers.of(headers, PEER) == Caller("robot-7", "token")
    for claims in ({"exp": time.time() - LEEWAY - 1}, {"exp": None}):
        with pytest.raises(Unauthenticated):
            callers.of(token(key, algorithm, sub="robot-7", **claims), PEER)


def test_a_token_that_was_good_is_refused_once_it_has_expired(tmp_path: Path) -> None:
    callers = issuer(tmp_path, "HS256", SECRET.encode())
    headers = token(SECRET, "HS256", sub="robot-7", exp=time.time() + 1 - LEEWAY)
    assert callers.of(headers, PEER).agent == "robot-7"
    time.sleep(1.1)  # of a clock that no test can set
    with pytest.raises(Unauthenticated, match="expired"):
        callers.of(headers, PEER)


@pytest.mark.parametrize("claim", ["iat", "nbf"])
def test_a_token_of_an_issuer_whose_clock_is_a_little_ahead_is_good(
    tmp_path: Path, claim: str
) -> None:
    callers = issuer(tmp_path, "HS256", SECRET.encode())
    now = time.time()
    good = token(SECRET, "HS256", sub="a", **{claim: now + LEEWAY / 2})
    assert callers.of(good, PEER).agent == "a"
    with pytest.raises(Unauthenticated, match="the token is refused"):
        callers.of(token(SECRET, "HS256", sub="a", **{claim: now + 2 * LEEWAY}), PEER)


def test_a_token_has_the_algorithm_of_its_issuer_whatever_it_says(tmp_path: Path) -> None:
    key = ed25519.Ed25519PrivateKey.generate()
    callers = issuer(tmp_path, "EdDSA", key)
    unsigned = bearer(jwt.encode({"sub": "a", "exp": time.time() + 60}, None, "none"))
    # The public key, which everybody knows, as the secret of another algorithm.
    header = {"alg": "HS256", "typ": "JWT"}
    by_public = hs256(header, {"sub": "a", "exp": int(time.time()) + 60}, pem(key))
    for headers in (unsigned, by_public):
        with pytest.raises(Unauthenticated):
            callers.of(headers, PEER)


def hs256(header: dict[str, Any], claims: dict[str, Any], secret: bytes) -> dict[str, str]:
    """A token that no library would make: its secret is a public key."""
    import hmac

    def part(document: dict[str, Any]) -> bytes:
        return jwt.utils.base64url_encode(json.dumps(document).encode())

    signed = part(header) + b"." + part(claims)
    mark = jwt.utils.base64url_encode(hmac.digest(secret, signed, "sha256"))
    return bearer((signed + b"." + mark).decode())


def test_a_token_for_somebody_else_or_of_somebody_else_is_refused(tmp_path: Path) -> None:
    more = 'issuer = "https://one"\naudience = "swarm"\nclaim = "agent"'
    callers = issuer(tmp_path, "HS256", SECRET.encode(), more)
    good = {"iss": "https://one", "aud": "swarm", "agent": "camera-1"}
    assert callers.of(token(SECRET, "HS256", **good), PEER).agent == "camera-1"
    for wrong in ({"iss": "https://two"}, {"aud": "other"}, {"aud": None}, {"agent": "a.b"}):
        with pytest.raises(Unauthenticated):
            callers.of(token(SECRET, "HS256", **{**good, **wrong}), PEER)


@pytest.mark.parametrize(
    "shown", ["." * 40, "[" * 8000, "a" * 9000, "e30.e30.", "\x00.\xff.é", "W" * 7000 + ".e30.AA"]
)
def test_no_token_is_too_strange_to_be_refused(tmp_path: Path, shown: str) -> None:
    with pytest.raises(Unauthenticated):
        issuer(tmp_path, "HS256", SECRET.encode()).of(bearer(shown), PEER)


@pytest.mark.parametrize(
    ("algorithm", "key"),
    [
        ("HS256", b"short"),
        ("HS256", pem(ed25519.Ed25519PrivateKey.generate())),
        ("EdDSA", ec.generate_private_key(ec.SECP256R1())),
        ("ES256", ec.generate_private_key(ec.SECP384R1())),
        ("RS256", b"no key"),
    ],
)
def test_a_key_that_does_not_fit_its_algorithm_is_refused(
    tmp_path: Path, algorithm: str, key: Any
) -> None:
    with pytest.raises(BadKey, match=algorithm):
        issuer(tmp_path, algorithm, key)


# --- certificates, quotas, records --------------------------------------------------------------


def test_the_name_in_a_certificate_is_an_agent_where_it_is_listed(tmp_path: Path) -> None:
    text = '[[certificate]]\nname = "robot 7"\nagent = "robot-7"\n'
    callers = ListedCallers(str(file_of(tmp_path, text)))
    assert callers.of({}, PEER, "robot 7") == Caller("robot-7", "certificate")
    with pytest.raises(PermissionDenied):
        callers.of({}, PEER, "robot 8")


def test_each_agent_spends_its_own_quota_and_is_told_when_to_come_back(tmp_path: Path) -> None:
    path, now = tmp_path / "callers.toml", [0.0]
    fast, slow = new_key(path, "fast"), new_key(path, "slow", "--quota", "2")
    callers = ListedCallers(str(path), clock=lambda: now[0])
    for _ in range(2):
        callers.of(bearer(slow), PEER)
    with pytest.raises(ResourceExhausted) as caught:
        callers.of(bearer(slow), PEER)
    assert 0.0 < caught.value.retry_after <= 0.5
    assert callers.of(bearer(slow), PEER, takes=False).agent == "slow"
    for _ in range(100):
        callers.of(bearer(fast), PEER)
    now[0] += caught.value.retry_after
    assert callers.of(bearer(slow), PEER).agent == "slow"


@given(quota=st.floats(0.2, 50.0), rests=st.lists(st.floats(0.0, 5.0), max_size=10))
def test_who_obeys_the_wait_gets_the_whole_quota_and_a_second_of_it_at_once(
    quota: float, rests: list[float]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path, now = Path(folder) / "callers.toml", [0.0]
        path.write_text(block("slow", KEY, quota))
        path.chmod(0o600)
        callers = ListedCallers(str(path), clock=lambda: now[0])
        for rest in [1.0, *rests]:
            now[0] += rest
            begun, asked = now[0], 0
            while now[0] < begun + 20 / quota:
                try:
                    callers.of(bearer(KEY), PEER)
                    asked += 1
                except ResourceExhausted as error:
                    now[0] += math.ceil(error.retry_after * 1e3) / 1e3  # as a header tells it
            # A client that waits as it is told loses what rounding to milliseconds costs.
            assert 19 * (1 - quota * 1e-3) <= asked <= 21 + max(1.0, quota)
        now[0] += 2 * max(1.0, 1 / quota)
        for _ in range(max(1, int(quota))):
            callers.of(bearer(KEY), PEER)


@pytest.mark.parametrize("owner", ["key", "certificate"])
def test_a_token_names_no_agent_that_has_a_key_or_a_certificate(tmp_path: Path, owner: str) -> None:
    (tmp_path / "secret").write_text(SECRET)
    (tmp_path / "secret").chmod(0o600)
    owned = (
        block("camera-1", KEY, 0) if owner == "key" else CERTIFICATE.replace("robot-7", "camera-1")
    )
    issuer = '[[token]]\nalgorithm = "HS256"\nkey = "secret"\n'
    callers = ListedCallers(str(file_of(tmp_path, owned + issuer)))
    assert callers.of(token(SECRET, "HS256", sub="camera-2"), PEER).agent == "camera-2"
    with pytest.raises(PermissionDenied, match="camera-1"):
        callers.of(token(SECRET, "HS256", sub="camera-1"), PEER)


def test_white_space_around_a_key_is_no_part_of_it(tmp_path: Path) -> None:
    callers = ListedCallers(str(file_of(tmp_path, block("camera-1", KEY, 0))))
    for shown in ({"x-api-key": f" {KEY} \t"}, {"authorization": f"Bearer   {KEY}  "}):
        assert callers.of(shown, PEER).agent == "camera-1"


def test_a_refusal_is_told_with_its_agent_and_where_it_came_from(tmp_path: Path) -> None:
    told: list[tuple[str, Status, str]] = []
    path = tmp_path / "callers.toml"
    key = new_key(path, "camera-1", "--quota", "0.001")
    callers = ListedCallers(
        str(path), lambda agent, error, peer: told.append((agent, error.status, peer))
    )
    callers.of(bearer(key), PEER)
    for headers in (bearer(key), bearer("swk_wrong")):
        with pytest.raises(SwarmError):
            callers.of(headers, PEER)
    assert told == [
        ("camera-1", Status.RESOURCE_EXHAUSTED, PEER),
        ("", Status.UNAUTHENTICATED, PEER),
    ]


def test_without_a_file_everybody_has_the_name_that_is_given() -> None:
    assert AnyCallers().of({"swarm-agent": "camera-1"}, PEER) == Caller("camera-1")
    assert AnyCallers().of({"swarm-agent": "a" * 64}, PEER).agent == "a" * 64
    assert AnyCallers().of({}, PEER) == Caller()
    for name in ("a.b", "a" * 65, "a b"):
        with pytest.raises(InvalidArgument):
            AnyCallers().of({"swarm-agent": name}, PEER)
