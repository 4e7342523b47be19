"""Certificates of one mesh, for teams without an authority of theirs: servers', and clients'.

    FOLDER/              0700
      ca.pem             whom to trust: the authority's certificate, and a retiring one's behind it
      ca.key             the authority's key

A change of certificates breaks no connection: both sides look at them only when they connect.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from swarm.errors import InvalidArgument
from swarm.security.authority.keys import read_text, write_text

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

VALID = timedelta(days=825)  # the longest that common clients take
AUTHORITY_VALID = timedelta(days=3650)
EARLIER = timedelta(hours=3)  # for clocks of devices that are behind


@dataclass(frozen=True, slots=True)
class CertificateState:
    """What a certificate says. serial: in hexadecimal. issuer: the first digits of the key id of
    its authority. until: when it ends. hosts: names and addresses, none for a client's."""

    file: Path
    name: str
    hosts: tuple[str, ...]
    serial: str
    issuer: str
    until: datetime


class CertificateAuthority:
    """An authority of certificates in a folder.

    All methods raise `InvalidArgument` for files that are damaged, or that others may read.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.trusted = folder / "ca.pem"
        self._key_file = folder / "ca.key"

    @property
    def exists(self) -> bool:
        """Whether `make` was called for this folder."""
        return self._key_file.exists()

    def make(self) -> None:
        """Make a new authority, whose certificates are issued from now on. Certificates of those
        before it stay trusted until `finish`."""
        from cryptography.hazmat.primitives.asymmetric import ec

        before = read_text(self.trusted) if self.exists else ""
        key = ec.generate_private_key(ec.SECP256R1())
        # Trusted before it signs: if this process ends between the two steps, every certificate is
        # still trusted.
        write_text(self.trusted, _pem(_authority_certificate(key)) + before)
        write_text(self._key_file, _key_pem(key))

    def finish(self) -> None:
        """Certificates of earlier authorities are trusted no more."""
        write_text(self.trusted, _pem(self._certificates()[0]))

    @property
    def is_changing(self) -> bool:
        """Whether an earlier authority is trusted still."""
        return len(self._certificates()) > 1

    @property
    def issuer(self) -> str:
        """The present authority, as `CertificateState.issuer` names it."""
        return _key_id(self._certificates()[0])

    def issue_server(
        self, folder: Path, hosts: Sequence[str], valid: timedelta = VALID
    ) -> tuple[Path, Path, Path]:
        """Write a server's certificate for `hosts` (names and addresses) and its key into a folder,
        with a copy of the authority's; returns the paths of all three, the authority's first.
        Raises `InvalidArgument` for a name with a star that no client takes."""
        paths = folder / "ca.pem", folder / "server.pem", folder / "server.key"
        write_text(paths[0], read_text(self.trusted))
        self._issue(paths[1], paths[2], hosts[0], hosts, valid)
        return paths

    def issue_client(
        self, folder: Path, name: str, valid: timedelta = VALID
    ) -> tuple[Path, Path, Path]:
        """The same for a client of this name, in NAME.pem and NAME.key."""
        paths = folder / "ca.pem", folder / f"{name}.pem", folder / f"{name}.key"
        write_text(paths[0], read_text(self.trusted))
        self._issue(paths[1], paths[2], name, (), valid)
        return paths

    def _issue(
        self, cert: Path, key_file: Path, name: str, hosts: Sequence[str], valid: timedelta
    ) -> None:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import ExtendedKeyUsageOID

        own, own_key = self._certificates()[0], self._key()
        key = ec.generate_private_key(ec.SECP256R1())
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = _certificate(_named(name), own.subject, key.public_key(), valid).add_extension(
            x509.BasicConstraints(ca=False, path_length=None), critical=True
        )
        if hosts:
            usages.append(ExtendedKeyUsageOID.SERVER_AUTH)
            names = x509.SubjectAlternativeName([_general(host) for host in hosts])
            builder = builder.add_extension(names, False)
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(own_key.public_key())
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), False)
        builder = builder.add_extension(issuer, False)
        # A process that connects between the two steps finds a pair that does not fit, and tries
        # again.
        write_text(key_file, _key_pem(key))
        write_text(cert, _pem(builder.sign(own_key, hashes.SHA256())))

    def _certificates(self) -> list[x509.Certificate]:
        from cryptography import x509

        try:
            return x509.load_pem_x509_certificates(read_text(self.trusted).encode())
        except ValueError as error:
            raise InvalidArgument(f"{self.trusted} holds no certificate: {error}") from None

    def _key(self) -> ec.EllipticCurvePrivateKey:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ec

        try:
            text = read_text(self._key_file).encode()
            key = serialization.load_pem_private_key(text, password=None)
        except (ValueError, TypeError) as error:
            raise InvalidArgument(f"{self._key_file} holds no key: {error}") from None
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise InvalidArgument(f"{self._key_file} is no key of this authority")
        return key


def read_certificate(file: Path) -> CertificateState:
    """What a certificate in a file says. Raises `InvalidArgument`."""
    from cryptography import x509

    try:
        certificate = x509.load_pem_x509_certificate(file.read_bytes())
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"{file} holds no certificate: {error}") from None
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        hosts = tuple(str(name.value) for name in names)
    except x509.ExtensionNotFound:
        hosts = ()
    common = certificate.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
    return CertificateState(
        file=file,
        name=str(common[0].value) if common else "",
        hosts=hosts,
        serial=f"{certificate.serial_number:x}",
        issuer=_issuer_id(certificate),
        until=certificate.not_valid_after_utc,
    )


def _authority_certificate(key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes

    # A name of its own: OpenSSL looks for an issuer by name first.
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    name = _named(f"swarm authority {identifier.digest.hex()[:16]}")
    usage = x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    return (
        _certificate(name, name, key.public_key(), AUTHORITY_VALID)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(identifier, False)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA256())
    )


def _certificate(
    subject: x509.Name, issuer: x509.Name, public: ec.EllipticCurvePublicKey, valid: timedelta
) -> x509.CertificateBuilder:
    from cryptography import x509

    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(now, now + valid) - EARLIER)
        .not_valid_after(now + valid)
    )


def _named(name: str) -> x509.Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _general(host: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        label, _, behind = host.partition(".")
        if "*" in behind or ("*" in label and (label != "*" or "." not in behind)):
            raise InvalidArgument(
                f"{host}: clients take a star for one whole name in front of two names and more, "
                "as in *.nats.example: else give each server's name"
            ) from None
        return x509.DNSName(host)


def _key_id(certificate: x509.Certificate) -> str:
    from cryptography import x509

    return x509.SubjectKeyIdentifier.from_public_key(certificate.public_key()).digest.hex()[:16]


def _issuer_id(certificate: x509.Certificate) -> str:
    from cryptography import x509

    try:
        found = certificate.extensions.get_extension_for_class(x509.AuthorityKeyIdentifier)
    except x509.ExtensionNotFound:
        return ""
    return (found.value.key_identifier or b"").hex()[:16]


def _pem(certificate: x509.Certificate) -> str:
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.PEM).decode()


def _key_pem(key: ec.EllipticCurvePrivateKey) -> str:
    from cryptography.hazmat.primitives import serialization as form

    no_password = form.NoEncryption()
    return key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, no_password).decode()
