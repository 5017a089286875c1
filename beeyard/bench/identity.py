"""Who is measured, as a record has it: a variant from the spec that its host got, a host from what it said. Pure."""

from collections.abc import Mapping
from typing import Any

from beeyard.bench.record import Card, Engine, Host, Model, Variant
from beeyard.dialects import argv
from beeyard.machine import Machine
from beeyard.spec import ModelFile, ServerSpec

# Of what a host keeps of its server: what a record has elsewhere.
ELSEWHERE = ("argv", "title", "preset", "variant", "engine", "runtime")


def variant_of(
    spec: ServerSpec, decided: Mapping[str, Any], server: Mapping[str, Any], props: Mapping[str, Any]
) -> Variant:
    """
    A variant in full.

    :param decided: what the plan decided for the host, as its ``decided.json`` has it
    :param server: what the host keeps of the server that runs (``server.json``); empty where nobody could look
    :param props: what the server says of itself
    """
    return Variant(
        name=spec.variant,
        preset=spec.preset,
        decoding=spec.decoding.kind,
        title=str(server.get("title") or f"{spec.preset} {spec.variant} on {spec.engine.title}"),
        runtime=spec.runtime,
        engine=Engine(
            name=spec.engine_name, title=spec.engine.title, commit=spec.engine.commit, dialect=spec.engine.dialect,
            build=str(props.get("build_info", "")),
        ),
        model=_model(spec.model),
        draft=_model(spec.draft) if spec.draft else None,
        argv=tuple(server.get("argv") or argv(spec)),
        spec=spec.model_dump(mode="json"),
        decided=dict(decided),
        server={key: value for key, value in server.items() if key not in ELSEWHERE},
        props=dict(props),
    )  # fmt: skip


def unknown_variant(name: str, decoding: str, props: Mapping[str, Any]) -> Variant:
    """A server of which only its address is known."""
    model = str(props.get("model_path") or props.get("model_alias") or "")
    return Variant(
        name=name,
        decoding=decoding,
        engine=Engine(build=str(props.get("build_info", ""))),
        model=Model(name=model) if model else None,
        props=dict(props),
    )


def _model(file: ModelFile) -> Model:
    lock = file.lock
    return Model(
        name=file.name,
        size=lock.size if lock else None,
        sha256=lock.sha256 if lock else None,
        revision=lock.revision if lock else None,
    )


def host_of(machine: Machine, name: str, card: str | None, price_per_hour: float | None, cpu: str = "") -> Host:
    """
    The machine, with the cards that the server may use.

    :param card: the UUID of the one that it was given, where there are others
    """
    cards = [one for one in machine.gpus if card in (None, one.uuid)]
    return Host(
        name=name,
        price_per_hour=price_per_hour,
        cards=tuple(
            Card(
                index=one.index, name=one.name, uuid=one.uuid, memory_total_mib=one.memory_total_mib,
                power_limit_w=one.power_limit_w,
            )
            for one in cards
        ),
        driver=machine.driver,
        driver_cuda=machine.driver_cuda,
        cpu=cpu,
        cores=machine.cores,
        memory_mib=machine.memory_mib,
        kernel=machine.kernel,
    )  # fmt: skip
