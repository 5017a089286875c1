"""
RunPod: its REST API for all that is in its OpenAPI document, GraphQL for prices and for renting.

REST knows neither what is offered nor a pod's end: GraphQL's ``podFindAndDeployOnDemand`` takes ``terminateAfter``
and ``stopAfter``, so that RunPod itself ends a forgotten pod. Source: runpodctl 2 (``internal/api/graphql.go``),
which rents GPU pods so, and docs.runpod.io (api-reference, sdks/graphql/manage-pods).
"""

import os
import re
import time
from collections.abc import Callable
from typing import Any, Literal

from pydantic import BaseModel, Field

from beeyard.catalog import Gpu
from beeyard.clouds.api import LONGEST_ANSWER_S, Api, listed, shaped, tells_of_money
from beeyard.clouds.pods import (
    PORT,
    PREFIX,
    TLS_PORT,
    Address,
    CloudError,
    Kept,
    KeyRefused,
    NoCapacity,
    NoFunds,
    NotThere,
    Offer,
    Order,
    Pod,
    Wish,
    moment,
    ours,
    stamp,
)

TITLE = "RunPod"
KEY_VARIABLE = "RUNPOD_API_KEY"
WHERE_KEYS = "https://www.runpod.io/console/user/settings"
# The names that RunPod's own tool knows.
REST_VARIABLE, GRAPHQL_VARIABLE = "RUNPOD_API_URL", "RUNPOD_GRAPHQL_URL"
REST, GRAPHQL = "https://rest.runpod.io/v1", "https://api.runpod.io/graphql"
# What allowedCudaVersions may name. Source: the OpenAPI document.
CUDA = ("11.8", "12.0", "12.1", "12.2", "12.3", "12.4", "12.5", "12.6", "12.7", "12.8", "12.9", "13.0")
# RunPod's own image, with sshd, and the CUDA it wants of the driver. Source: docs.runpod.io.
BASE_IMAGE, BASE_CUDA = "runpod/pytorch:1.0.2-cu1281-torch280-ubuntu2404", "12.8"
# Its start script ends in `sleep infinity`; what survives a stop is on the volume, and so is our hook.
START = f"bash -c '[ ! -x {PREFIX}/bin/at-start ] || {PREFIX}/bin/at-start & exec /start.sh'"
# US dollars a GB and month. Source: docs.runpod.io/pods/pricing.
STOPPED_DISK, NETWORK_DISK, LARGE_NETWORK_DISK, LARGE_GB = 0.20, 0.07, 0.05, 1000
NO_CAPACITY = re.compile(
    r"no longer any instances|no instances|not enough free gpus|does not have the resources", re.I
)
NO_KEY = re.compile(r"unauthori[sz]ed|not authenticated|invalid api key", re.IGNORECASE)

PRICES = """query GpuTypes {
  gpuTypes {
    id displayName memoryInGb secureCloud communityCloud
    secure: lowestPrice(input: {gpuCount: 1, secureCloud: true}) { uninterruptablePrice stockStatus }
    community: lowestPrice(input: {gpuCount: 1, secureCloud: false}) { uninterruptablePrice stockStatus }
  }
}"""
RENT = """mutation Rent($input: PodFindAndDeployOnDemandInput!) {
  podFindAndDeployOnDemand(input: $input) { id }
}"""


class _Price(BaseModel):
    uninterruptablePrice: float | None = None
    stockStatus: str | None = None


class _GpuType(BaseModel):
    id: str
    memoryInGb: int | None = None
    secureCloud: bool | None = None
    communityCloud: bool | None = None
    secure: _Price | None = None
    community: _Price | None = None


class _Gpu(BaseModel):
    id: str | None = None
    count: int | None = None
    displayName: str | None = None


class _Machine(BaseModel):
    dataCenterId: str | None = None
    location: str | None = None
    gpuDisplayName: str | None = None
    gpuTypeId: str | None = None


class _Volume(BaseModel):
    id: str
    name: str | None = None
    size: int | None = None
    dataCenterId: str | None = None


class _Pod(BaseModel):
    id: str
    name: str | None = None
    desiredStatus: Literal["RUNNING", "EXITED", "TERMINATED"]
    publicIp: str | None = None
    portMappings: dict[str, int] | None = None
    ports: list[str] | None = None
    costPerHr: float | None = None
    adjustedCostPerHr: float | None = None
    lastStartedAt: str | None = None
    lastStatusChange: str | None = None
    gpu: _Gpu | None = None
    machine: _Machine | None = None
    networkVolume: _Volume | None = None
    volumeInGb: float | None = None
    env: dict[str, str] | None = None


class _Charge(BaseModel):
    amount: float = 0
    podId: str | None = None


class _Made(BaseModel):
    id: str = Field(min_length=1)


