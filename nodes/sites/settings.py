"""The settings of a gateway that forwards what sites have stored."""

from __future__ import annotations

from dataclasses import dataclass

from nodes.settings import check, setting
from swarm.subjects import token


@dataclass(frozen=True)
class SiteOptions:
    """Raises `InvalidArgument`."""

    site: str = setting(
        "which stage of which model",
        "",
        "gateway: JetStream domains whose stored requests it forwards, separated by commas.",
    )

    def __post_init__(self) -> None:
        check(self)
        for site in self.sites:
            token(site, "site (--site DOMAIN)")

    @property
    def sites(self) -> tuple[str, ...]:
        """Those whose stored requests a gateway forwards."""
        return tuple(each for each in self.site.split(",") if each)
