"""
What can be tuned of a variant on a host: its knobs, and the preset that keeps what was found. Pure.

A knob's first choice is what the variant has now, so that the first trial is the variant as it is.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, get_args

import yaml

from beeyard.catalog import Catalog, DFlash, KvTypes, Mtp, Ngram, NgramType
from beeyard.contract import FlagTable
from beeyard.spec import ServerSpec

Value = int | str | bool | None
# Of a DFlash drafter whose block is not known: tokens of it, the first of which is the target's own.
USUAL_BLOCK = 16
# Multi-token prediction has few heads, and each is asked with the guess of the one before.
MTP_DEPTHS = (1, 2, 3, 4, 6, 8)
CROSS_CONTEXTS = (256, 512, 1024, 2048)
BATCHES = (512, 1024, 2048, 4096)
UBATCHES = (128, 256, 512, 1024, 2048)
# From the exact to the small; the plan refuses what does not fit or has no kernel.
KV_TYPES = ("f16/f16", "q8_0/q8_0", "q5_0/q4_1", "q4_0/q4_0")
ADAPTIVE_FLAGS = ("--spec-dm-adaptive", "--spec-dm-controller")


class Knob(NamedTuple):
    """``name`` as ``decoding.draft_max`` or ``settings.ubatch``; ``choices`` begin with what is there now."""

    name: str
    choices: tuple[Value, ...]


def knobs(spec: ServerSpec, flags: FlagTable) -> tuple[Knob, ...]:
    """
    Those that a variant and its engine have.

    :param flags: of the engine
    """
    settings = spec.settings
    kv = None if settings.kv is None else f"{settings.kv.k}/{settings.kv.v}"
    found = [
        *_of_decoding(spec, flags),
        Knob("settings.batch", _choices(settings.batch, BATCHES)),
        Knob("settings.ubatch", _choices(settings.ubatch, UBATCHES)),
        Knob("settings.kv", _choices(kv, KV_TYPES)),
    ]
    return tuple(knob for knob in found if len(knob.choices) > 1)


def _of_decoding(spec: ServerSpec, flags: FlagTable) -> list[Knob]:
    match spec.decoding:
        case DFlash(draft_max=depth, cross_context=cross, adaptive=adaptive):
            header = spec.draft.lock.gguf if spec.draft and spec.draft.lock else None
            block = (header.block if header else None) or USUAL_BLOCK
            found = [Knob("decoding.draft_max", _choices(depth, range(1, block)))]
            if any(flag in flags for flag in ADAPTIVE_FLAGS):
                found.append(Knob("decoding.adaptive", _choices(adaptive, (True, False))))
            if "--spec-dflash-cross-ctx" in flags:
                found.append(Knob("decoding.cross_context", _choices(cross, CROSS_CONTEXTS)))
            return found
        case Mtp(draft_max=depth):
            return [Knob("decoding.draft_max", _choices(depth, MTP_DEPTHS))]
        case Ngram(type=kind):
            return [Knob("decoding.type", _choices(kind, get_args(NgramType)))]
        case _:
            return []


def _choices(now: Value, others: Any) -> tuple[Value, ...]:
    return (now, *(one for one in others if one != now))


def as_it_is(found: tuple[Knob, ...]) -> dict[str, Value]:
    """The variant as it is now."""
    return {knob.name: knob.choices[0] for knob in found}


def data_of(values: Mapping[str, Value], host_data: Mapping[str, Any]) -> dict[str, Any]:
    """A host's data that serve these values, over what it sets already; None leaves a thing to the engine."""
    tables: dict[str, dict[str, Any]] = {
        key: dict(host_data.get(f"llama_{key}") or {}) for key in ("settings", "decoding")
    }
    for name, value in values.items():
        key, _, field = name.partition(".")
        tables[key][field] = _kv(value) if name == "settings.kv" else value
    return {f"llama_{key}": table for key, table in tables.items() if table}


def _kv(value: Value) -> dict[str, str] | None:
    if value is None:
        return None
    k, _, v = str(value).partition("/")
    return KvTypes(k=k, v=v).model_dump()


def changed(values: Mapping[str, Value], found: tuple[Knob, ...]) -> dict[str, Value]:
    """What of them is not as it is now."""
    return {knob.name: values[knob.name] for knob in found if values[knob.name] != knob.choices[0]}


def said(values: Mapping[str, Value]) -> str:
    """In words, as ``draft_max 6, kv q8_0/q8_0``."""
    return ", ".join(
        f"{name.partition('.')[2]} {'as the engine wants' if value is None else value}"
        for name, value in values.items()
    )


def preset(spec: ServerSpec, data: Mapping[str, Any], name: str, catalog: Catalog, remark: str) -> str:
    """
    A servers.yaml with the preset, and a variant of that name that has what was found.

    :param data: as ``data_of`` made it
    :param remark: what it brought, for the file's head
    """
    server = catalog.servers[spec.preset].model_dump(mode="json", exclude_defaults=True)
    own = server["variants"][spec.variant]
    decoding = {**own["decoding"], "kind": spec.decoding.kind, **data.get("llama_decoding", {})}
    settings = {**own.get("settings", {}), **data.get("llama_settings", {})}
    server["variants"][name] = {
        **own,
        "decoding": {key: value for key, value in decoding.items() if value is not None},
        "settings": settings,
    }
    head = "".join(f"# {line}\n" for line in remark.splitlines())
    return head + yaml.safe_dump({spec.preset: server}, sort_keys=False, allow_unicode=True, width=118)
