"""
A stand-in of RunPod's and Vast.ai's APIs on loopback: the parts that Beeyard uses, and faults on demand.

It answers as RunPod's OpenAPI document and Vast.ai's documentation say; ``tests/cloud_shapes.py`` has what that is.
"""

import contextlib
import itertools
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

KEY = "rpa_DO0NOT0SHOW0THIS0KEY"
HOST_KEY = "instance-key-of-the-pod"
EMPTY = object()


class Exchange(NamedTuple):
    """One request with its answer; a body is None where there was none."""

    method: str
    path: str
    query: dict[str, list[str]]
    body: Any
    status: int
    answer: Any
    is_fault: bool = False


@dataclass
class Fault:
    """What goes wrong with requests of a method whose path matches: a status with a body, or silence in seconds."""

    method: str
    path: str
    status: int = 500
    answer: Any = None
    silent_s: float = 0
    # Whether it is done all the same, and only the answer is lost.
    is_done: bool = False
    times: int = 1_000_000


@dataclass
class Rented:
    """A pod or instance as the stand-in keeps it."""

    id: str
    label: str
    asked: dict[str, Any]
    env: dict[str, str]
    is_running: bool = True
    port: int = 0
    # Of its TLS, where it was ordered.
    tls_port: int = 0
    gpus: int = 1
    # How often it is asked for before it has an address.
    unready: int = 0


@dataclass
class Clouds:
    """Both providers, with one account."""

    url: str = ""
    rented: dict[str, Rented] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    exchanges: list[Exchange] = field(default_factory=list)
    # The words of every Authorization header, so that a test sees that the key came, and only there.
    keys: list[str | None] = field(default_factory=list)
    # What RunPod has: GPU type, then price and stock of Secure and of Community Cloud.
    stock: dict[str, tuple[tuple[float, str | None], tuple[float, str | None]]] = field(default_factory=dict)
    offers: list[dict[str, Any]] = field(default_factory=list)
    volumes: list[dict[str, Any]] = field(default_factory=list)
    # Offers that are gone when they are asked for.
    lost: set[str] = field(default_factory=set)
    address: str = "127.0.0.1"
    ports: Iterator[int] = field(default_factory=lambda: iter(range(20001, 30000)))
    unready: int = 0
    gpus_after_start: int = 1
    # Called with what began to run, as a provider starts a container.
    on_start: Callable[[Rented], None] = lambda rented: None
    on_stop: Callable[[Rented], None] = lambda rented: None
    on_end: Callable[[Rented], None] = lambda rented: None
    ids: Iterator[int] = field(default_factory=lambda: itertools.count(700001))

    def fail(self, method: str, path: str, **how: Any) -> None:
        self.faults.append(Fault(method, path, **how))

    def asked(self, method: str, path: str) -> list[Any]:
        """The bodies of requests to a path."""
        return [one.body for one in self.exchanges if one.method == method and re.search(path, one.path)]

    def rent(self, label: str, asked: dict[str, Any], env: dict[str, str], pod_id: str = "") -> Rented:
        made = Rented(pod_id or f"pod{next(self.ids)}", label, asked, env, unready=self.unready)
        made.port = next(self.ports)
        self.on_start(made)
        self.rented[made.id] = made
        return made

    def end(self, pod_id: str) -> None:
        self.on_end(self.rented.pop(pod_id))

    def stop(self, rented: Rented) -> None:
        rented.is_running = False
        self.on_stop(rented)

    def again(self, rented: Rented) -> None:
        """Start a stopped one: another port, and perhaps no card."""
        rented.is_running, rented.port, rented.gpus = True, next(self.ports), self.gpus_after_start
        rented.unready = self.unready
        self.on_start(rented)


Answer = tuple[int, Any]
NOT_FOUND: Answer = (404, {"error": "pod not found", "status": 404})


def _mapped(one: Rented) -> dict[str, int]:
    """The ports that others reach: sshd's, and that of TLS where it was ordered."""
    is_ordered = "8911/tcp" in one.asked.get("ports", "") or "-p 8911:8911" in one.env
    return {"22/tcp": one.port, **({"8911/tcp": one.tls_port} if is_ordered and one.tls_port else {})}


# --- RunPod ----------------------------------------------------------------------------------------


def _runpod(clouds: Clouds, method: str, path: str, query: dict[str, list[str]], body: Any) -> Answer:
    if path == "/graphql":
        return _graphql(clouds, body)
    everything: dict[str, Callable[[], list[Any]]] = {
        "/v1/networkvolumes": lambda: clouds.volumes,
        "/v1/billing/pods": lambda: [
            {"amount": 0.25, "podId": one.id, "time": "2026-12-01T00:00:00Z", "timeBilledMs": 1}
            for one in clouds.rented.values()
        ],
        "/v1/pods": lambda: [_pod(clouds, one) for one in clouds.rented.values()],
    }
    if path in everything:
        return 200, everything[path]()
    found = re.fullmatch(r"/v1/pods/([^/]+)(/start|/stop)?", path)
    rented = clouds.rented.get(found[1]) if found else None
    if found is None or rented is None:
        return NOT_FOUND
    if method == "GET":
        return 200, _pod(clouds, rented)
    if method == "DELETE":
        clouds.end(rented.id)
        return 204, EMPTY
    if found[2] == "/stop":
        clouds.stop(rented)
    else:
        clouds.again(rented)
    return 200, EMPTY


