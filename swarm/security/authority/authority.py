"""An authority: one folder with all keys of a mesh, and the list of whom it has issued rights to.

    DIR/               0700
      authority.json   the mesh, the users, the revocations
      keys/            seeds: operator, mesh, clients, system; a signing key for each role
      users/           NAME.creds (JWT and seed) and NAME.nk (the seed alone); NAME.pem and NAME.key
                       are a client's certificate, where one was issued
      tls/             the authority of certificates, where one was asked for
      servers.txt      folders of servers' configurations
    .lock            held by the process that changes something

Whoever has this folder can issue every right of the mesh. Nodes need only their own file of users/.
"""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from swarm.errors import InvalidArgument, NotFound
from swarm.security.authority.certificates import CertificateAuthority
from swarm.security.authority.claims import (
    account_body,
    client_exports,
    client_imports,
    credentials_text,
    encode,
    operator_body,
    scope,
    store_exports,
    store_imports,
    store_mappings,
    unlimited_user_body,
    user_body,
)
from swarm.security.authority.keys import (
    AuthorityKey,
    make_private_folder,
    read_text,
    write_text,
)
from swarm.security.authority.limits import NO_LIMITS, UNLIMITED, AccountLimits
from swarm.security.files import WAIT, alone
from swarm.security.nkey import ACCOUNT, OPERATOR, USER
from swarm.security.rights.permissions import MOST_STAGES, Post, needs_model, permissions_of
from swarm.security.rights.store import Store, store_of
from swarm.security.rights.table import ROLES, Role
from swarm.subjects import token

SYSTEM_USER = "system"
P = ParamSpec("P")
T = TypeVar("T")


@dataclass(slots=True)
class User:
    """Somebody who was issued rights. Times: seconds since 1970, 0 for never."""

    name: str
    role: str
    models: list[str]
    stages: int
    public: str
    issued: int
    expires: int = 0
    revoked: int = 0
    asks: list[str] = field(default_factory=list)

    def state(self, now: float) -> str:
        """`valid`, `expired` or `revoked`."""
        if self.revoked:
            return "revoked"
        return "expired" if self.expires and self.expires <= now else "valid"


@dataclass(slots=True)
class _State:
    mesh: str
    users: list[User] = field(default_factory=list)
    generation: int = 1  # of the signing keys
    retiring: int = 0  # the generation before, whose users are still admitted; 0: none
    limits: dict[str, int] = field(default_factory=lambda: asdict(AccountLimits()))
    store: bool = False  # a folder that does not say was made before there was a store
    domain: str = ""  # of the servers' JetStream


OPERATOR_ISSUED = 1_600_000_000  # seconds since 1970, before each mesh


def _alone(act: Callable[Concatenate[Authority, P], T]) -> Callable[Concatenate[Authority, P], T]:
    """An act of an authority, inside `changing`."""

    @functools.wraps(act)
    def changed(self: Authority, /, *args: P.args, **kwargs: P.kwargs) -> T:
        with self.changing():
            return act(self, *args, **kwargs)

    return changed


