"""Who this process is to the server, and which server it trusts: keys and certificates in files.

Files are read at each connection, so that a rotated one is taken at the next. Every fault is one
`NotAdmitted` that names the file and the remedy.
"""

from __future__ import annotations

import base64
import json
import os
import ssl
import stat
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from swarm.errors import InvalidArgument, NotAdmitted, NotConnected, NotYetValid
from swarm.subjects import TOKEN

LARGEST_FILE = 64 * 1024  # bytes
OF_ANOTHER_NAME = (62, 64)  # OpenSSL's X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH
NOT_YET_VALID, HAS_EXPIRED = 9, 10  # OpenSSL's X509_V_ERR_CERT_NOT_YET_VALID, …_CERT_HAS_EXPIRED
LATEST = 1 << 53  # seconds since 1970, of an expiry


class Access(Protocol):
    """How a client is admitted; `LinkOptions` describes each of these."""

    @property
    def user(self) -> str | None: ...
    @property
    def token(self) -> str | None: ...
    @property
    def credentials(self) -> str | None: ...
    @property
    def nkey(self) -> str | None: ...
    @property
    def tls(self) -> ssl.SSLContext | None: ...
    @property
    def tls_ca(self) -> str: ...
    @property
    def tls_cert(self) -> str: ...
    @property
    def tls_key(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Signer:
    """A user that signs the server's challenge. jwt: "" for a bare nkey. public: its key, "U…".
    name: as in the JWT. begins, expires: of the JWT, seconds since 1970; 0.0 for always, never."""

    public: str
    sign: Callable[[bytes], bytes]
    jwt: str = ""
    name: str = ""
    expires: float = 0.0
    begins: float = 0.0

    def answer(self, nonce: str) -> dict[str, str]:
        """The fields of the CONNECT command."""
        signature = base64.urlsafe_b64encode(self.sign(nonce.encode())).rstrip(b"=").decode()
        return ({"jwt": self.jwt} if self.jwt else {"nkey": self.public}) | {"sig": signature}


def signer_of(options: Access) -> Signer | None:
    """The user of the options' credentials or nkey file; None where there is neither.

    Raises `NotAdmitted` for a file that cannot be read, that others may read, or that holds
    something else.
    """
    if options.credentials is not None:
        return read_credentials(options.credentials)
    if options.nkey is not None:
        return _signer(options.nkey, read_secret(options.nkey, "--nkey").strip(), "--nkey")
    return None


def read_credentials(path: str) -> Signer:
    """The user of a `.creds` file: a JWT and a seed. Raises `NotAdmitted`."""
    lines = [line.strip() for line in read_secret(path, "--credentials").splitlines()]
    blocks = [
        lines[index + 1]
        for index, line in enumerate(lines)
        if line.startswith("-----BEGIN") and index + 1 < len(lines)
    ]
    if len(blocks) != 2:
        raise NotAdmitted(
            f"--credentials {path}: it is no credentials file, which holds a JWT and a seed: "
            "`swarm auth add NAME --role ROLE` writes one; a bare seed is for --nkey"
        )
    jwt, seed = blocks
    claims = read_claims(jwt, path)
    plain = _signer(path, seed, "--credentials")
    if claims.get("sub") != plain.public:
        raise NotAdmitted(
            f"--credentials {path}: its seed is not the key of its JWT: issue it anew"
        )
    name = str(claims.get("name", ""))
    return Signer(
        plain.public,
        plain.sign,
        jwt,
        name,
        _second(claims.get("exp")),
        _second(claims.get("nbf")),
    )


def _second(claim: object) -> float:
    """Of a JWT's claim, in seconds since 1970; 0.0 where it names none."""
    return float(claim) if type(claim) is int and 0 < claim < LATEST else 0.0


def _signer(path: str, seed: str, flag: str) -> Signer:
    from swarm.security.identity import Identity
    from swarm.security.nkey import decode_seed

    try:
        identity = Identity(decode_seed(seed))
    except InvalidArgument as error:
        raise NotAdmitted(f"{flag} {path}: {error}") from None
    return Signer(identity.public, identity.sign)


def read_claims(jwt: str, path: str) -> dict[str, object]:
    """The claims of a JWT, unverified: the server verifies. Raises `NotAdmitted`."""
    try:
        body = jwt.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
        if isinstance(claims, dict):
            return claims
    except (ValueError, IndexError, RecursionError):
        pass  # told below, as for claims that are no map
    raise NotAdmitted(f"--credentials {path}: its JWT cannot be read: issue it anew")


def read_secret(path: str, flag: str) -> str:
    """The text of a file that nobody else may read, or of a pipe. Raises `NotAdmitted`."""
    from swarm.security.readers import check_readers, refused_by_kernel

    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                check_readers(descriptor, path)
            data = file.read(LARGEST_FILE)
    except InvalidArgument as error:
        raise NotAdmitted(f"{flag} {path}: {error}") from None
    except OSError as error:
        reason = refused_by_kernel(path, error)
        raise NotAdmitted(f"{flag} {path}: {reason}: give a file that this user may read") from None
    return data.decode("ascii", "replace")


def inbox_owner(options: Access) -> str:
    """The token of the inbox that a user's rights can name: the user's name, or its public key;
    "" where nobody connects by name. Raises `NotAdmitted` as `signer_of`."""
    signer = signer_of(options)
    if signer is not None:
        return signer.name if TOKEN.fullmatch(signer.name) else signer.public
    user = options.user or ""
    return user if TOKEN.fullmatch(user) else ""


def tls_context(options: Access) -> ssl.SSLContext | None:
    """The context of the options' files, at least TLS 1.3; None where they ask for no TLS.

    Raises `NotAdmitted`.
    """
    if options.tls is not None:
        return options.tls
    if not (options.tls_ca or options.tls_cert or options.tls_key):
        return None
    return own_context(options.tls_ca, options.tls_cert, options.tls_key)


def own_context(ca: str, cert: str, key: str) -> ssl.SSLContext:
    """A client's context: at least TLS 1.3. ca: a file of authorities, "" for the system's. cert,
    key: this client's, or "". Raises `NotAdmitted`."""
    try:
        context = ssl.create_default_context(cafile=ca or None)
    except (OSError, ssl.SSLError) as error:
        raise NotAdmitted(f"--tls-ca {ca}: {_reason(error)}: give a PEM file") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    if bool(cert) != bool(key):
        raise NotAdmitted(
            f"--tls-{'cert' if cert else 'key'} {cert or key}: --tls-cert and --tls-key go together"
        )
    if cert:
        read_secret(key, "--tls-key")
        try:
            context.load_cert_chain(cert, key, password=lambda: "")
        except (OSError, ssl.SSLError) as error:
            raise NotAdmitted(
                f"--tls-cert {cert}, --tls-key {key}: {_reason(error)}: give a PEM certificate and "
                "its own key, without a password"
            ) from None
    return context


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return f"no usable PEM file ({error.reason or 'malformed'})"
    return error.strerror or "it cannot be read"


def tls_refusal(error: ssl.SSLError, where: str, options: Access) -> NotAdmitted:
    """A failed handshake in words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in (NOT_YET_VALID, HAS_EXPIRED):
            refused = NotYetValid if error.verify_code == NOT_YET_VALID else NotAdmitted
            return refused(
                f"{where}: {error.verify_message} by this device's clock, which says "
                f"{_said(datetime.now(UTC).timestamp())}: set "
                "the clock, or issue a new certificate (`swarm auth certs --rotate`)"
            )
        if error.verify_code in OF_ANOTHER_NAME:
            return NotAdmitted(
                f"{where}: its certificate is another server's ({error.verify_message}): give a "
                "URL with a name in it, or issue one with this name too (`swarm auth server "
                "FOLDER --tls NAME`, once for each name)"
            )
        ca = f"--tls-ca {options.tls_ca}" if options.tls_ca else "the system's authorities"
        return NotAdmitted(
            f"{where}: its certificate is not trusted by {ca} ({error.verify_message}): give the "
            "authority that issued it with --tls-ca FILE"
        )
    reason = str(error.reason or error)
    if "CERTIFICATE" in reason.upper() or "UNKNOWN_CA" in reason.upper():
        if options.tls_cert:
            if "EXPIRED" in reason.upper() and _lasts(options.tls_cert):
                return NotYetValid(
                    f"{where} refuses --tls-cert {options.tls_cert} ({reason}), which is valid "
                    "by this device's clock: set the clock that is wrong, the server's or this "
                    f"device's, which says {_said(datetime.now(UTC).timestamp())}"
                )
            return NotAdmitted(
                f"{where} refuses --tls-cert {options.tls_cert} ({reason}): it has ended, or is of "
                "another authority: `swarm auth certs --client NAME` issues one, else give another "
                "by --tls-cert FILE --tls-key FILE"
            )
        return NotAdmitted(
            f"{where} refuses this client's certificate ({reason}): give one of its authority with "
            "--tls-cert FILE --tls-key FILE"
        )
    return NotAdmitted(f"{where}: the TLS handshake failed ({reason}): are the ports right?")


def _lasts(cert: str) -> bool:
    """Whether a certificate that can be read has not ended by this device's clock."""
    try:
        return certificate_end(cert) > datetime.now(UTC).timestamp()
    except (OSError, ValueError):
        return False


def certificate_end(cert: str) -> float:
    """When the first certificate of a PEM file ends, in seconds since 1970. Raises `OSError`,
    `ValueError`."""
    from cryptography.x509 import load_pem_x509_certificate  # for clients with one only

    with open(cert, "rb") as opened:
        data = opened.read(LARGEST_FILE)
    return load_pem_x509_certificate(data).not_valid_after_utc.timestamp()


def _said(second: float) -> str:
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%d %H:%M UTC")


def ended_in_tls(where: str) -> NotConnected:
    """A server that asks for a certificate ended the connection without a word. It may as well
    have been stopped, so this is no refusal."""
    return NotConnected(
        f"{where} asks for a client's certificate, and ended the connection: give one of its "
        "authority with --tls-cert FILE --tls-key FILE"
    )


def early_end(
    error: Exception | None, where: str, options: Access, asks_certificate: bool
) -> NotConnected | None:
    """Why a connection ended before the server admitted it, where TLS may be the reason."""
    if isinstance(error, ssl.SSLError):
        return tls_refusal(error, where, options)
    return ended_in_tls(where) if asks_certificate else None


def refusal(text: str, where: str, options: Access, in_url: bool = False) -> NotAdmitted:
    """The server's refusal of this user, in words: which file, which remedy. in_url: whether the
    server's URL holds a user or a token."""
    if options.credentials is not None:
        path = options.credentials
        said = f"{where} refuses --credentials {path} ({text})"
        try:
            signer = read_credentials(path)
        except NotAdmitted as error:
            return error
        now = datetime.now(UTC).timestamp()
        if signer.expires and signer.expires < now:
            when = _said(signer.expires)
            return NotAdmitted(f"{said}: they expired on {when}: `swarm auth add` issues new ones")
        if signer.begins > now:
            return NotYetValid(
                f"{said}: they are valid from {_said(signer.begins)}, and this device's clock says "
                f"{_said(now)}: set the clock, or wait until then"
            )
        return NotAdmitted(
            f"{said}: they are revoked, expired by the server's clock, or of another operator: "
            "`swarm auth list` shows which; `swarm auth add` issues new ones"
        )
    if options.nkey is not None:
        return NotAdmitted(
            f"{where} refuses --nkey {options.nkey} ({text}): its public key is not among the "
            "server's users: `swarm auth server --plain` lists them"
        )
    if options.user is not None or options.token is not None or in_url:
        return NotAdmitted(f"{where} refuses this user ({text}): check the user, password or token")
    return NotAdmitted(
        f"{where} wants to know who connects ({text}): give --credentials FILE, which `swarm auth "
        "add` writes, or --nkey FILE"
    )


def is_about_identity(text: str) -> bool:
    """Whether the text of an `-ERR` says that the server does not, or no longer, admit the user."""
    text = text.lower()
    return "authorization violation" in text or "authentication" in text
