"""
Vast.ai: its REST API at console.vast.ai.

It ends no instance at a time that is asked for: a watcher inside does (``onhost/watch.py``), which ``onstart`` starts
at every start with the instance's own key. Source: docs.vast.ai (api-reference and its OpenAPI files), vast-cli.
"""

import base64
import gzip
import os
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field

from beeyard.clouds.api import LONGEST_ANSWER_S, Api, shaped
from beeyard.clouds.pods import (
    PREFIX,
    TLS_PORT,
    Address,
    CloudError,
    Kept,
    NoCapacity,
    NotThere,
    Offer,
    Order,
    Pod,
    Wish,
    ours,
)

TITLE = "Vast.ai"
KEY_VARIABLE = "VAST_API_KEY"
WHERE_KEYS = "https://cloud.vast.ai/manage-keys/"
URL_VARIABLE = "VAST_URL"
URL = "https://console.vast.ai"
# Vast.ai's own image; it chooses the tag by the machine's CUDA.
BASE_IMAGE = "vastai/base-image:@vastai-automatic-tag"
WATCH = Path(__file__).parents[1] / "onhost" / "watch.py"
# Of onstart, as its API has it.
LONGEST_START = 4096
MOST_OFFERS, PAGE, MOST_PAGES = 64, 25, 40
# Mbit/s: a model of 20 GB comes in half an hour.
LEAST_DOWNLOAD = 100
SPEAKS_OF_STOPPED = ("exited", "stopped", None)


class _Offer(BaseModel):
    id: int
    gpu_name: str
    compute_cap: int
    gpu_ram: float
    dph_total: float
    num_gpus: int = 1
    reliability: float | None = None
    reliability2: float | None = None
    geolocation: str | None = None
    cuda_max_good: float | None = None
    driver_version: str | None = None
    cpu_ram: float | None = None
    disk_space: float | None = None


class _Offers(BaseModel):
    offers: list[_Offer]


class _Mapping(BaseModel):
    HostPort: int = Field(ge=0, le=65535)


class _Instance(BaseModel):
    id: int
    label: str | None = None
    actual_status: str | None = None
    intended_status: str | None = None
    cur_state: str | None = None
    status_msg: str | None = None
    public_ipaddr: str | None = None
    ports: dict[str, list[_Mapping] | None] | None = None
    ssh_host: str | None = None
    ssh_port: int | None = Field(default=None, ge=0, le=65535)
    gpu_name: str | None = None
    num_gpus: int | None = None
    dph_total: float | None = None
    start_date: float | None = None
    geolocation: str | None = None
    disk_space: float | None = None
    extra_env: list[list[str]] | dict[str, str] | None = None


class _Page(BaseModel):
    instances: list[_Instance]
    next_token: str | None = None


class _One(BaseModel):
    instances: _Instance | None = None


class _Made(BaseModel):
    new_contract: int = Field(gt=0)