class Authority:
    """The folder `directory`, which exists (`create` makes it). clock: seconds since 1970.

    All methods raise `InvalidArgument` for files that are damaged, or that others may read. What
    changes something does so on top of all other processes' changes, and raises `Unavailable` where
    another one does not end within `wait` seconds.
    """

    def __init__(
        self, directory: str | Path, clock: Callable[[], float] = time.time, wait: float = WAIT
    ) -> None:
        self.directory = Path(directory)
        self._clock = clock
        self._wait = wait
        self._changes = 0  # that are under way, one in the other
        self._read()

    def _read(self) -> None:
        text = read_text(self.directory / "authority.json")
        try:
            doc: dict[str, Any] = json.loads(text)
            users = [User(**user) for user in doc.pop("users")]
            self._state = _State(users=users, **doc)
            self._limits = AccountLimits.from_doc(self._state.limits)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise InvalidArgument(f"{self.directory}/authority.json is damaged: {error}") from None

    @classmethod
    def create(
        cls, directory: str | Path, mesh: str, clock: Callable[[], float] = time.time
    ) -> Authority:
        """Make all keys in a new folder. Raises `InvalidArgument` where one is there already."""
        folder = Path(directory)
        state = _State(token(mesh, "mesh name"), store=True)
        make_private_folder(folder)
        with alone(folder):
            return cls._made(folder, state, clock)

    @classmethod
    def _made(cls, folder: Path, state: _State, clock: Callable[[], float]) -> Authority:
        if (folder / "authority.json").exists():
            raise InvalidArgument(f"{folder} holds an authority already: give another folder")
        write_text(folder / "authority.json", json.dumps(asdict(state)))
        made = cls(folder, clock)
        for name, kind in (("operator", OPERATOR), ("mesh", ACCOUNT), ("clients", ACCOUNT)):
            made._make_key(name, kind)
        made._make_key("system", ACCOUNT)
        made._make_signing_keys()
        seed = AuthorityKey.new(USER)
        body = unlimited_user_body(made.key("system").public)
        jwt = encode(made.key("system"), seed.public, SYSTEM_USER, body, made._now())
        write_text(made.credentials(SYSTEM_USER), credentials_text(jwt, seed.seed))
        return made

    # --- questions ------------------------------------------------------------------------

    @property
    def mesh(self) -> str:
        return self._state.mesh

    @property
    def users(self) -> list[User]:
        """Everybody who was issued rights, in order; the revoked ones too."""
        return list(self._state.users)

    @property
    def limits(self) -> AccountLimits:
        return self._limits

    def credentials(self, name: str) -> Path:
        """Where a user's credentials file lies."""
        return self.directory / "users" / f"{name}.creds"

    def seed(self, name: str) -> Path:
        """Where a user's bare seed lies, for servers with a plain configuration."""
        return self.directory / "users" / f"{name}.nk"

    @property
    def certificates(self) -> CertificateAuthority:
        """Of servers and clients, where `swarm auth server --tls` made it."""
        return CertificateAuthority(self.directory / "tls")

    @property
    def client_certificates(self) -> list[Path]:
        """The certificates that were issued to clients, in the order of their names."""
        return sorted((self.directory / "users").glob("*.pem"))

    @property
    def servers(self) -> list[Path]:
        """The folders of servers' configurations that this authority has written."""
        record = self.directory / "servers.txt"
        return (
            [Path(line) for line in record.read_text(encoding="utf-8").splitlines()]
            if record.exists()
            else []
        )

    def key(self, name: str) -> AuthorityKey:
        """`operator`, or the account `mesh`, `clients` or `system`."""
        kind = OPERATOR if name == "operator" else ACCOUNT
        return AuthorityKey.read(self._key_path(name), kind)

    @property
    def has_store(self) -> bool:
        """Whether all streams are in an account of their own, where members cannot aim the
        server's answers at them, or at what manages them."""
        return self._state.store

    @property
    def store(self) -> Store | None:
        """What the servers' configuration says of the store, if there is one."""
        return store_of(self.mesh, self._state.domain) if self.has_store else None

    @property
    def store_key(self) -> AuthorityKey:
        """Of the store's account. It issues nobody, and follows from the members' own key, so that
        a folder that is older than the store needs no new file."""
        return self.key("mesh").derived(ACCOUNT, "store")

    def operator_jwt(self) -> str:
        """The operator's word about itself, for the server's configuration. It is always the same:
        a server that runs refuses to read its files again, certificates too, where it differs."""
        operator = self.key("operator")
        body = operator_body(self.key("system").public)
        return encode(operator, operator.public, f"swarm-{self.mesh}", body, OPERATOR_ISSUED)

    def accounts(self) -> dict[str, str]:
        """The JWT of each account, by public key: what a server has to know of users."""
        operator, now = self.key("operator"), self._now()
        mesh, clients, system = self.key("mesh"), self.key("clients"), self.key("system")
        limits, store = self.limits, self.store
        bodies = {
            mesh.public: (
                "MESH",
                account_body(
                    # With a store, without JetStream: no message of this account is a call of it.
                    limits.account(store is None, limits.payload),
                    signing_keys=self._scopes(lambda role: role != Role.CLIENT),
                    revocations=self._revocations(),
                    exports=client_exports(self.mesh),
                    imports=store_imports(store, self.store_key.public) if store else (),
                    mappings=store_mappings(store) if store else {},
                ),
            ),
            # Whoever only asks is in an account of its own, and reaches what it asks.
            clients.public: (
                "CLIENTS",
                account_body(
                    limits.account(False, limits.client_payload),
                    signing_keys=self._scopes(lambda role: role == Role.CLIENT),
                    revocations=self._revocations(),
                    imports=client_imports(self.mesh, mesh.public),
                ),
            ),
            system.public: ("SYS", account_body(NO_LIMITS.account(False, UNLIMITED))),
        }
        if store:
            body = account_body(limits.account(True, limits.payload), exports=store_exports(store))
            bodies[self.store_key.public] = ("STORE", body)
        return {
            public: encode(operator, public, name, body, now)
            for public, (name, body) in bodies.items()
        }

    def _scopes(self, wanted: Callable[[str], bool]) -> list[dict[str, Any]]:
        generations = [self._state.generation] + (
            [self._state.retiring] if self._state.retiring else []
        )
        return [
            scope(self._signing_key(role, generation).public, role, self.mesh, self.limits)
            for generation in generations
            for role in ROLES
            # Of a role that is newer than the keys there is none before the next rotation.
            if wanted(role) and self._key_path(f"{role}.{generation}").exists()
        ]

    def _revocations(self) -> dict[str, int]:
        return {user.public: user.revoked for user in self._state.users if user.revoked}

    # --- acts -----------------------------------------------------------------------------

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Inside, this process alone changes the folder, and knows all that others have changed:
        for what is written, or told to servers, of its state. Acts do so by themselves."""
        if self._changes:
            yield
            return
        with alone(self.directory, self._wait):
            self._read()
            self._changes += 1
            try:
                yield
            finally:
                self._changes -= 1

    @_alone
    def add(
        self,
        name: str,
        role: str,
        models: list[str],
        valid: float = 0.0,
        stages: int = MOST_STAGES,
        asks: Sequence[str] = (),
    ) -> User:
        """Issue one user's files. valid: seconds, 0 for ever. stages: of a fallback's models. asks:
        as of `permissions_of`.

        A name that was revoked or has expired can be issued again, with a new key. Raises
        `InvalidArgument` for a name in use, and as `permissions_of`.
        """
        token(name, "user name")
        permissions_of(role, mesh=self.mesh, models=models, user=name, stages=stages, asks=asks)
        now = self._now()
        for user in self._state.users:
            if user.name == name and user.state(now) == "valid":
                raise InvalidArgument(f"{name} has valid credentials: `swarm auth revoke {name}`")
        if name == SYSTEM_USER:
            raise InvalidArgument(f"{name} is the name of the authority's own user")
        key = AuthorityKey.new(USER)
        models = models if needs_model(Post.of(role).role) else []
        expires = now + int(valid) if valid else 0
        user = User(name, role, models, stages, key.public, now, expires, asks=list(asks))
        self._issue(user, key)
        self._state.users = [
            other for other in self._state.users if other.name != name or other.revoked
        ]
        self._state.users.append(user)
        self._save()
        return user

    @_alone
    def remember_server(self, folder: Path) -> None:
        """A server's configuration is in this folder: later changes are written there too."""
        if folder not in self.servers:
            lines = "".join(f"{known}\n" for known in [*self.servers, folder])
            write_text(self.directory / "servers.txt", lines)

    @_alone
    def limit(self, limits: AccountLimits) -> None:
        """Set the limits of the accounts. Servers have to be told."""
        self._limits, self._state.limits = limits, asdict(limits)
        self._save()

    @_alone
    def separate_store(self) -> None:
        """From the next configuration on there is a store. What servers have in the members'
        account stays behind there, out of reach: models have to be pushed again."""
        self._state.store = True
        self._save()

    @_alone
    def name_domain(self, domain: str) -> None:
        """The servers' JetStream has this name from the next configuration on: processes at linked
        sites call it by that. Raises `SubjectError`."""
        self._state.domain = token(domain, "JetStream domain")
        self._save()

    @_alone
    def revoke(self, name: str) -> User:
        """The user's credentials are refused as soon as the servers hear of it. Raises
        `NotFound`."""
        for user in reversed(self._state.users):
            if user.name == name and not user.revoked:
                # Up to and with this second; a new JWT of the same key is none of ours. A server
                # compares it with the second of the JWT: a clock that was set back since, or is
                # another machine's, must not leave the JWT valid.
                user.revoked = max(self._now(), user.issued)
                self._save()
                for path in (self.credentials(name), self.seed(name)):
                    path.unlink(missing_ok=True)
                return user
        raise NotFound(f"nobody named {name!r} has credentials: `swarm auth list`")

    @_alone
    def rotate(self) -> list[User]:
        """New signing keys, and new files for all valid users, whose own keys stay. The old ones
        are admitted until `finish_rotation`. Returns the users whose files are new."""
        if self._state.retiring:
            raise InvalidArgument(
                "a rotation is under way: `swarm auth rotate --finish`, once all have their new "
                "files"
            )
        self._state.retiring = self._state.generation
        self._state.generation += 1
        self._make_signing_keys()
        now = self._now()
        renewed = [user for user in self._state.users if user.state(now) == "valid"]
        for user in renewed:
            user.issued = max(now, user.issued)  # `revoke` covers the older file too
            self._issue(user, AuthorityKey.read(self.seed(user.name), USER))
        self._save()
        return renewed

    @_alone
    def finish_rotation(self) -> None:
        """The signing keys before the present ones are not accepted any more. Raises
        `InvalidArgument` where no rotation is under way."""
        if not self._state.retiring:
            raise InvalidArgument("no rotation is under way: `swarm auth rotate` begins one")
        retired, self._state.retiring = self._state.retiring, 0
        self._save()
        for role in ROLES:
            self._key_path(f"{role}.{retired}").unlink(missing_ok=True)

    def _issue(self, user: User, key: AuthorityKey) -> None:
        post = Post.of(user.role)
        account = self.key("clients" if post.role == Role.CLIENT else "mesh").public
        stages = post.stages(user.stages)
        tags = [f"model:{model}" for model in user.models]
        tags += [f"asked:{model}" for model in user.asks]
        tags += [f"stage:{stage}" for stage in stages]
        tags += [f"next:{stage + 1}" for stage in stages]
        jwt = encode(
            self._signing_key(post.role, self._state.generation),
            user.public,
            user.name,
            user_body(account, tags),
            user.issued,
            user.expires,
        )
        write_text(self.credentials(user.name), credentials_text(jwt, key.seed))
        write_text(self.seed(user.name), key.seed + "\n")

    # --- files ----------------------------------------------------------------------------

    def _signing_key(self, role: str, generation: int) -> AuthorityKey:
        path = self._key_path(f"{role}.{generation}")
        if not path.exists():
            raise InvalidArgument(
                f"these keys are older than the role {role}: `swarm auth rotate` makes its key"
            )
        return AuthorityKey.read(path, ACCOUNT)

    def _make_signing_keys(self) -> None:
        for role in ROLES:
            self._make_key(f"{role}.{self._state.generation}", ACCOUNT)

    def _make_key(self, name: str, kind: str) -> None:
        write_text(self._key_path(name), AuthorityKey.new(kind).seed + "\n")

    def _key_path(self, name: str) -> Path:
        return self.directory / "keys" / f"{name}.seed"

    def _save(self) -> None:
        write_text(self.directory / "authority.json", json.dumps(asdict(self._state), indent=1))

    def _now(self) -> int:
        return int(self._clock())
