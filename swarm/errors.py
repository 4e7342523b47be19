"""Errors of the mesh, and the status words that travel in results.

    SwarmError                      anything this package raises on purpose; has a `status`
    ├── InvalidArgument             the request is wrong: name, shape, datatype, size
    │   ├── DecodeError             bytes that are no message of ours
    │   ├── MessageTooLarge         more bytes than the server takes in one message
    │   ├── BadAddress              the address of a server, which cannot be one
    │   └── SubjectError            a token that may not stand in a subject
    ├── NotFound                    unknown model, version, artifact
    ├── Unauthenticated             a signature or key that does not match
    │   ├── BadSignature            bytes that their key did not sign for this purpose
    │   ├── BadKey                  (InvalidArgument too) a file of keys that cannot be used
    │   ├── BadSeal                 an encrypted artifact that its key does not open
    │   ├── Untrusted               a stored value without a trusted, valid and new signature
    │   └── NotAllowed              a key that is known, and may not do this
    ├── PermissionDenied            the user's rights do not allow it
    ├── DeadlineExceeded            the budget ended
    ├── ResourceExhausted           a lane, quota or buffer is full: come back later
    ├── Cancelled                   its client has ended the request
    ├── Unavailable                 nobody can answer at present
    │   ├── NotConnected            no connection to a NATS server
    │   │   ├── LinkEnded           it was closed, or has met a defect: none comes back
    │   │   └── NotAdmitted         (Unauthenticated too) one side does not trust the other
    │   │       ├── NotYetValid     it will be trusted once a clock that is behind is set
    │   │       ├── ServerTooOld    a server that cannot keep lanes
    │   │       └── SeveralClusters the servers of one list are of more than one
    │   ├── NoResponders            nobody listens on that subject
    │   └── NoLeader                the server that keeps it is away, or a cluster elects
    ├── Internal                    a fault on the mesh's side
    └── ApiError                    JetStream refused a call (code, err_code, description)

Status words are gRPC's canonical names (grpc/doc/statuscodes.md).
"""

from __future__ import annotations

from enum import StrEnum


class Status(StrEnum):
    """How a request ended, by gRPC's canonical names."""

    OK = "OK"
    CANCELLED = "CANCELLED"
    INVALID_ARGUMENT = "INVALID_ARGUMENT"
    NOT_FOUND = "NOT_FOUND"
    DEADLINE_EXCEEDED = "DEADLINE_EXCEEDED"
    RESOURCE_EXHAUSTED = "RESOURCE_EXHAUSTED"
    UNAVAILABLE = "UNAVAILABLE"
    UNAUTHENTICATED = "UNAUTHENTICATED"
    PERMISSION_DENIED = "PERMISSION_DENIED"
    INTERNAL = "INTERNAL"


class SwarmError(Exception):
    """Base of all errors; `status` is what a requester is told."""

    status = Status.INTERNAL


class InvalidArgument(SwarmError):
    status = Status.INVALID_ARGUMENT


class MessageTooLarge(InvalidArgument):
    """A message has more bytes than the server's max_payload: later it would not fit either."""


class DecodeError(InvalidArgument):
    """Bytes that are not a message of this wire format, or break its limits."""


class SubjectError(InvalidArgument):
    """A token that may not stand in a subject."""


class BadAddress(InvalidArgument):
    """An address of a server that cannot be one, or none at all. To wait does not help."""


class NotFound(SwarmError):
    status = Status.NOT_FOUND


class Unauthenticated(SwarmError):
    status = Status.UNAUTHENTICATED


class BadSignature(Unauthenticated):
    """The signature is not the key's own over these bytes for this purpose."""


class BadKey(Unauthenticated, InvalidArgument):
    """A file of keys that cannot be used: missing, readable by others, of the wrong kind. The
    message names the file and the remedy."""


class BadSeal(Unauthenticated):
    """An encrypted artifact that the key does not open: another key's, altered, or cut short."""


class Untrusted(Unauthenticated):
    """Desired state or a manifest that is unsigned, altered, older than one that was seen, or
    signed by a key that is not trusted. Nothing of it was parsed."""


class NotAllowed(Unauthenticated):
    status = Status.PERMISSION_DENIED


class PermissionDenied(SwarmError):
    """Who asks is known, and has no right to it: the server refused a publish or a subscription."""

    status = Status.PERMISSION_DENIED


class Cancelled(SwarmError):
    """Its client has ended the request, and needs no answer any more."""

    status = Status.CANCELLED


class DeadlineExceeded(SwarmError):
    status = Status.DEADLINE_EXCEEDED


class ResourceExhausted(SwarmError):
    """retry_after: seconds after which it may be tried again; 0.0 where nobody knows, `math.inf`
    where it is of no use."""

    status = Status.RESOURCE_EXHAUSTED

    def __init__(self, message: str, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Unavailable(SwarmError):
    status = Status.UNAVAILABLE


class NotConnected(Unavailable):
    """There is no connection to a NATS server at present."""


class LinkEnded(NotConnected):
    """The connection's own work has ended: it was closed, or has met a defect. It does not come
    back, so who waits for it ends too."""


class NotAdmitted(Unauthenticated, NotConnected):
    """The server refuses who connects, or the client refuses the server: credentials, key,
    certificate, TLS. To try again does not help; the message names the file and the remedy."""


class NotYetValid(NotAdmitted):
    """A certificate or credentials that begin later than a clock says: that clock is behind, as
    that of a device without a battery is until it has asked for the time. It passes."""


class ServerTooOld(NotAdmitted):
    """A server of a version that cannot keep lanes; the message names the version that can."""

    status = Status.UNAVAILABLE


class SeveralClusters(NotAdmitted):
    """The servers of one list belong to more than one cluster."""

    status = Status.INVALID_ARGUMENT


class NoResponders(Unavailable):
    """Nobody listens on the subject: the server said so at once, without a timeout."""


class NoLeader(Unavailable):
    """JetStream cannot do it at present: the server that keeps the stream is away, or a cluster
    elects its leaders, which takes seconds. The same call works later."""


class Internal(SwarmError):
    status = Status.INTERNAL


class ApiError(SwarmError):
    """JetStream refused a call.

    `code` is HTTP-like (404, 503 …), `err_code` the server's own number (10077: a stream
    limit is reached), which is the one to switch on: one `code` has several meanings.
    """

    status = Status.UNAVAILABLE

    def __init__(self, code: int, err_code: int, description: str) -> None:
        super().__init__(f"JetStream: {description} (code {code}, err_code {err_code})")
        self.code = code
        self.err_code = err_code
        self.description = description


_BY_STATUS: dict[str, type[SwarmError]] = {
    Status.CANCELLED: Cancelled,
    Status.INVALID_ARGUMENT: InvalidArgument,
    Status.NOT_FOUND: NotFound,
    Status.DEADLINE_EXCEEDED: DeadlineExceeded,
    Status.UNAVAILABLE: Unavailable,
    Status.UNAUTHENTICATED: Unauthenticated,
    Status.PERMISSION_DENIED: PermissionDenied,
}


def retry_after_of(error: BaseException) -> float:
    """Seconds after which what this error ends may be tried again; 0.0 where it does not say."""
    return error.retry_after if isinstance(error, ResourceExhausted) else 0.0


def error_for(status: str, message: str, retry_after: float = 0.0) -> SwarmError:
    """The error a status word stands for; `Internal` for a word nobody knows."""
    if status == Status.RESOURCE_EXHAUSTED:
        return ResourceExhausted(message, retry_after)
    return _BY_STATUS.get(status, Internal)(message)
