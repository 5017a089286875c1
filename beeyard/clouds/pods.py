"""
What the providers have in common: an offer, an order, a pod. Pure.

Prices are US dollars an hour, sizes GB as the providers count them, memory MiB, times UTC.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Literal, NamedTuple, Protocol

from pydantic import Field, StringConstraints

from beeyard.catalog import CatalogError, Strict

CloudName = Literal["runpod", "vast"]
Expose = Literal["tunnel", "proxy", "tcp"]
AtDeadline = Literal["end", "stop"]
# What begins with this is ours, and nothing else is ever stopped or ended.
LABEL = "beeyard-"
# What a pod's environment says of itself; never a secret.
VARIABLE = "BEEYARD_"
PREFIX = "/workspace/beeyard"
PORT = 8910
# Of TLS, for expose tcp.
TLS_PORT = 8911

PodName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9-]{0,40}$")]


class CloudError(CatalogError):
    """The provider, or a pod of it, does not do what is asked. One sentence that ends in ``Fix: …``."""


class KeyRefused(CloudError):
    """No key, or one that the provider does not take for this."""


class NoFunds(CloudError):
    """The account has no money for it."""


class NoCapacity(CloudError):
    """What was offered is no longer there."""


class NotThere(CloudError):
    """The provider knows no such thing."""


class Unclear(CloudError):
    """No answer, or none that says whether it was done."""


class Address(Strict):
    """Where sshd answers."""

    host: str
    port: int = Field(ge=1, le=65535)
    user: str = "root"


class Offer(Strict):
    """One card with a machine around it, and what an hour costs, the disk included where that is known."""

    cloud: CloudName
    # What the provider wants to be told to rent it.
    id: str
    gpu: str
    compute_capability: str
    memory_mib: int
    price: float = Field(ge=0)
    region: str = ""
    # From 0 to 1; None where the provider does not say it.
    reliability: float | None = None
    # High, Medium or Low where the provider has many of a kind.
    stock: str = ""
    # The newest CUDA that its driver speaks: at least this.
    cuda: str = ""
    driver: str = ""
    host_memory_mib: int = 0
    disk_gb: float | None = None


class Wish(Strict):
    """What is looked for. A provider may leave out what cannot be it; what is returned is looked at again."""

    memory_mib: int = 0
    cuda: str = ""
    disk_gb: int = 100
    hours: float = 8
    reliability: float = Field(default=0.98, ge=0, le=1)
    max_price: float | None = None


class Order(Strict):
    """A pod as it is to be. ``disk_gb`` is the volume on /workspace, ``system_gb`` what is gone with a stop."""

    name: PodName
    preset: str
    variant: str | None = None
    image: str
    # Whether it is ours (docs/image.md), which starts everything by itself.
    is_our_image: bool = False
    cuda: str = ""
    disk_gb: int = Field(default=100, ge=10)
    system_gb: int = Field(default=30, ge=5)
    network_volume: str | None = None
    public_key: str
    # The name of a secret that the provider keeps; never a token itself.
    hf_secret: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_]+$")] | None = None
    deadline: datetime
    at_deadline: AtDeadline = "end"
    idle_minutes: int | None = Field(default=None, ge=5)
    expose: Expose = "tunnel"

    @property
    def label(self) -> str:
        """What the provider calls it."""
        return LABEL + self.name

    @property
    def environment(self) -> dict[str, str]:
        """What its container's environment says of it, and what we read there later."""
        said = {
            "DEADLINE": stamp(self.deadline),
            "AT_DEADLINE": self.at_deadline,
            "PRESET": self.preset,
            "VARIANT": self.variant or "",
            "IDLE_MINUTES": str(self.idle_minutes or ""),
            "EXPOSE": self.expose,
        }
        return {f"{VARIABLE}{key}": value for key, value in said.items() if value}


class Pod(Strict):
    """What is rented. Of its environment only what is ours."""

    cloud: CloudName
    id: str
    label: str
    # lost: it should run and does not, as the provider says.
    state: Literal["starting", "running", "stopped", "lost"]
    # What the provider says about it, or what is wrong with it.
    told: str = ""
    gpu: str = ""
    # None: the provider does not say it.
    gpus: int | None = None
    price: float = 0
    region: str = ""
    started: datetime | None = None
    ssh: Address | None = None
    # What of its making will never let us in, as a port that was left out.
    unreachable: str = ""
    proxy_url: str = ""
    # Where the world finds its TLS port, as HOST:PORT; empty where it has none.
    tls_at: str = ""
    # What goes on costing while it is stopped.
    disk_gb: float = 0
    network_volume: str = ""
    said: dict[str, str] = {}

    @property
    def name(self) -> str:
        """Its own part of the label."""
        return self.label.removeprefix(LABEL)

    @property
    def is_ours(self) -> bool:
        """Whether it carries our label."""
        return self.label.startswith(LABEL)

    @property
    def deadline(self) -> datetime | None:
        """When it ends by itself; None where it was made without."""
        return moment(self.said.get(f"{VARIABLE}DEADLINE", ""))

    @property
    def spent(self) -> float | None:
        """About what it cost since it was started last; None where that is not said."""
        if self.started is None or self.state == "stopped":
            return None
        return max(0.0, (datetime.now(self.started.tzinfo) - self.started).total_seconds() / 3600 * self.price)


class Kept(NamedTuple):
    """What of ours or of the account's goes on costing when all pods are gone."""

    what: str
    dollars_a_month: float | None = None


class Cloud(Protocol):
    """A provider's API. Every method asks it anew and raises a CloudError."""

    @property
    def name(self) -> CloudName:
        """As commands and inventories call it."""

    def offers(self, wish: Wish) -> list[Offer]:
        """What can be rented now."""

    def pods(self) -> list[Pod]:
        """All of the account that carry our label."""

    def pod(self, pod_id: str) -> Pod | None:
        """One of them, whatever its label; None where it is gone."""

    def create(self, offer: Offer, order: Order) -> str:
        """Rent; the new pod's id."""

    def admit(self, pod_id: str, public_key: str) -> None:
        """Let a key in, where that is not part of the order."""

    def start(self, pod_id: str) -> None:
        """Let a stopped one run again."""

    def stop(self, pod_id: str) -> None:
        """Stop one; its disk goes on costing."""

    def end(self, pod_id: str) -> None:
        """Delete one, with its disk. That it is gone already is no error."""

    def kept(self) -> list[Kept]:
        """What else of the account costs money by the hour."""

    def spent(self, pods: list[Pod]) -> dict[str, float]:
        """What the provider charged for pods, by id, where it says so."""


def ours(environment: Mapping[str, str]) -> dict[str, str]:
    """What of a pod's environment we wrote; the rest may hold secrets and is forgotten here."""
    return {key: value for key, value in environment.items() if key.startswith(VARIABLE)}


def stamp(when: datetime) -> str:
    """A time as the providers and our watcher read it, in whole seconds."""
    return when.strftime("%Y-%m-%dT%H:%M:%SZ")


def moment(text: str) -> datetime | None:
    """A time as it was written somewhere, ISO 8601 or RunPod's ``2024-07-12 19:14:40.144 +0000 UTC``; else None."""
    try:
        found = datetime.fromisoformat(text.strip().removesuffix(" UTC").replace(" +", "+"))
    except ValueError:
        return None
    return found if found.tzinfo else None