def _pod(clouds: Clouds, one: Rented) -> dict[str, Any]:
    one.unready -= 1
    is_there = one.is_running and one.unready < 0
    network = [volume for volume in clouds.volumes if volume["id"] == one.asked.get("networkVolumeId")]
    return {
        "id": one.id,
        "name": one.label,
        "desiredStatus": "RUNNING" if one.is_running else "EXITED",
        "publicIp": clouds.address if is_there else "",
        "portMappings": {key.removesuffix("/tcp"): port for key, port in _mapped(one).items()} if is_there else {},
        "ports": one.asked.get("ports", "").split(","),
        "costPerHr": 0.69,
        "adjustedCostPerHr": 0.66,
        "lastStartedAt": "2026-12-03T05:00:00.144Z",
        "lastStatusChange": "Rented by User",
        "gpu": {"id": one.asked.get("gpuTypeId", "?"), "count": one.gpus, "displayName": "RTX 4090"},
        "machine": {"dataCenterId": "EU-RO-1", "gpuTypeId": one.asked.get("gpuTypeId", "?")},
        "volumeInGb": one.asked.get("volumeInGb", 0),
        "containerDiskInGb": one.asked.get("containerDiskInGb", 50),
        "image": one.asked.get("imageName", ""),
        "env": one.env,
        **({"networkVolume": network[0]} if network else {}),
    }


def _graphql(clouds: Clouds, body: Any) -> Answer:
    if "gpuTypes" in body["query"]:
        return 200, {"data": {"gpuTypes": [_gpu_type(name, *prices) for name, prices in clouds.stock.items()]}}
    asked = body["variables"]["input"]
    if f"{asked['cloudType']} {asked['gpuTypeId']}" in clouds.lost:
        text = "There are no longer any instances available with the requested specifications. Please refresh."
        return 200, {"errors": [{"message": text}], "data": {"podFindAndDeployOnDemand": None}}
    made = clouds.rent(asked["name"], asked, {one["key"]: one["value"] for one in asked["env"]})
    return 200, {"data": {"podFindAndDeployOnDemand": {"id": made.id}}}


def _gpu_type(name: str, secure: tuple[float, str | None], community: tuple[float, str | None]) -> dict[str, Any]:
    def price(given: tuple[float, str | None]) -> dict[str, Any]:
        return {"uninterruptablePrice": given[0] or None, "stockStatus": given[1]}

    return {
        "id": name, "displayName": name, "memoryInGb": 24, "secureCloud": True, "communityCloud": True,
        "secure": price(secure), "community": price(community),
    }  # fmt: skip


# --- Vast.ai ---------------------------------------------------------------------------------------


def _vast(clouds: Clouds, method: str, path: str, query: dict[str, list[str]], body: Any) -> Answer:
    if path == "/api/v0/bundles/":
        found = [one for one in clouds.offers if _matches(one, body)]
        return 200, {"offers": sorted(found, key=lambda one: float(one["dph_total"]))[: body["limit"]]}
    if path == "/api/v1/instances/":
        everything = [one for one in clouds.rented.values() if one.id.isdigit()]
        start, most = int(query.get("after_token", ["0"])[0]), int(query["limit"][0])
        token = str(start + most) if len(everything) > start + most else None
        shown = [_instance(clouds, one) for one in everything[start : start + most]]
        return 200, {"success": True, "instances_found": len(shown), "instances": shown, "next_token": token}
    ask = re.fullmatch(r"/api/v0/asks/(\d+)/", path)
    return _accept(clouds, ask[1], body) if ask else _one(clouds, method, path, body)


def _accept(clouds: Clouds, ask: str, body: Any) -> Answer:
    if ask in clouds.lost:
        text = f"error 404/3603: no_such_ask Instance type by id {ask} is not available."
        return 404, {"success": False, "error": "invalid_args", "msg": text, "ask_id": int(ask)}
    made = clouds.rent(body["label"], body, body["env"], str(next(clouds.ids)))
    return 200, {"success": True, "new_contract": int(made.id), "instance_api_key": HOST_KEY}


def _one(clouds: Clouds, method: str, path: str, body: Any) -> Answer:
    found_one = re.fullmatch(r"/api/v0/instances/(\d+)/(ssh/)?", path)
    rented = clouds.rented.get(found_one[1]) if found_one else None
    if found_one is None or rented is None:
        return (200, {"instances": None}) if method == "GET" else (404, {"error": "no_such_instance", "msg": "none"})
    if method == "GET":
        return 200, {"instances": _instance(clouds, rented)}
    if method == "DELETE":
        clouds.end(rented.id)
    elif not found_one[2] and body["state"] == "stopped":
        clouds.stop(rented)
    elif not found_one[2]:
        clouds.again(rented)
    return 200, {"success": True}


