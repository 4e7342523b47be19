"""How a program comes to its server, from its flags: the files of `swarm auth` and of TLS, and the
JetStream domain."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import partial
from typing import Any

from nodes.settings import setting, settings_of
from swarm.errors import InvalidArgument

who = partial(setting, "who it is, and where the server is")


@dataclass(frozen=True, slots=True)
class AccessOptions:
    """Paths of files, and a JetStream domain, "" for none; each is the flag of its name, on every
    command."""

    credentials: str = who("", "A .creds file for the NATS server, as `swarm auth add` writes it.")
    nkey: str = who("", "A file with a bare nkey seed, for servers that list users by their keys.")
    tls_ca: str = who(
        "",
        "PEM file of the authorities that the server's certificate may come from; TLS is required "
        "then.",
    )
    tls_cert: str = who(
        "", "PEM file of this program's own certificate, for servers that ask for one."
    )
    tls_key: str = who("", "PEM file of the key of --tls-cert.")
    domain: str = who(
        "",
        "JetStream domain that models and lanes are in: the hub's, at a site that is linked to "
        "it. Empty: the server's own.",
    )

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> AccessOptions:
        """From settings by name; others are left out."""
        return cls(**{f.name: str(settings.get(f.name, "")) for f in fields(cls)})

    def options(self) -> dict[str, Any]:
        """Arguments of `LinkOptions`."""
        files = {"credentials": self.credentials or None, "nkey": self.nkey or None}
        return asdict(self) | files

    def arguments(self) -> list[str]:
        """The flags that give another program the same access."""
        given = [(f.name, str(getattr(self, f.name))) for f in fields(self)]
        return [
            word for name, path in given if path for word in (f"--{name.replace('_', '-')}", path)
        ]


HELP = {each.name: each.help for each in settings_of(AccessOptions)}
REPLICAS = ("auto", "1", "3")
REPLICAS_HELP = (
    "Servers of a cluster that keep a copy of keys, artifacts, dead letters and audit. auto: three "
    "where there are as many, else one. Or 1, or 3."
)


def read_replicas(text: str) -> int:
    """The setting `--replicas` as a number of copies, 0 for `auto`. Raises `InvalidArgument`."""
    if text not in REPLICAS:
        raise InvalidArgument(f"--replicas {text!r}: it is auto, 1 or 3")
    return 0 if text == "auto" else int(text)


NOTHING = AccessOptions()
