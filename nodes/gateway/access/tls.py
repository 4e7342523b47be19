"""TLS of a gateway's servers, from files that may change while it runs."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path
from typing import Any

from swarm.errors import InvalidArgument
from swarm.periodic import beat

log = logging.getLogger("swarm.gateway")

LOOK_EVERY = 1.0  # seconds
Pems = tuple[bytes, bytes, bytes]  # certificate, key, authorities of clients; b"" for none


class ServerTls:
    """context: of the HTTP server; connections that begin after a change get the new certificate.
    Clients may show a certificate where there are authorities for it: over gRPC they must.

    client_ca: "" for none. Raises `InvalidArgument` for files that cannot be used.
    """

    def __init__(self, certificate: str, key: str, client_ca: str = "") -> None:
        self._paths = (certificate, key, client_ca)
        self.context = _context(*self._paths)
        self._pems = self._read()

    async def follow(self) -> None:
        """Take new files, until cancelled. Files that cannot be used change nothing, and are named
        once."""
        faulty: Pems | None = None
        while True:
            await beat(LOOK_EVERY)
            try:
                pems = self._read()
                if pems in (self._pems, faulty):
                    continue
                faulty = pems  # until they are proven
                _context(*self._paths)
                self.context.load_cert_chain(*self._paths[:2])
                if self._paths[2]:
                    self.context.load_verify_locations(self._paths[2])
            except (OSError, InvalidArgument) as error:
                log.warning("the certificate of before is shown: %s", error)
                continue
            self._pems, faulty = pems, None
            log.info("a new certificate is shown: %s", self._paths[0])

    def for_grpc(self) -> Any:
        """`grpc.ServerCredentials` that go with the files."""
        import grpc

        shown: Pems | None = None

        def configuration() -> Any:
            nonlocal shown
            shown = self._pems
            certificate, key, authorities = shown
            return grpc.ssl_server_certificate_configuration(
                [(key, certificate)], authorities or None
            )

        def changed() -> Any:  # in a thread of gRPC, at each handshake
            return None if shown is self._pems else configuration()

        return grpc.dynamic_ssl_server_credentials(
            configuration(), changed, require_client_authentication=bool(self._paths[2])
        )

    def _read(self) -> Pems:
        """Raises `OSError`."""
        certificate, key, client_ca = self._paths
        return (
            Path(certificate).read_bytes(),
            Path(key).read_bytes(),
            Path(client_ca).read_bytes() if client_ca else b"",
        )


def _context(certificate: str, key: str, client_ca: str) -> ssl.SSLContext:
    """Raises `InvalidArgument`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(certificate, key)
        if client_ca:
            context.load_verify_locations(client_ca)
            context.verify_mode = ssl.CERT_OPTIONAL
    except (OSError, ssl.SSLError) as error:
        files = ", ".join(path for path in (certificate, key, client_ca) if path)
        raise InvalidArgument(f"{files}: {error}") from None
    return context
