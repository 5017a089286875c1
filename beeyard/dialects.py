"""llama-server's command line from a ServerSpec. Pure: a list of arguments, no shell."""

from collections.abc import Callable, Iterable

from beeyard.catalog import Baseline, CatalogError, DFlash, LoadMode, Mtp, Ngram
from beeyard.contract import FlagTable, load_table
from beeyard.spec import ServerSpec

Words = list[str]


def argv(spec: ServerSpec, table: FlagTable | None = None) -> Words:
    """
    The arguments that start ``spec``'s server, the binary first, in the order that the guide gave them.

    :param table: the flags of the engine; by default those that ``engine.flags`` names.
    :raises CatalogError: something the engine cannot do, by name.
    """
    flags = table or load_table(spec.engine.flags)
    settings, sampling = spec.settings, spec.settings.sampling
    speculation = _speculation(spec, flags)
    return [
        str(spec.binary),
        *("-m", str(spec.path_of(spec.model))),
        *speculation,
        *("--host", spec.listens_on),
        *("--port", str(spec.port)),
        *("-np", str(settings.slots)),
        *_when(settings.kv_unified, "--kv-unified"),
        *("-ngl", str(settings.gpu_layers)),
        *_when(spec.draft is not None, "--spec-draft-ngl", str(settings.gpu_layers)),
        *("-b", str(settings.batch)),
        *("-ub", str(settings.ubatch)),
        *("--ctx-size", str(settings.context)),
        *_kv(spec),
        *("--flash-attn", settings.flash_attention),
        *_optional("--cache-ram", settings.cache_ram_mib),
        *_when(settings.jinja, "--jinja"),
        *_load_mode(settings.load_mode, flags),
        *_when(settings.no_host_buffer, "--no-host"),
        *_when(settings.metrics, "--metrics"),
        *_when(settings.log_timestamps, "--log-timestamps"),
        *_when(settings.log_prefix, "--log-prefix"),
        *("--reasoning", settings.reasoning),
        *("--temp", _number(sampling.temperature)),
        *("--top-k", str(sampling.top_k)),
        *("--top-p", _number(sampling.top_p)),
        *("--min-p", _number(sampling.min_p)),
        # Last: the one argument that the guide has not.
        *("--api-key-file", str(spec.served_key_file)),
    ]


def _when(condition: bool, *words: str) -> Words:
    return list(words) if condition else []


def _optional(flag: str, value: int | str | None) -> Words:
    return [] if value is None else [flag, str(value)]


def _number(value: float) -> str:
    return repr(float(value))


def _kv(spec: ServerSpec) -> Words:
    kv = spec.settings.kv
    return [] if kv is None else ["--cache-type-k", kv.k, "--cache-type-v", kv.v]


# What upstream and BeeLlama called these before one --load-mode took their place. There the last of two
# contradicting flags wins, so only old engines may be told both.
_OLD_LOAD_FLAGS: dict[LoadMode, Words] = {
    "mmap": [],
    "none": ["--no-mmap"],
    "mlock": ["--no-mmap", "--mlock"],
    "mmap+mlock": ["--mlock"],
}


def _load_mode(mode: LoadMode, flags: FlagTable) -> Words:
    if "--load-mode" in flags:
        return ["--load-mode", mode]
    return _OLD_LOAD_FLAGS[mode]


def _speculation(spec: ServerSpec, flags: FlagTable) -> Words:
    return _DIALECTS[spec.engine.dialect](spec, flags)


def _guide(spec: ServerSpec, flags: FlagTable) -> Words:
    match spec.decoding:
        case DFlash(cross_context=cross, draft_max=depth, adaptive=adaptive):
            switch = {None: [], True: ["--spec-dm-adaptive"], False: ["--no-spec-dm-adaptive"]}
            return [
                *_draft_model(spec),
                *("--spec-type", "dflash"),
                *_optional("--spec-dflash-cross-ctx", cross),
                *_optional("--spec-draft-n-max", depth),
                *switch[adaptive],
            ]
        case Mtp():
            raise _cannot(spec, "multi-token prediction (draft-mtp)")
        case _:
            return _common(spec, flags)


def _upstream(spec: ServerSpec, flags: FlagTable) -> Words:
    match spec.decoding:
        case DFlash(cross_context=int()):
            raise _cannot(spec, "cross context")
        case DFlash(adaptive=bool()) if "--spec-dm-controller" not in flags:
            raise _cannot(spec, "a depth that adapts itself")
        case DFlash(draft_max=depth, adaptive=adaptive):
            controller = {None: None, True: "profit", False: "off"}[adaptive]
            return [
                *_draft_model(spec),
                *("--spec-type", "draft-dflash"),
                *_optional("--spec-draft-n-max", depth),
                *_optional("--spec-dm-controller", controller),
            ]
        case Mtp(draft_max=depth):
            return ["--spec-type", "draft-mtp", *_optional("--spec-draft-n-max", depth)]
        case _:
            return _common(spec, flags)


_DIALECTS: dict[str, Callable[[ServerSpec, FlagTable], Words]] = {
    "guide": _guide,
    "bee4": _upstream,
    "llama.cpp": _upstream,
}


def _draft_model(spec: ServerSpec) -> Iterable[str]:
    assert spec.draft is not None, "resolve() gives every drafting spec its draft"  # noqa: S101
    return ("--spec-draft-model", str(spec.path_of(spec.draft)))


def _common(spec: ServerSpec, flags: FlagTable) -> Words:
    match spec.decoding:
        case Ngram(type=kind, size_n=size_n, size_m=size_m):
            sizes = (("size-n", size_n), ("size-m", size_m))
            wanted = [(f"--spec-{kind}-{name}", value) for name, value in sizes if value is not None]
            for flag, _ in wanted:
                if flag not in flags:
                    raise _cannot(spec, f"{flag.removeprefix('--spec-')} of {kind}")
            return ["--spec-type", kind, *(word for flag, value in wanted for word in (flag, str(value)))]
        case Baseline():
            return []
        case other:
            raise _cannot(spec, other.kind)


def _cannot(spec: ServerSpec, what: str) -> CatalogError:
    return CatalogError(
        f"{what} is not known to {spec.engine.title}, which variant {spec.variant!r} of {spec.preset} would run "
        "on. Fix: choose another variant, or another engine with llama_engine"
    )
