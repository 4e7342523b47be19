"""What an authority tells a nats-server: the part of its configuration about users.

Operator mode: the server learns accounts from signed JWTs, and users bring their own. New users
need no change; a revocation is told by the system account, or by these files and a signal.
Plain: every user's public key and rights stand in the file; each change needs a signal.
"""

from __future__ import annotations

import json
from pathlib import Path

from swarm.security.authority.authority import Authority, User
from swarm.security.rights.permissions import Post, permissions_of
from swarm.security.rights.store import ANSWERED_WITHIN, Store
from swarm.security.rights.table import TOKENS_WITHIN, Role, offered_to_clients

# A mesh on a plant's PC. Each line says what it is for.
BASE = """\
port: 4222
# Room for the largest cut plus its header. Nodes check it at start and name the value needed.
max_payload: 16MB
max_pending: 128MB
# A link that was cut without a word is noticed within six seconds instead of four minutes.
ping_interval: "2s"
ping_max: 2
write_deadline: "10s"
jetstream {
  store_dir: "/var/lib/nats"
  max_memory_store: 1GB
  max_file_store: 10GB
  # Encrypted at rest with a key of the environment: JS_KEY=k$(openssl rand -hex 32), kept elsewhere
  # too. The letter matters: digits alone are read as a number. Without the variable the server does
  # not start; an empty one encrypts nothing. With another key it starts without its streams, and
  # its log says "unable to recover keys": nothing is lost, they are back with the right key, and
  # until then nobody can make streams of their names. A new key: start once with
  # `prev_encryption_key: $JS_KEY_BEFORE` beside it.
  # cipher: aes, key: $JS_KEY
}
"""


CIPHER = "cipher: aes, key: $JS_KEY\n"
ENCRYPTED = BASE.replace(f"# {CIPHER}", CIPHER)

WHERE = """\
# The server is started in the folder of this file, wherever that is mounted, read-only too:
#   cd FOLDER && nats-server -c nats-server.conf        (WorkingDirectory=, working_dir, workingDir)
"""
# What the server writes, beside its streams.
STATE = 'pid_file: "/var/lib/nats/server.pid"\n'
RESOLVER = """\
# Accounts that change while the server runs: revocations, limits.
resolver: { type: full, dir: "/var/lib/nats/jwt", allow_delete: false }
"""


def operator_conf(authority: Authority, jwt_folder: str) -> str:
    """The users of an authority, by JWT. jwt_folder: where the server keeps accounts that are
    updated while it runs; absolute. "" where another file says so (`RESOLVER`)."""
    preload = "\n".join(f"  {public}: {jwt}" for public, jwt in authority.accounts().items())
    resolver = f"resolver: {{ type: full, dir: {json.dumps(jwt_folder)}, allow_delete: false }}\n"
    return (
        f"operator: {authority.operator_jwt()}\n"
        f"system_account: {authority.key('system').public}\n"
        + (resolver if jwt_folder else "")
        + f"resolver_preload: {{\n{preload}\n}}\n"
    )


def plain_conf(authority: Authority, now: float) -> str:
    """The valid users of an authority, by public key. now: seconds since 1970.

    Expiry is not the server's business here: write the file anew, and signal.
    """
    valid = [user for user in authority.users if user.state(now) == "valid"]
    clients = [user for user in valid if Post.of(user.role).role == Role.CLIENT]
    members = [user for user in valid if user not in clients]
    limits = authority.limits
    offered = offered_to_clients(authority.mesh)
    exported = [
        f"{{ service: {json.dumps(subject)}, accounts: [CLIENTS]"
        + (f', response_type: stream, threshold: "{TOKENS_WITHIN}s" }}' if many else " }")
        for subject, many in offered
    ]
    imported = [
        f"{{ service: {{ account: MESH, subject: {json.dumps(subject)} }} }}"
        for subject, _ in offered
    ]
    store = authority.store
    jetstream = f"jetstream: {{ max_streams: {limits.streams}, max_consumers: {limits.consumers} }}"
    taken = _of_store(store) if store else f"    {jetstream}\n"
    account_of_store = _store(store, jetstream) if store else ""
    return f"""\
accounts {{
  SYS {{ }}
  MESH {{
    {limits.as_conf(limits.payload)}
    exports: [
{_lines(exported)}
    ]
{taken}    users: [
{_users(authority, members)}
    ]
  }}
{account_of_store}  # Whoever only asks is in an account of its own, and reaches what it asks.
  CLIENTS {{
    {limits.as_conf(limits.client_payload)}
    imports: [
{_lines(imported)}
    ]
    users: [
{_users(authority, clients)}
    ]
  }}
}}
system_account: SYS
"""


def _lines(entries: list[str]) -> str:
    return "\n".join(f"      {entry}" for entry in entries)


_MANY = f', response_type: stream, threshold: "{ANSWERED_WITHIN}s" }}'


def _store(store: Store, jetstream: str) -> str:
    exports = [
        f"      {{ service: {json.dumps(service.subject)}, accounts: [MESH]"
        + (_MANY if service.many else " }")
        for service in store.offered
    ]
    exports += [
        f"      {{ stream: {json.dumps(news.subject)}, accounts: [MESH] }}" for news in store.news
    ]
    return (
        "  # All streams are where members cannot aim the server's answers at them.\n"
        f"  STORE {{\n    {jetstream}\n    exports: [\n" + "\n".join(exports) + "\n    ]\n  }\n"
    )


def _of_store(store: Store) -> str:
    imports = [
        f"      {{ service: {{ account: STORE, subject: {json.dumps(service.subject)} }}, "
        f"to: {json.dumps(service.imported)} }}"
        for service in store.services
    ]
    imports += [
        f"      {{ stream: {{ account: STORE, subject: {json.dumps(news.subject)} }}"
        + (f", to: {json.dumps(news.heard)} }}" if news.heard != news.subject else " }")
        for news in store.news
    ]
    mappings = [
        f"      {json.dumps(mapping.subject)}: {json.dumps(mapping.target)}"
        for mapping in store.mappings
    ]
    return (
        "    imports: [\n" + "\n".join(imports) + "\n    ]\n"
        "    mappings: {\n" + "\n".join(mappings) + "\n    }\n"
    )


def _users(authority: Authority, users: list[User]) -> str:
    blocks = []
    for user in users:
        rights = permissions_of(
            user.role,
            mesh=authority.mesh,
            models=user.models,
            user=user.public,  # a bare key has no name: its inbox is called by the key itself
            stages=user.stages,
            asks=user.asks,
        )
        blocks.append(
            f"      # {user.name}: {user.role} {' '.join(user.models)}\n"
            f"      {{ nkey: {user.public}\n{rights.as_conf('        ')} }}"
        )
    return "\n".join(blocks)


def tls_conf(cert: Path, key: Path, ca: Path | None, mutual: bool) -> str:
    """TLS 1.3 with these files; relative ones are looked for where the server is started. mutual:
    clients need a certificate of `ca`."""
    lines = [
        "tls {",
        f"  cert_file: {json.dumps(str(cert))}",
        f"  key_file: {json.dumps(str(key))}",
        '  min_version: "1.3"',
    ]
    if ca is not None:
        lines.append(f"  ca_file: {json.dumps(str(ca))}")
    if mutual:
        lines.append("  verify: true")
    return "\n".join([*lines, "}", ""])