class Vast:
    """Vast.ai's API with one key."""

    name: Literal["vast"] = "vast"

    def __init__(
        self, key: str, answer_s: float = LONGEST_ANSWER_S, pause: Callable[[float], None] = time.sleep
    ) -> None:
        self._api = Api(TITLE, os.environ.get(URL_VARIABLE) or URL, key, WHERE_KEYS, answer_s, pause)

    def offers(self, wish: Wish) -> list[Offer]:
        """Verified machines with one card, direct ports and room for the disk, that stay as long as is asked."""
        asked: dict[str, Any] = {
            "type": "ondemand",
            "verified": {"eq": True},
            "rentable": {"eq": True},
            "rented": {"eq": False},
            "gpu_arch": {"eq": "nvidia"},
            "cpu_arch": {"eq": "amd64"},
            "num_gpus": {"eq": 1},
            "gpu_ram": {"gte": wish.memory_mib},
            "reliability": {"gte": wish.reliability},
            "direct_port_count": {"gte": 1},
            "inet_down": {"gte": LEAST_DOWNLOAD},
            "disk_space": {"gte": wish.disk_gb},
            "duration": {"gte": wish.hours * 3600},
            "allocated_storage": wish.disk_gb,
            "order": [["dph_total", "asc"]],
            "limit": MOST_OFFERS,
        }
        if wish.cuda:
            asked["cuda_max_good"] = {"gte": float(wish.cuda)}
        if wish.max_price is not None:
            asked["dph_total"] = {"lte": wish.max_price}
        found = shaped(_Offers, self._api.ask("POST", "/api/v0/bundles/", asked), TITLE).offers
        return [_offer(one) for one in found if one.num_gpus == 1]

    def pods(self) -> list[Pod]:
        """All instances that carry our label."""
        found, token = [], None
        for _ in range(MOST_PAGES):
            query = {"limit": str(PAGE), **({"after_token": token} if token else {})}
            page = shaped(_Page, self._api.ask("GET", "/api/v1/instances/", query=query), TITLE)
            found += [_pod(one) for one in page.instances]
            token = page.next_token
            if not token:
                break
        return [pod for pod in found if pod.is_ours]

    def pod(self, pod_id: str) -> Pod | None:
        """One instance, whoever's; None once it is destroyed."""
        try:
            found = shaped(_One, self._api.ask("GET", f"/api/v0/instances/{int(pod_id)}/"), TITLE).instances
        except NotThere:
            return None
        return None if found is None else _pod(found)

    def create(self, offer: Offer, order: Order) -> str:
        """Rent an offer."""
        try:
            answer = self._api.ask("PUT", f"/api/v0/asks/{int(offer.id)}/", self.rental(order), is_repeatable=False)
        except NotThere as error:
            raise NoCapacity(f"{TITLE} rented offer {offer.id} to somebody else. Fix: take another offer") from error
        except CloudError as error:
            if "no_such_ask" in str(error):
                raise NoCapacity(f"{TITLE}: offer {offer.id} is gone. Fix: take another offer") from error
            raise
        return str(shaped(_Made, answer, TITLE).new_contract)

    def rental(self, order: Order) -> dict[str, Any]:
        """What its API is asked for."""
        if order.network_volume is not None:
            raise CloudError(
                f"{TITLE} has no network volume that outlives an instance on any machine. "
                "Fix: leave --network-volume out"
            )
        if order.hf_secret is not None:
            raise CloudError(
                f"{TITLE} keeps secrets for the whole account alone. Fix: leave --hf-secret out, and add HF_TOKEN to "
                "the account's environment variables (https://cloud.vast.ai/account/)"
            )
        return {
            "image": order.image,
            "label": order.label,
            "disk": order.disk_gb + order.system_gb,
            "runtype": "ssh_direct",
            "target_state": "running",
            # Nothing is made where it cannot start at once: a stopped instance would cost, too.
            "cancel_unavail": True,
            "env": {
                **order.environment,
                "SSH_PUBLIC_KEY": order.public_key,
                # A port is asked for among the variables, as docker's option has it.
                **({f"-p {TLS_PORT}:{TLS_PORT}": "1"} if order.expose == "tcp" else {}),
            },
            "onstart": on_start(),
        }

    def admit(self, pod_id: str, public_key: str) -> None:
        """Let a key in; the account's own keys are let in anyhow."""
        self._api.ask("POST", f"/api/v0/instances/{int(pod_id)}/ssh/", {"ssh_key": public_key})

    def start(self, pod_id: str) -> None:
        """Let a stopped instance run again."""
        self._api.ask("PUT", f"/api/v0/instances/{int(pod_id)}/", {"state": "running"})

    def stop(self, pod_id: str) -> None:
        """Stop an instance; its disk goes on costing."""
        self._api.ask("PUT", f"/api/v0/instances/{int(pod_id)}/", {"state": "stopped"})

    def end(self, pod_id: str) -> None:
        """Destroy an instance and its disk."""
        try:
            self._api.ask("DELETE", f"/api/v0/instances/{int(pod_id)}/", {})
        except NotThere:
            return

    def kept(self) -> list[Kept]:
        """Nothing: disks end with their instances, and we make no volumes."""
        return []

    def spent(self, pods: list[Pod]) -> dict[str, float]:
        """Nothing: it is computed from price and time."""
        return {}


