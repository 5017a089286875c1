"""Configurations of variants side by side: every setting, its value in each, whether they differ. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from beeyard.bench.record import Model, Variant
from beeyard.contract import options

# Arguments that only say how it decodes, or where the very same thing lies on another host.
OF_DECODING = ("--spec-", "-md", "--model-draft", "--port", "--host", "--api-key-file")
MTP = "mtp"
SECRET = ("--api-key", "--hf-token", "-hft")
HIDDEN = "(not shown)"
NOT_THERE = ""


class Setting(NamedTuple):
    """One setting: a value for each variant, in their order, empty where one has none."""

    section: str
    name: str
    values: tuple[str, ...]

    @property
    def differs(self) -> bool:
        """Whether the variants differ in it."""
        return len(set(self.values)) > 1


def settings(variants: Sequence[Variant]) -> tuple[Setting, ...]:
    """Every setting that a variant has: who it is, its engine, files, arguments, then spec, plan and own words."""
    tables = [_tables(one) for one in variants]
    found = []
    for section in tables[0]:
        names = dict.fromkeys(name for table in tables for name in table[section])
        for name in names:
            values = tuple(table[section].get(name, NOT_THERE) for table in tables)
            if any(values):
                found.append(Setting(section, name, values))
    return tuple(found)


def beside_decoding(one: Variant, other: Variant) -> list[str]:
    """
    The names of what two variants differ in beside how they decode: engine, model file, arguments.

    The heads that predict several tokens are in the model's file: with MTP another file is how it decodes.
    """
    found = []
    if (one.engine.name, one.engine.build) != (other.engine.name, other.engine.build):
        found.append("engine")
    if _file(one.model) != _file(other.model) and MTP not in (one.decoding, other.decoding):
        found.append("model")
    if one.argv and other.argv:
        mine, others = arguments(one.argv), arguments(other.argv)
        model = {"-m", "--model", "program"}  # named above where the files differ
        found += [
            name
            for name in dict.fromkeys([*mine, *others])
            if mine.get(name) != others.get(name) and not name.startswith(OF_DECODING) and name not in model
        ]
    return found


def arguments(argv: Iterable[str]) -> dict[str, str]:
    """
    Flags with what follows each, as the server's command has them; the program is ``program``.

    A key in them, which Beeyard never writes, is not shown.
    """
    found = {name: " ".join(values) or "set" for name, values in options(argv).items()}
    return {name: HIDDEN if name in SECRET else value for name, value in found.items()}


def _tables(variant: Variant) -> dict[str, dict[str, str]]:
    engine = variant.engine
    who = {"preset": variant.preset, "decoding": variant.decoding, "title": variant.title, "runtime": variant.runtime}
    return {
        "variant": who,
        "engine": {
            "name": engine.name, "title": engine.title, "commit": engine.commit or "", "dialect": engine.dialect,
            "build": engine.build,
        },
        "model": _model(variant.model),
        "draft": _model(variant.draft),
        "arguments": arguments(variant.argv),
        "spec": _flat(variant.spec),
        "plan": _flat(variant.decided),
        "host": _flat(variant.server),
        "server's own words": _flat(variant.props),
    }  # fmt: skip


def _model(model: Model | None) -> dict[str, str]:
    if model is None:
        return {}
    size = "" if model.size is None else f"{model.size} bytes"
    return {"name": model.name, "size": size, "sha256": model.sha256 or "", "revision": model.revision or ""}


def _file(model: Model | None) -> str:
    return "" if model is None else model.sha256 or model.name


def _flat(values: Mapping[str, Any], above: str = "") -> dict[str, str]:
    found: dict[str, str] = {}
    for key, value in values.items():
        name = f"{above}{key}"
        if isinstance(value, Mapping) and value:
            found |= _flat(value, f"{name}.")
        elif isinstance(value, list | tuple):
            found[name] = " ".join(str(one) for one in value)
        else:
            found[name] = "" if value is None else str(value)
    return found
