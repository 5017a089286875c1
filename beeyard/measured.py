"""The server that is to be measured: where it answers, its key, and what is known of it beside its address."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from beeyard.bench import identity, record
from beeyard.bench.client import BenchError, proxy_note, read_key
from beeyard.catalog import Catalog, CatalogError
from beeyard.dialects import argv
from beeyard.keys import key_copy
from beeyard.machine import Machine
from beeyard.spec import ServerSpec
from beeyard.survey import Survey, solved
from beeyard.tunnel import tunnel

# What a host's server.json must say for us to know what runs.
KNOWN = {"preset", "variant", "engine", "argv"}


class Measured(NamedTuple):
    """
    Who is measured. Of a server that only its address is known of, all but ``url`` and ``key`` is empty.

    ``decided`` is what the plan decides for the host, ``server`` what the host keeps of the server that runs,
    ``own_pids`` its processes, ``smi`` what asks its nvidia-smi, ``notes`` doubts about all that, a sentence each.
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
    smi: tuple[str, ...] = ()
    price_per_hour: float | None = None
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
        """As a record has it; the price is in US dollars, by default what its inventory says."""
        price_per_hour = self.price_per_hour if price_per_hour is None else price_per_hour
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
    return Measured(url, read_key(key_file) if key_file else None, notes=_of_proxy(url))


def _of_proxy(url: str) -> tuple[str, ...]:
    note = proxy_note(url)
    return () if note is None else (note,)


def of_host(host: Survey, catalog: Catalog, url: str | None, key_file: Path | None) -> Measured:
    """
    The server of an inventory's host.

    :param url: where it is reached instead, as through a tunnel
    :raises CatalogError: the host cannot have what its data asks for, its server is not reached from here, or its key
        is not here.
    """
    spec, decided, doubts = _serving(host, catalog)
    return Measured(
        url=url or spec.url,
        key=read_key(key_file or key_copy(host.name)),
        name=host.name.removeprefix("@"),
        spec=spec,
        machine=host.machine,
        decided=decided,
        server=host.server if set(host.server) >= KNOWN else {},
        own_pids=host.own_pids,
        cpu=_cpu_here() if host.is_here else "",
        smi=_smi(host) if spec.wants_gpu else (),
        price_per_hour=host.price_per_hour,
        notes=(*doubts, *_of_proxy(url or spec.url)),
    )


@contextmanager
def reached(host: Survey, catalog: Catalog, url: str | None) -> Iterator[str]:
    """
    Where the host's server answers here, while it is open: through a tunnel where it listens on the host's loopback.

    :param url: where it is reached already
    :raises CatalogError: the host cannot have what its data asks for, or no tunnel can be opened.
    """
    spec = _serving(host, catalog)[0] if url is None else None
    if spec is None:
        yield url or ""
    elif host.is_here or not spec.is_loopback:
        yield spec.url
    elif host.ssh is None:
        raise BenchError(
            f"{host.name}'s server listens on {spec.bind} there, and how {host.name} is reached is not known. "
            "Fix: open a way to it, and name it with --url"
        )
    else:
        with tunnel(host.ssh, spec.port) as address:
            yield address


def _smi(host: Survey) -> tuple[str, ...]:
    if host.is_here:
        return ("nvidia-smi",)
    return (*host.ssh.words(), "nvidia-smi") if host.ssh else ()


def _serving(host: Survey, catalog: Catalog) -> tuple[ServerSpec, Mapping[str, Any], list[str]]:
    """The spec of the server that runs there, what was decided for it, and doubts."""
    solution = solved(host, catalog)
    if solution.spec is None:
        raise CatalogError("; ".join(solution.reasons))
    spec, server = solution.spec, host.server
    if not set(server) >= KNOWN:
        doubt = "no server was deployed there, as far as could be seen: the record has the spec of its inventory"
        return spec, solution.decided, [doubt]
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
        return spec, solution.decided, [doubt]
    return spec, solution.decided, []


def _cpu_here() -> str:
    try:
        said = Path("/proc/cpuinfo").read_text()
    except OSError:
        return ""
    found = re.search(r"^model name\s*: (.*)$", said, re.MULTILINE)
    return found[1].strip() if found else ""