def on_start() -> str:
    """
    What an instance does at every start: the watcher, and what a deploy left on the disk.

    The watcher travels in it, so that an instance that nobody ever reached ends as well.
    """
    packed = base64.b64encode(gzip.compress(WATCH.read_bytes(), mtime=0)).decode()
    script = (
        f"mkdir -p {PREFIX}/bin {PREFIX}/log; "
        "command -v python3 >/dev/null || { apt-get update; apt-get install --yes python3; }; "
        f"printf %s {packed} | base64 -d | gunzip >{PREFIX}/bin/watch.py; "
        f"nohup python3 {PREFIX}/bin/watch.py >>{PREFIX}/log/watch.log 2>&1 </dev/null & "
        f"[ ! -x {PREFIX}/bin/at-start ] || {PREFIX}/bin/at-start"
    )
    if len(script) > LONGEST_START:
        raise CloudError(
            f"what starts the watcher is {len(script)} characters long, {TITLE} takes {LONGEST_START}. "
            "Fix: make beeyard/onhost/watch.py shorter"
        )
    return script


def _offer(found: _Offer) -> Offer:
    return Offer(
        cloud="vast",
        id=str(found.id),
        gpu=found.gpu_name,
        # As 890 for 8.9, 1200 for 12.0.
        compute_capability=f"{found.compute_cap // 100}.{found.compute_cap % 100 // 10}",
        memory_mib=int(found.gpu_ram),
        price=found.dph_total,
        region=found.geolocation or "",
        reliability=found.reliability if found.reliability is not None else found.reliability2,
        cuda=f"{found.cuda_max_good:.1f}" if found.cuda_max_good else "",
        driver=found.driver_version or "",
        host_memory_mib=int(found.cpu_ram or 0),
        disk_gb=found.disk_space,
    )


def _pod(found: _Instance) -> Pod:
    env = found.extra_env or {}
    pairs = env if isinstance(env, dict) else {pair[0]: pair[1] for pair in env if len(pair) == 2}
    state = _state(found)
    address = _address(found) if state == "running" else None
    return Pod(
        cloud="vast",
        id=str(found.id),
        label=found.label or "",
        state="starting" if state == "running" and address is None else state,
        told=" ".join((found.status_msg or found.actual_status or "").split()),
        gpu=found.gpu_name or "",
        gpus=found.num_gpus,
        price=found.dph_total or 0,
        region=found.geolocation or "",
        started=datetime.fromtimestamp(found.start_date, UTC) if found.start_date else None,
        ssh=address,
        tls_at=_tls_at(found) if state == "running" else "",
        disk_gb=found.disk_space or 0,
        said=ours(pairs),
    )


def _state(found: _Instance) -> Literal["starting", "running", "stopped", "lost"]:
    """Source: docs.vast.ai, "API Hello World" 5: null, loading, running; exited, unknown and offline never run."""
    wants_to_run = found.intended_status != "stopped"
    if found.actual_status == "running":
        return "running"
    if not wants_to_run and found.actual_status in SPEAKS_OF_STOPPED:
        return "stopped"
    if found.actual_status in ("exited", "unknown", "offline"):
        return "lost"
    return "starting" if wants_to_run else "stopped"


def _tls_at(found: _Instance) -> str:
    mapped = (found.ports or {}).get(f"{TLS_PORT}/tcp")
    if not found.public_ipaddr or not mapped or not mapped[0].HostPort:
        return ""
    return f"{found.public_ipaddr.strip()}:{mapped[0].HostPort}"


def _address(found: _Instance) -> Address | None:
    """Its own port where it is mapped, else Vast.ai's proxy, which takes everything that SSH does."""
    mapped = (found.ports or {}).get("22/tcp")
    if found.public_ipaddr and mapped and mapped[0].HostPort:
        return Address(host=found.public_ipaddr.strip(), port=mapped[0].HostPort)
    if found.ssh_host and found.ssh_port:
        return Address(host=found.ssh_host, port=found.ssh_port)
    return None