def _matches(offer: dict[str, Any], asked: dict[str, Any]) -> bool:
    tests = {"gte": lambda a, b: a >= b, "lte": lambda a, b: a <= b, "eq": lambda a, b: a == b}
    return all(
        tests[word](offer.get(key, wanted), wanted)
        for key, condition in asked.items()
        if isinstance(condition, dict)
        for word, wanted in condition.items()
    )


def _instance(clouds: Clouds, one: Rented) -> dict[str, Any]:
    one.unready -= 1
    is_there = one.is_running and one.unready < 0
    return {
        "id": int(one.id),
        "label": one.label,
        "actual_status": "running" if is_there else "loading" if one.is_running else "exited",
        "intended_status": "running" if one.is_running else "stopped",
        "cur_state": "running" if one.is_running else "stopped",
        "status_msg": "success, running",
        "public_ipaddr": clouds.address,
        "ports": {key: [{"HostIp": "0.0.0.0", "HostPort": str(port)}] for key, port in _mapped(one).items()}
        if is_there
        else None,
        "ssh_host": "ssh1.example.test",
        "ssh_port": 10600,
        "gpu_name": "RTX 4090",
        "num_gpus": one.gpus,
        "dph_total": 0.4021,
        "start_date": 1796274000.5,
        "geolocation": "Sweden, SE",
        "disk_space": one.asked.get("disk", 8),
        "extra_env": [[key, value] for key, value in one.env.items()],
    }


def offer(number: int, price: float, **more: Any) -> dict[str, Any]:
    """An offer as Vast.ai makes it."""
    return {
        "id": number, "gpu_name": "RTX 4090", "num_gpus": 1, "gpu_ram": 24564, "compute_cap": 890, "dph_total": price,
        "reliability": 0.995, "reliability2": 0.995, "geolocation": "Sweden, SE", "cuda_max_good": 12.8,
        "driver_version": "570.86.15", "cpu_ram": 128000, "disk_space": 500.0, "verified": True, "rentable": True,
        "direct_port_count": 40, "inet_down": 900.0, "duration": 1e7, **more,
    }  # fmt: skip


# --- the server ------------------------------------------------------------------------------------


class _Handler(BaseHTTPRequestHandler):
    clouds: Clouds
    released: threading.Event
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _serve(self) -> None:
        clouds = self.clouds
        parts = urlsplit(self.path)
        query = parse_qs(parts.query)
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        clouds.keys.append(self.headers.get("Authorization"))
        fault = self._fault(parts.path, body)
        if fault is None or fault.is_done:
            status, answer = self._answer(parts.path, query, body)
        if fault is not None:
            self.released.wait(fault.silent_s)
            status, answer = fault.status, fault.answer if fault.answer is not None else {"error": "a fault"}
        told = None if answer is EMPTY else answer
        clouds.exchanges.append(Exchange(self.command, parts.path, query, body, status, told, fault is not None))
        content = b"" if answer is EMPTY else json.dumps(answer).encode()
        # Whoever waited no longer is gone: that is what a fault of silence is for.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            if status != 204:
                self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    def _fault(self, path: str, body: Any) -> Fault | None:
        text = f"{path} {body['query'][:8]}" if path == "/graphql" else path
        for one in self.clouds.faults:
            if one.times and one.method == self.command and re.search(one.path, text):
                one.times -= 1
                return one
        return None

    def _answer(self, path: str, query: dict[str, list[str]], body: Any) -> Answer:
        # A pod's own key is taken as well, as with both providers.
        if self.headers.get("Authorization") not in (f"Bearer {KEY}", f"Bearer {HOST_KEY}"):
            return 401, {"error": "auth_error", "msg": "Invalid user key", "message": "unauthorized"}
        serve = _vast if path.startswith("/api/") else _runpod
        return serve(self.clouds, self.command, path, query, body)

    do_GET = do_POST = do_PUT = do_DELETE = _serve


@contextmanager
def standing(clouds: Clouds | None = None, address: str = "127.0.0.1") -> Iterator[Clouds]:
    """Let it answer until the end of the block."""
    clouds = clouds or Clouds()
    released = threading.Event()
    handler = type("Handler", (_Handler,), {"clouds": clouds, "released": released})
    server = ThreadingHTTPServer((address, 0), handler)
    server.daemon_threads = True
    clouds.url = f"http://{address}:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield clouds
    finally:
        released.set()
        server.shutdown()
        server.server_close()


def environment(clouds: Clouds) -> dict[str, str]:
    """What makes Beeyard and the watcher ask it."""
    return {
        "RUNPOD_API_URL": f"{clouds.url}/v1",
        "RUNPOD_GRAPHQL_URL": f"{clouds.url}/graphql",
        "VAST_URL": clouds.url,
        "RUNPOD_API_KEY": KEY,
        "VAST_API_KEY": KEY,
    }
