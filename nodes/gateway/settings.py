"""The settings of a gateway."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from nodes.place import ListenPlace
from nodes.settings import check, setting, tuning
from swarm.errors import InvalidArgument

gateway = partial(setting, "gateway")
DRAIN_TIMEOUT = 4.0  # seconds in which the servers answer what is in flight when they end
AGE_SPREAD = 1.1  # of the age at which gRPC's library ends a connection, at the most


@dataclass(frozen=True)
class GatewayOptions:
    """Raises `InvalidArgument`."""

    http: str = gateway(
        "",
        "gateway: PORT, for this machine alone, or ADDRESS:PORT, where HTTP clients of the Open "
        "Inference Protocol ask. Needs swarm-mesh[gateway]. Off when empty.",
    )
    grpc: str = gateway(
        "",
        "gateway: PORT or ADDRESS:PORT, where gRPC clients of that protocol ask. Off when empty.",
    )
    most_in_flight: int = tuning(
        256, "gateway: requests of all its clients at a time; more are refused.", least=1
    )

    body: int = tuning(
        67,
        "gateway: megabytes of a request, unpacked.",
        unit="MB",
        least=1,
        most=67,
        name="gateway_body_mb",
    )
    bodies: int = tuning(
        512,
        "gateway: megabytes of the requests of all its clients at a time; more are refused before "
        "they are read. gRPC's are counted once they have come.",
        unit="MB",
        least=1,
        name="gateway_bodies_mb",
    )
    full_is_503: bool = tuning(
        False,
        "gateway: say 503, as Triton does, and not 429 where too many requests are in flight.",
        name="gateway_full_is_503",
    )
    compress: bool = tuning(
        False,
        "gateway: compress HTTP answers for clients that accept it; tensors cost more time "
        "than a fast link saves.",
        name="gateway_compress",
    )
    server_name: str = tuning(
        "swarm-mesh",
        "gateway: the server's name in its metadata; some clients of Triton look for `triton`.",
        name="gateway_server_name",
    )

    callers: str = gateway(
        "",
        "gateway: TOML file of who may ask: keys, tokens and certificates, each with its agent and "
        "quota; `swarm keys gateway NAME` adds one. Read again when it changes.",
        name="gateway_callers",
    )
    cert: str = gateway(
        "", "gateway: PEM file of the certificate of both servers.", name="gateway_cert"
    )
    key: str = gateway("", "gateway: PEM file of the key of --gateway-cert.", name="gateway_key")
    client_ca: str = tuning(
        "",
        "gateway: PEM file of the authorities of clients' certificates; the names in them count "
        "where --gateway-callers lists them.",
        name="gateway_client_ca",
    )
    open: bool = tuning(
        False,
        "gateway: answer everybody who reaches an address other than loopback, without TLS or "
        "without --gateway-callers.",
        name="gateway_open",
    )
    cors: str = tuning(
        "",
        "gateway: origins whose pages may ask from a browser, separated by commas: "
        "https://example.org.",
        name="gateway_cors",
    )
    settle: float = tuning(
        0.5,
        "gateway: seconds for which it goes on taking requests when it ends, so that balancers "
        "see that it is not ready. With --grpc, the age of a connection comes on top.",
        least=0,
        most=60,
        name="gateway_settle",
    )
    connection_age: float = tuning(
        3.0,
        "gateway: seconds after which a gRPC client is asked to connect again, perhaps to another "
        "gateway. One that ends waits until all clients have been asked, so that none loses a "
        "call; 0 for never, and calls are lost.",
        least=0,
        most=60,
        name="gateway_connection_age",
    )
    allow_client_shm: bool = tuning(
        False,
        "gateway: let clients of this host pass tensors in shared memory of theirs. They may name "
        "all that this process may open, but for the mesh's.",
        name="allow_client_shm",
    )

    def __post_init__(self) -> None:
        check(self)
        if not self.is_on:
            return
        if self.bodies < self.body:
            raise InvalidArgument("--gateway-bodies-mb is not below --gateway-body-mb")
        if bool(self.cert) != bool(self.key):
            raise InvalidArgument("--gateway-cert and --gateway-key go together")
        if self.client_ca and not (self.cert and self.callers):
            raise InvalidArgument("--gateway-client-ca needs --gateway-cert and --gateway-callers")
        for flag, place in (("--http", self.http_place), ("--grpc", self.grpc_place)):
            closed = bool(self.cert and self.callers)
            if place is not None and not (place.is_loopback or closed or self.open):
                raise InvalidArgument(
                    f"{flag} {place.host} is open to everybody who reaches it: give "
                    "--gateway-cert, --gateway-key and --gateway-callers, or --gateway-open if "
                    "that is meant"
                )

    @property
    def is_on(self) -> bool:
        """Whether there is a server at all."""
        return bool(self.http or self.grpc)

    @property
    def goes_on_for(self) -> float:
        """Seconds for which it takes requests when it ends: until balancers have seen it, and then
        until the library has asked every gRPC client to go, which it does a tenth early or late.
        """
        return self.settle + (AGE_SPREAD * self.connection_age if self.grpc else 0.0)

    @property
    def leaves_within(self) -> float:
        """Seconds in which it has to be gone, since it was told so: its node holds no stage."""
        return self.goes_on_for + DRAIN_TIMEOUT + 2.0

    @property
    def http_place(self) -> ListenPlace | None:
        """None where HTTP is off. Raises `InvalidArgument`."""
        return ListenPlace.of(self.http) if self.http else None

    @property
    def grpc_place(self) -> ListenPlace | None:
        """None where gRPC is off. Raises `InvalidArgument`."""
        return ListenPlace.of(self.grpc) if self.grpc else None

    @property
    def origins(self) -> tuple[str, ...]:
        """Those whose pages may ask."""
        return tuple(each.strip() for each in self.cors.split(",") if each.strip())
