"""
Variants of one host against each other: each in turn under a deploy's gate, and at the end the one that was there.
"""

import json
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import Any

from beeyard.bench.client import BenchError, Server
from beeyard.bench.configuration import beside_decoding
from beeyard.bench.identity import variant_of
from beeyard.bench.record import Variant
from beeyard.catalog import Catalog, CatalogError
from beeyard.hosts import DeployFailed, Target
from beeyard.measured import of_host
from beeyard.render import define
from beeyard.survey import Survey, planned, solved

LEAST = 2


def one_host(target: Target, data: Mapping[str, Any] | None = None) -> Survey:
    """
    The only host of a target.

    :param data: more data over the host's
    :raises CatalogError: there are others, or it does not answer.
    """
    seen, _, said = target.surveyed(data)
    if not seen:
        raise CatalogError(f"{said.strip()}\n{target.name} cannot be looked at. Fix: see the lines above")
    if len(seen) > 1:
        names = ", ".join(host.name for host in seen)
        raise CatalogError(
            f"{target.name} has {len(seen)} hosts: {names}. Fix: name one, as in --limit {seen[0].name}"
        )
    return seen[0]


def in_order(host: Survey, names: Sequence[str], catalog: Catalog) -> tuple[str, ...]:
    """
    The variants as they will take turns, the one that others are held against first: one that does not draft.

    :raises CatalogError: fewer than two, one twice; a variant that the host cannot have, with every reason; two that
        differ in more than how they decode; or what runs there is of another preset: no deploy would bring it back.
    """
    if len(names) < LEAST or len(set(names)) < len(names):
        raise CatalogError(
            f"compare what? {', '.join(names) or 'Nothing'} is not two or more different variants. "
            "Fix: name them, as in VARIANTS=baseline,dflash"
        )
    variants = {name: _variant(host, name, catalog) for name in names}
    base = next((name for name in names if variants[name].decoding == "baseline"), names[0])
    for name in names:
        found = beside_decoding(variants[base], variants[name])
        if found:
            raise CatalogError(_unequal(host, variants[base], variants[name], found))
    _may_be_changed(host, variants[base])
    return (base, *(name for name in names if name != base))


def may_be_changed(host: Survey, catalog: Catalog) -> None:
    """
    See that a deploy can bring back what runs there.

    :raises CatalogError: it is of another preset or engine than the inventory's, or that does not fit the host.
    """
    _may_be_changed(host, _variant(host, host.server.get("variant"), catalog))


def _may_be_changed(host: Survey, own: Variant) -> None:
    kept = host.server
    if kept and (kept.get("preset"), kept.get("engine")) != (own.preset, own.engine.name):
        raise CatalogError(
            f"{host.name} serves {kept.get('title')}, which its inventory does not ask for, and which could not be "
            f"brought back afterwards. Fix: deploy first, or name it with "
            f"--data llama_preset={kept.get('preset')} --data llama_engine={kept.get('engine')}"
        )


def _variant(host: Survey, name: str | None, catalog: Catalog) -> Variant:
    named = {} if name is None else {"llama_variant": name}
    asked = host.model_copy(update={"data": {**host.data, **named}})
    solution = planned(asked, solved(asked, catalog), catalog, [])
    if solution.spec is None or solution.reasons:
        raise CatalogError(f"{host.name} cannot have {name or 'its server'}: {'; '.join(solution.reasons)}")
    return variant_of(solution.spec, solution.decided, {}, {})


def _unequal(host: Survey, base: Variant, other: Variant, found: list[str]) -> str:
    contexts = [one.spec["settings"]["context"] for one in (base, other)]
    if found in (["--ctx-size"], ["-c"]):
        fix = f"give both the same, as with --data llama_context={min(contexts)}"
    else:
        fix = "compare variants that are equal beside decoding, or `beeyard bench` each and `beeyard report` on both"
    return (
        f"{base.name} and {other.name} of {base.preset} differ on {host.name} in more than decoding "
        f"({', '.join(found)}), so a speed-up would be of all of that. Fix: {fix}"
    )


@dataclass
class Switching:
    """
    Brings variants to a host by deploys, and looks at what serves then.

    ``now`` is the variant that was brought last, empty where it was with data that are tried; ``own_pids`` are the
    processes of its server.
    """

    target: Target
    catalog: Catalog
    server: Server | None = None
    tell: Callable[[str], None] = lambda _: None
    now: str = ""
    own_pids: tuple[int, ...] = ()
    host: Survey | None = None
    _seen: dict[str, Variant] = field(default_factory=dict)

    def bring(self, name: str, more: Mapping[str, Any] | None = None) -> Survey:
        """
        Have a variant serve.

        :param more: data over the host's, as settings that are tried
        :raises DeployFailed: it does not pass the gate, or the deploy is refused.
        """
        self.now = ""
        data = {"llama_variant": name, **(more or {})}
        self.target.deploy(data)
        host = one_host(self.target, data)
        served = host.server.get("variant")
        if served != name:
            raise DeployFailed(
                f"{host.name} serves {served} right after a deploy of {name}. Fix: see who else deploys there, and "
                "try again"
            )
        self.now, self.own_pids, self.host = "" if more else name, host.own_pids, host
        if not more:
            self.tell(f"{name} serves on {host.name}")
        return host

    def __call__(self, name: str) -> Variant:
        """
        Have it serve, and say what it is.

        :raises BenchError: it does not.
        """
        assert self.server is not None, "it is known once a first variant serves"  # noqa: S101
        if self.now != name:
            try:
                self.bring(name)
            except DeployFailed as error:
                raise BenchError(str(error)) from error
        if name not in self._seen:
            assert self.host is not None  # noqa: S101
            self.server.await_ready()
            found = of_host(self.host, self.catalog, self.server.url, None)
            self._seen[name] = found.variant(name, self.server.props())
        return self._seen[name]


def way_back(target: Target, host: Survey, catalog: Catalog) -> Target:
    """
    The target, with data or without, of whose deploy comes what the host serves now.

    Data that only this comparison has would else be left there, or keep what was there from coming back.
    """
    if not target.data or not host.server:
        return target
    plain = replace(target, data={})
    seen = one_host(plain)
    variant = host.server.get("variant")
    found = [_served(one, variant, catalog) for one in (seen, host)]
    whole = [one == host.server for one in found]
    argvs = [one.get("argv") == host.server.get("argv") for one in found]
    return plain if whole[0] or (argvs[0] and not whole[1]) else target


def _served(host: Survey, variant: Any, catalog: Catalog) -> dict[str, Any]:
    """What the host would keep of a variant's server; empty where it cannot have it."""
    spec = solved(host.model_copy(update={"data": {**host.data, "llama_variant": variant}}), catalog).spec
    kept: dict[str, Any] = json.loads(define(spec).server_json) if spec is not None else {}
    return kept


@contextmanager
def as_it_was(switching: Switching, host: Survey, back: Target) -> Iterator[None]:
    """
    Whatever happens, signals included: at the end the variant serves that served before, or the inventory's own.

    :param back: brings it back, see ``way_back``
    :raises DeployFailed: it does not come back, and why.
    """
    before = {name: signal.signal(name, _stop) for name in (signal.SIGTERM, signal.SIGHUP)}
    was = host.server.get("variant")
    try:
        yield
    finally:
        try:
            if was is None or switching.now != was or back.data != switching.target.data:
                back.deploy({"llama_variant": was} if was else {})
            switching.tell(f"{was or 'what the inventory asks for'} serves, as before")
        finally:
            for name, handler in before.items():
                signal.signal(name, handler)


def _stop(number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt(f"it was stopped by {signal.Signals(number).name}")
