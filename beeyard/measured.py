"""The server that is to be measured: where it answers, its key, and what is known of it beside its address."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from beeyard.bench import identity, record
from beeyard.bench.client import BenchError, read_key
from beeyard.catalog import PROJECT, Catalog, CatalogError
from beeyard.dialects import argv
from beeyard.machine import Machine
from beeyard.spec import ServerSpec
from beeyard.survey import Survey, solved

KEYS = PROJECT / ".beeyard" / "keys"
# What a host's server.json must say for us to know what runs.
KNOWN = {"preset", "variant", "engine", "argv"}


class Measured(NamedTuple):
    """
    Who is measured. Of a server that only its address is known of, all but ``url`` and ``key`` is empty.

    ``decided`` is what the plan decides for the host, ``server`` what the host keeps of the server that runs,
    ``own_pids`` its processes, ``notes`` doubts about all that, a sentence each.
    """

    url: str
    key: str | None
    name: str = ""
    spec: ServerSpec | None = None
    machine: Machine | None = None
    decided: Mapping[str, Any] = {}
    server: Mapping[str, Any] = {}
    own_pids: tuple[int, ...] = ()
    cpu: str = ""
    has_card_here: bool = False
    notes: tuple[str, ...] = ()

    def variant(self, name: str, props: Mapping[str, Any]) -> record.Variant:
        """
        As a record has it.

        :param name: what one of an unknown spec is called
        :param props: what the server says of itself
        """
        if self.spec is None:
            return identity.unknown_variant(name, "", props)
        return identity.variant_of(self.spec, self.decided, self.server, props)

    def host(self, price_per_hour: float | None) -> record.Host:
        """As a record has it; the price is in US dollars."""
        if self.spec is None or self.machine is None:
            return record.Host(name=httpx.URL(self.url).host, price_per_hour=price_per_hour)
        return identity.host_of(self.machine, self.name, self.spec.card, price_per_hour, self.cpu)


def by_address(url: str | None, key_file: Path | None) -> Measured:
    """
    Any llama-server.

    :raises BenchError: there is no address, or no key in the key's file.
    """
    if url is None:
        raise BenchError("measure whom? Fix: name an inventory, as `beeyard bench local` does, or a --url")
    return Measured(url, read_key(key_file) if key_file else None)


def of_host(host: Survey, catalog: Catalog, url: str | None, key_file: Path | None) -> Measured:
    """
    The server of an inventory's host.

    :param url: where it is reached instead, as through a tunnel
    :raises CatalogError: the host cannot have what its data asks for, its server is not reached from here, or its key
        is not here.
    """
    spec, decided, server, doubts = _serving(host, catalog)
    if url is None and not host.is_here and spec.is_loopback:
        raise BenchError(
            f"{host.name}'s server listens on {spec.bind} there, which is not this machine. Fix: open a tunnel, as "
            f"ssh -N -L {spec.port}:127.0.0.1:{spec.port} {host.name}, and add --url http://127.0.0.1:{spec.port}"
        )
    return Measured(
        url=url or spec.url,
        key=read_key(key_file or KEYS / re.sub(r"[^\w.-]", "_", host.name)),
        name=host.name.removeprefix("@"),
        spec=spec,
        machine=host.machine,
        decided=decided,
        server=server,
        own_pids=host.own_pids,
        cpu=_cpu_here() if host.is_here else "",
        has_card_here=host.is_here and spec.wants_gpu,
        notes=tuple(doubts),
    )


def _serving(host: Survey, catalog: Catalog) -> tuple[ServerSpec, Mapping[str, Any], Mapping[str, Any], list[str]]:
    """The spec of the server that runs there, what was decided for it, what the host keeps of it, and doubts."""
    solution = solved(host, catalog)
    if solution.spec is None:
        raise CatalogError("; ".join(solution.reasons))
    spec, server = solution.spec, _kept_server(host, solution.spec)
    if not server:
        doubt = "what runs there was not looked at: the record has the spec that its inventory asks for"
        return spec, solution.decided, {}, [doubt]
    if (server["preset"], server["variant"], server["engine"]) != (spec.preset, spec.variant, spec.engine_name):
        # A switch lasts until the next deploy: what runs may be another variant than the inventory's.
        running = {f"llama_{name}": server[name] for name in ("preset", "variant", "engine")}
        solution = solved(host.model_copy(update={"data": {**host.data, **running}}), catalog)
        spec = solution.spec or spec
    if argv(spec) != server["argv"]:
        doubt = (
            "what runs is not what the presets and the inventory say now; its own arguments are in the record. "
            "Fix: deploy, and measure again"
        )
        return spec, solution.decided, server, [doubt]
    return spec, solution.decided, server, []


def _kept_server(host: Survey, spec: ServerSpec) -> dict[str, Any]:
    file = Path(spec.prefix) / "current" / "server.json"
    try:
        found = json.loads(file.read_text()) if host.is_here else {}
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) and set(found) >= KNOWN else {}


def _cpu_here() -> str:
    try:
        said = Path("/proc/cpuinfo").read_text()
    except OSError:
        return ""
    found = re.search(r"^model name\s*: (.*)$", said, re.MULTILINE)
    return found[1].strip() if found else ""