class RunPod:
    """RunPod's API with one key."""

    name: Literal["runpod"] = "runpod"

    def __init__(
        self,
        key: str,
        gpus: dict[str, Gpu],
        answer_s: float = LONGEST_ANSWER_S,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """
        Take a key.

        :param gpus: presets/gpus.yaml: RunPod says neither compute capability nor memory in MiB
        """
        self._gpus = {gpu.smi_name: gpu for gpu in gpus.values()}
        self._rest = Api(TITLE, os.environ.get(REST_VARIABLE) or REST, key, WHERE_KEYS, answer_s, pause)
        self._graphql = Api(TITLE, os.environ.get(GRAPHQL_VARIABLE) or GRAPHQL, key, WHERE_KEYS, answer_s, pause)

    def offers(self, wish: Wish) -> list[Offer]:
        """Cards of presets/gpus.yaml that Secure Cloud or Community Cloud has now, one card a pod."""
        found = []
        for kind in listed(_GpuType, self._query(PRICES)["gpuTypes"], TITLE):
            card = self._gpus.get(kind.id)
            if card is None or card.memory_mib < wish.memory_mib:
                continue
            for cloud, price in (("SECURE", kind.secure), ("COMMUNITY", kind.community)):
                if price is not None and price.uninterruptablePrice and price.stockStatus:
                    found.append(_offer(card, cloud, price, wish))
        return found

    def pods(self) -> list[Pod]:
        """All that carry our label and are not ended."""
        query = {"includeMachine": "true", "includeNetworkVolume": "true"}
        found = [
            _pod(one) for one in listed(_Pod, self._rest.ask("GET", "/pods", query=query), TITLE) if _is_there(one)
        ]
        return [pod for pod in found if pod.is_ours]

    def pod(self, pod_id: str) -> Pod | None:
        """One pod, whoever's; None once it is ended."""
        query = {"includeMachine": "true", "includeNetworkVolume": "true"}
        try:
            found = shaped(_Pod, self._rest.ask("GET", f"/pods/{pod_id}", query=query), TITLE)
        except NotThere:
            return None
        return _pod(found) if _is_there(found) else None

    def create(self, offer: Offer, order: Order) -> str:
        """Rent an offer. RunPod itself ends or stops the pod at the deadline."""
        made = self._query(RENT, {"input": self.rental(offer, order)}, is_repeatable=False)[
            "podFindAndDeployOnDemand"
        ]
        if made is None:
            raise NoCapacity(f"{TITLE} has no {offer.gpu} left ({offer.region}). Fix: take another offer")
        return shaped(_Made, made, TITLE).id

    def rental(self, offer: Offer, order: Order) -> dict[str, Any]:
        """What GraphQL calls PodFindAndDeployOnDemandInput."""
        cloud, _, card = offer.id.partition(" ")
        environment = {
            **order.environment,
            # Account keys come as PUBLIC_KEY; SSH_PUBLIC_KEY is RunPod's way to name another.
            "PUBLIC_KEY": order.public_key,
            "SSH_PUBLIC_KEY": order.public_key,
        }
        if order.hf_secret is not None:
            environment["HF_TOKEN"] = "{{ RUNPOD_SECRET_" + order.hf_secret + " }}"
        asked: dict[str, Any] = {
            "name": order.label,
            "cloudType": cloud,
            "gpuTypeId": card,
            "gpuCount": 1,
            "imageName": order.image,
            "containerDiskInGb": order.system_gb,
            "volumeMountPath": "/workspace",
            "ports": f"{PORT}/http,22/tcp" + (f",{TLS_PORT}/tcp" if order.expose == "tcp" else ""),
            "startSsh": True,
            "allowedCudaVersions": [one for one in CUDA if _number(one) >= _number(offer.cuda)],
            "env": [{"key": key, "value": value} for key, value in environment.items()],
            "terminateAfter" if order.at_deadline == "end" else "stopAfter": stamp(order.deadline),
        }
        if cloud == "COMMUNITY":
            asked["supportPublicIp"] = True
        if not order.is_our_image:
            asked["dockerArgs"] = START
        if order.network_volume is None:
            return {**asked, "volumeInGb": order.disk_gb}
        volume = self._volume(order.network_volume)
        return {**asked, "networkVolumeId": volume.id, "dataCenterId": volume.dataCenterId}

    def admit(self, pod_id: str, public_key: str) -> None:
        """Nothing: the key is part of the order."""

    def start(self, pod_id: str) -> None:
        """Let a stopped pod run again; RunPod may give it no card."""
        self._rest.ask("POST", f"/pods/{pod_id}/start")

    def stop(self, pod_id: str) -> None:
        """Stop a pod; its volume goes on costing."""
        self._rest.ask("POST", f"/pods/{pod_id}/stop")

    def end(self, pod_id: str) -> None:
        """Delete a pod and its volume; a network volume stays."""
        try:
            self._rest.ask("DELETE", f"/pods/{pod_id}")
        except NotThere:
            return

    def kept(self) -> list[Kept]:
        """The account's network volumes, whoever made them."""
        return [
            Kept(
                f"network volume {one.name or one.id} ({one.size or '?'} GB, {one.dataCenterId})",
                one.size * (LARGE_NETWORK_DISK if one.size > LARGE_GB else NETWORK_DISK) if one.size else None,
            )
            for one in self._volumes()
        ]

    def spent(self, pods: list[Pod]) -> dict[str, float]:
        """What RunPod charged for pods so far, by id; its bill is up to an hour behind."""
        charged: dict[str, float] = {}
        if pods:
            for one in listed(_Charge, self._rest.ask("GET", "/billing/pods", query={"grouping": "podId"}), TITLE):
                if one.podId is not None:
                    charged[one.podId] = charged.get(one.podId, 0) + one.amount
        return {pod.id: charged[pod.id] for pod in pods if pod.id in charged}

    def _volumes(self) -> list[_Volume]:
        return listed(_Volume, self._rest.ask("GET", "/networkvolumes") or [], TITLE)

    def _volume(self, name: str) -> _Volume:
        found = [one for one in self._volumes() if name in (one.id, one.name)]
        if len(found) != 1:
            known = ", ".join(f"{one.name} ({one.id})" for one in self._volumes()) or "none"
            raise CloudError(
                f"{TITLE} has {len(found)} network volumes called {name!r}; it has {known}. Fix: name one by its id"
            )
        return found[0]

    def _query(self, query: str, variables: dict[str, Any] | None = None, *, is_repeatable: bool = True) -> Any:
        answer = self._graphql.ask(
            "POST", "", {"query": query, "variables": variables or {}}, is_repeatable=is_repeatable
        )
        errors = answer.get("errors") if isinstance(answer, dict) else None
        if errors:
            text = self._graphql.without_key("; ".join(str(one.get("message", one)) for one in errors))
            if NO_CAPACITY.search(text):
                raise NoCapacity(f"{TITLE} has none left ({text}). Fix: take another offer, or try again later")
            if tells_of_money(text):
                raise NoFunds(f"{TITLE} wants money first ({text}). Fix: add credit to the account")
            if NO_KEY.search(text):
                raise KeyRefused(f"{TITLE} does not take this API key ({text}). Fix: make one at {WHERE_KEYS}")
            raise CloudError(f"{TITLE} refuses ({text}). Fix: change what is asked for")
        if not isinstance(answer, dict) or not isinstance(answer.get("data"), dict):
            raise CloudError(f"{TITLE}'s GraphQL API answers without data. Fix: try again later")
        return answer["data"]


def _offer(card: Gpu, cloud: str, price: _Price, wish: Wish) -> Offer:
    return Offer(
        cloud="runpod",
        id=f"{cloud} {card.smi_name}",
        gpu=card.smi_name,
        compute_capability=card.compute_capability,
        memory_mib=card.memory_mib,
        price=price.uninterruptablePrice or 0,
        region=f"{cloud.capitalize()} Cloud",
        stock=price.stockStatus or "",
        # It is ordered with that as the least.
        cuda=_least_cuda(wish.cuda, card.min_cuda),
    )


def _is_there(pod: _Pod) -> bool:
    return pod.desiredStatus != "TERMINATED"


def _pod(found: _Pod) -> Pod:
    mapped, machine, gpu = found.portMappings or {}, found.machine or _Machine(), found.gpu or _Gpu()
    runs = found.desiredStatus == "RUNNING"
    is_there = runs and bool(found.publicIp) and 0 < mapped.get("22", 0) < 65536
    return Pod(
        cloud="runpod",
        id=found.id,
        label=found.name or "",
        state="running" if is_there else "starting" if runs else "stopped",
        told=found.lastStatusChange or "",
        gpu=gpu.displayName or gpu.id or machine.gpuDisplayName or machine.gpuTypeId or "",
        gpus=gpu.count,
        price=found.adjustedCostPerHr or found.costPerHr or 0,
        region=machine.dataCenterId or machine.location or "",
        started=moment(found.lastStartedAt or ""),
        ssh=Address(host=found.publicIp or "", port=mapped["22"]) if is_there else None,
        unreachable=_unreachable(found) if runs else "",
        proxy_url=f"https://{found.id}-{PORT}.proxy.runpod.net" if f"{PORT}/http" in (found.ports or []) else "",
        tls_at=f"{found.publicIp}:{mapped[str(TLS_PORT)]}" if is_there and mapped.get(str(TLS_PORT)) else "",
        disk_gb=0 if found.networkVolume else found.volumeInGb or 0,
        network_volume=(found.networkVolume.name or found.networkVolume.id) if found.networkVolume else "",
        said=ours(found.env or {}),
    )


def _unreachable(pod: _Pod) -> str:
    if pod.ports is not None and "22/tcp" not in pod.ports:
        return "it was made without port 22/tcp"
    if pod.portMappings and not pod.publicIp:
        return "it has no public address"
    if pod.portMappings and pod.publicIp and "22" not in pod.portMappings:
        return "its port 22 is not mapped"
    return ""


def _least_cuda(*versions: str) -> str:
    return max((one for one in versions if one), key=_number)


def _number(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))
