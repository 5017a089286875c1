"""
The memory that a server needs, from its files' headers and its settings alone. Pure.

Where the figures come from: what llama.cpp allocates was read in its source (build 11434) and is held against what
the server of build 10068 logs, by a test, cache by cache. What BeeLlama does otherwise was measured on CPU builds of
v0.2.0 and v0.4.3. What is an estimate says so. Weights are whole files: a card holds at most that.

Sizes are in bytes where a name does not say MiB; contexts and cells in tokens. A cell is one token's keys and
values in one layer, or the room for them.
"""

from collections.abc import Iterator
from typing import Literal, NamedTuple

from beeyard.catalog import (
    Baseline,
    CatalogError,
    Decoding,
    DFlash,
    DialectName,
    Gguf,
    KvTypes,
    Mtp,
    Settings,
)

MIB = 2**20
F16, F32 = 2, 4
# Elements and bytes of a block, as ggml-common.h has them: upstream's, then what BeeLlama v0.4 adds. TurboQuant and
# KVarN pack otherwise, and their layout was not read: they are refused.
BLOCKS: dict[str, tuple[int, int]] = {
    "f32": (1, 4),
    "f16": (1, 2),
    "bf16": (1, 2),
    "q8_0": (32, 34),
    "q5_1": (32, 24),
    "q5_0": (32, 22),
    "q4_1": (32, 20),
    "q4_0": (32, 18),
    "iq4_nl": (32, 18),
    "q6_1": (32, 28),
    "q6_0": (32, 26),
    "q3_1": (32, 16),
    "q3_0": (32, 14),
    "q2_1": (32, 12),
    "q2_0": (32, 10),
}
# What a context is rounded up to, and the cache of a window (llama-context.cpp, llama-kv-cache-iswa.cpp).
PADDING = 256
# Contexts to choose from, where nobody named one.
CONTEXTS = (4096, 8192, 16384, 32768, 49152, 65536, 98304, 131072, 196608, 262144, 524288, 1048576)
# Hybrids whose states are known: gated delta nets beside attention.
HYBRIDS = ("qwen35", "qwen35moe", "qwen3next")
# Drafted tokens that a context may take back, without --spec-draft-n-max: 3 upstream, a block less one in BeeLlama.
UPSTREAM_DRAFT_MAX, BEE_BLOCK = 3, 16
# The dialect `guide`: the drafter's context without --spec-draft-ctx-size, and what of the target the drafter sees.
GUIDE_DRAFT_CONTEXT, GUIDE_CROSS_CONTEXT = 256, 512
# Hidden states that a drafter reads of its target: the six of Gemma 4 31B's.
TAPS = 6
# Estimate. In llama.cpp's pull request 23604 it took 107 MiB on an RTX 4060 Ti and 555 MiB on an RTX PRO 6000: it
# grows with the number of multiprocessors, and this is an RTX 4090's share.
CUDA_CONTEXT = 384 * MIB
# Estimate: what is left to others on the card, and to what is forgotten here. Upstream's own --fit leaves 1024 MiB.
MARGIN = 128 * MIB
# What the smallest models were seen to need beside what is computed here.
COMPUTE_REST = 2 * MIB
# Estimate: the process itself, its libraries and buffers.
HOST_PROCESS = 512 * MIB
CACHE_RAM_DEFAULT_MIB = 8192
CHECKPOINTS = 32
PAGE_CACHE = "page cache"

Place = Literal["gpu", "host"]
Pair = tuple[str, str]


class Weights(NamedTuple):
    """A model as files: the header, and the size of all its parts together."""

    header: Gguf
    file_bytes: int


class Plan(NamedTuple):
    """What is to be run. ``accelerator`` is the engine's; on `cpu` all of it lies in the host's memory."""

    model: Weights
    settings: Settings
    dialect: DialectName
    decoding: Decoding = Baseline(kind="baseline")
    draft: Weights | None = None
    accelerator: Literal["cuda", "cpu"] = "cuda"
    cuda_context_bytes: int = CUDA_CONTEXT
    margin_bytes: int = MARGIN


class Row(NamedTuple):
    """One thing that needs memory, and why so much."""

    name: str
    bytes: int
    place: Place
    why: str
    # Whether --mlock keeps it in memory: only buffers of weights on the CPU are.
    is_lockable: bool = False


class Budget(NamedTuple):
    """
    All that a server needs.

    ``rows`` are there once it has started. ``growth`` is host memory that it may take later, at most, and page cache,
    which the kernel gives back.
    """

    rows: tuple[Row, ...]
    growth: tuple[Row, ...]

    @property
    def gpu_bytes(self) -> int:
        """On the card."""
        return sum(row.bytes for row in self.rows if row.place == "gpu")

    @property
    def host_bytes(self) -> int:
        """In the host's memory, once started."""
        return sum(row.bytes for row in self.rows if row.place == "host")

    @property
    def total_bytes(self) -> int:
        """On the card and the host together, once started."""
        return self.gpu_bytes + self.host_bytes

    @property
    def growth_bytes(self) -> int:
        """What may come to the host's part later."""
        return sum(row.bytes for row in self.growth)

    @property
    def lockable_bytes(self) -> int:
        """What --mlock locks, so what a limit of locked memory must allow."""
        return sum(row.bytes for row in self.rows if row.is_lockable)

    def fits(self, gpu_free_bytes: int | None = None, host_free_bytes: int | None = None) -> bool:
        """Whether it can start with that much free memory; None asks nothing of that side."""
        free = ((self.gpu_bytes, gpu_free_bytes), (self.host_bytes, host_free_bytes))
        return all(limit is None or needed <= limit for needed, limit in free)


# --- what a model keeps of each token --------------------------------------------------------------


class Layer(NamedTuple):
    """One layer that keeps keys and values: how many of each a cell has."""

    number: int
    keys: int
    values: int
    is_windowed: bool


class Caches(NamedTuple):
    """The caches of one context: ``streams`` of so many cells each, for layers without and with a window."""

    sequences: int
    streams: int
    cells: int
    window_cells: int

    def of(self, layer: Layer) -> int:
        """The cells that a layer has in all streams."""
        return self.streams * (self.window_cells if layer.is_windowed else self.cells)


def layers_of(header: Gguf) -> list[Layer]:
    """
    The layers that keep keys and values for the model itself, as llama.cpp's create_memory() picks them.

    Without a pattern of windowed layers all count as full ones, which is never too little.

    :raises CatalogError: the header says too little, or of a kind of memory that is not known here.
    """
    count, heads, embedding = header.layers, header.heads, header.embedding
    if count is None or heads is None or (header.key_length is None and embedding is None):
        raise CatalogError(
            f"the header of a {header.architecture} model names no layers, heads or lengths of keys, so its memory "
            "cannot be computed. Fix: run `beeyard lock` for it anew, or set llama_context yourself"
        )
    if header.ssm_inner is not None and header.architecture not in HYBRIDS:
        raise CatalogError(
            f"architecture {header.architecture} keeps states beside keys and values, of which only those of "
            f"{', '.join(HYBRIDS)} can be computed. Fix: choose another model, or set llama_context yourself"
        )
    keys = header.key_length or (embedding or 0) // (heads if isinstance(heads, int) else heads[0])
    values = header.value_length or keys
    per_layer = _each(header.kv_heads if header.kv_heads is not None else heads, count, header)
    full = None if header.window is None or header.full_layers is None else set(header.full_layers)
    with_cache = count - max(header.shared_kv_layers or 0, header.nextn_layers or 0)
    found = []
    for index in range(with_cache):
        is_windowed = full is not None and index not in full
        if per_layer[index] and not is_recurrent(header, index):
            k = header.key_length_swa if is_windowed else None
            v = header.value_length_swa if is_windowed else None
            found.append(Layer(index, per_layer[index] * (k or keys), per_layer[index] * (v or values), is_windowed))
    return found


def _each(value: int | list[int], count: int, header: Gguf) -> list[int]:
    found = [value] * count if isinstance(value, int) else value
    if len(found) != count:
        raise CatalogError(
            f"the header of a {header.architecture} model has {count} layers and heads for {len(found)}. "
            "Fix: fetch the file anew, it is not what llama.cpp could load"
        )
    return found


def is_recurrent(header: Gguf, layer: int) -> bool:
    """Whether a layer of a hybrid has a state, not attention: all but every so many-th, by default the fourth."""
    return header.ssm_inner is not None and (layer + 1) % (header.attention_every or 4) != 0


def state_elements(header: Gguf) -> int:
    """
    The floats that one such layer keeps for a sequence: the convolution's last inputs, and the state itself.

    llama-hparams.cpp, n_embd_r() and n_embd_s(). Qwen 3.6 27B: 48 layers, 150 MiB in all.
    """
    inner, state = header.ssm_inner or 0, header.ssm_state or 0
    convolved = inner + 2 * (header.ssm_groups or 0) * state
    return max((header.ssm_convolution or 0) - 1, 0) * convolved + state * inner


def caches_of(header: Gguf, settings: Settings, sequences: int, context: int | None = None) -> Caches:
    """
    How a server cuts its context into caches.

    Each sequence has a stream of its own, unless they share one (--kv-unified). A windowed layer keeps the window and
    one micro-batch; in a shared stream, a window for each sequence.
    """
    wanted = _padded(context or settings.context)
    streams = 1 if settings.kv_unified else sequences
    cells = _padded(wanted // streams)
    windows = (header.window or 0) * (sequences if settings.kv_unified else 1)
    return Caches(sequences, streams, cells, _padded(min(cells, windows + ubatch_of(settings))))


def ubatch_of(settings: Settings) -> int:
    """The tokens that are computed at once."""
    return min(settings.ubatch, settings.batch, settings.context)


def cache_bytes(elements: int, kind: str) -> int:
    """
    What so many elements of a cache take.

    :raises CatalogError: a type whose size is not known here, or one whose blocks do not fill a row.
    """
    if kind not in BLOCKS:
        raise CatalogError(
            f"nothing here knows how much memory KV type {kind} takes. Fix: set kv to one of {', '.join(BLOCKS)}, or "
            "set llama_context yourself"
        )
    block, size = BLOCKS[kind]
    if elements % block:
        raise CatalogError(
            f"KV type {kind} comes in blocks of {block}, which the model's {elements} elements a token do not fill. "
            "Fix: set kv to f16 for keys and values"
        )
    return elements // block * size


def _padded(tokens: int) -> int:
    return -(-tokens // PADDING) * PADDING


# --- the budget ------------------------------------------------------------------------------------


def budget(plan: Plan) -> Budget:
    """
    The memory of a server, row by row.

    :raises CatalogError: something of it cannot be computed.
    """
    rows = [*_target_rows(plan), *_draft_rows(plan), *_fixed_rows(plan)]
    return Budget(tuple(row for row in rows if row.bytes), tuple(row for row in _growth(plan) if row.bytes))


def sequences_of(plan: Plan) -> int:
    """The sequences that the target keeps: one for a slot; the guide's DFlash has a second, to go back to."""
    doubled = plan.dialect == "guide" and plan.decoding.kind == "dflash"
    return plan.settings.slots * (2 if doubled else 1)


def rollback_of(plan: Plan) -> int:
    """
    How many drafted tokens back a hybrid keeps its state, so how many times more it takes than one.

    Upstream's need_n_rs_seq(). BeeLlama v0.4 has the same code and drafts a whole block by default. The guide's
    engines keep a second sequence instead.
    """
    match plan.decoding:
        case DFlash(draft_max=depth) | Mtp(draft_max=depth) if plan.dialect != "guide":
            if depth is not None:
                return depth
            if plan.dialect == "bee4" and plan.decoding.kind == "dflash":
                block = plan.draft.header.block if plan.draft else None
                return (block or BEE_BLOCK) - 1
            return UPSTREAM_DRAFT_MAX
        case _:
            return 0


def _target_rows(plan: Plan) -> Iterator[Row]:
    header, settings = plan.model.header, plan.settings
    caches = caches_of(header, settings, sequences_of(plan))
    kv = settings.kv or KvTypes(k="f16", v="f16")
    yield from _weights("weights", plan, plan.model)
    yield from _cache_rows("KV cache", plan, header, caches, kv)
    states = [layer for layer in range(_trunk(header)) if is_recurrent(header, layer)]
    rows = caches.sequences * (1 + rollback_of(plan))
    each = rows * state_elements(header) * F32
    why = f"{len(states)} layers, sequences: {caches.sequences}, tokens back: {rollback_of(plan)}"
    yield from _split("recurrent states", plan, header, [(layer, each) for layer in states], why)
    yield from _compute_rows("compute", plan, header, caches, kv, _outputs(plan), header.words)


def _draft_rows(plan: Plan) -> Iterator[Row]:
    """A drafter's own memory. Its cache is f16: nothing here sets --spec-draft-type-k."""
    settings = plan.settings
    match plan.decoding:
        case DFlash(cross_context=cross):
            if plan.draft is None:
                raise CatalogError(
                    "a drafter's header is wanted and there is none, so its memory cannot be computed. "
                    "Fix: run `beeyard lock` for the draft model"
                )
            yield from _weights("drafter's weights", plan, plan.draft)
            seen = None
            if plan.dialect == "guide":
                # At most this: v0.2.0's drafter of another schema was seen to keep nothing.
                seen = settings.slots * (GUIDE_DRAFT_CONTEXT + (cross or GUIDE_CROSS_CONTEXT))
                ring = (cross or GUIDE_CROSS_CONTEXT) * TAPS * (plan.model.header.embedding or 0) * F32
                yield from _on_device("drafter's ring", plan, ring * settings.slots, f"{TAPS} hidden states a token")
            # Upstream gives a drafter's window its own cache; of BeeLlama only drafters without one were measured.
            is_upstream = plan.dialect == "llama.cpp"
            header = plan.draft.header if is_upstream else _unwindowed(plan.draft.header)
            yield from _drafting("drafter's", plan, header, seen)
        case Mtp():
            yield from _drafting("MTP's", plan, _only_nextn(plan.model.header), None)
        case _:
            return


def _drafting(whose: str, plan: Plan, header: Gguf, context: int | None) -> Iterator[Row]:
    """A drafting context's caches and buffers: as long as the target's, with the logits of a whole micro-batch."""
    kv = KvTypes(k="f16", v="f16")
    caches = caches_of(header, plan.settings, plan.settings.slots, context)
    outputs = min(ubatch_of(plan.settings), GUIDE_DRAFT_CONTEXT if context else plan.settings.context)
    yield from _cache_rows(f"{whose} KV cache", plan, header, caches, kv)
    yield from _compute_rows(f"{whose} compute", plan, header, caches, kv, outputs, plan.model.header.words)


def _fixed_rows(plan: Plan) -> Iterator[Row]:
    if _gpu_layers(plan, plan.model.header):
        yield Row("CUDA context", plan.cuda_context_bytes, "gpu", "estimate; it grows with multiprocessors")
        yield Row("margin", plan.margin_bytes, "gpu", "for others, and for what is not counted here")
    yield Row("the process", HOST_PROCESS, "host", "estimate: libraries and buffers")


def _growth(plan: Plan) -> Iterator[Row]:
    """
    What the host's memory may lose later.

    A context checkpoint holds a window of every windowed layer, or a hybrid's state; up to 32 a slot are kept
    (--ctx-checkpoints). Gemma 4 31B: 800 MiB each at f16. Qwen 3.6 27B: 150 MiB.
    """
    header, settings = plan.model.header, plan.settings
    kv = settings.kv or KvTypes(k="f16", v="f16")
    windows = sum(
        min(header.window or 0, _padded(settings.context)) * _cell_bytes(layer, kv)
        for layer in layers_of(header)
        if layer.is_windowed
    )
    states = sum(is_recurrent(header, layer) for layer in range(_trunk(header))) * state_elements(header) * F32
    each = windows + states
    why = f"up to {CHECKPOINTS} a slot of {_mib(each)} MiB"
    yield Row("context checkpoints", settings.slots * CHECKPOINTS * each, "host", why)
    cached = CACHE_RAM_DEFAULT_MIB if settings.cache_ram_mib is None else settings.cache_ram_mib
    yield Row("prompt cache", cached * MIB, "host", "--cache-ram, at most")
    files = plan.model.file_bytes + (plan.draft.file_bytes if plan.draft else 0)
    yield Row(PAGE_CACHE, files, "host", "of reading files; the kernel gives it back")


# --- one kind of row each --------------------------------------------------------------------------


def _weights(name: str, plan: Plan, weights: Weights) -> Iterator[Row]:
    """Whole files. Only how many layers lie where is known, not how large each is: they count alike."""
    header, size = weights.header, weights.file_bytes
    layers = (header.layers or 0) + 1  # with the output
    on_gpu = -(-size * _gpu_layers(plan, header) // layers)
    yield Row(name, on_gpu, "gpu", "the file's size" if on_gpu == size else f"of {_mib(size)} MiB in files")
    if on_gpu < size:
        yield Row(name, size - on_gpu, "host", "what of the file is not on the card", is_lockable=True)
    elif weights is plan.model and header.words and header.embedding:  # a drafter has its target's
        table = min(size, cache_bytes(-(-header.words * header.embedding // 32) * 32, "q8_0"))
        why = "they stay on the CPU; estimate: 8 bits each"
        yield Row(f"{name}: embeddings", table, "host", why, is_lockable=True)


def _cache_rows(name: str, plan: Plan, header: Gguf, caches: Caches, kv: KvTypes) -> Iterator[Row]:
    for is_windowed, label in ((False, name), (True, f"{name}, sliding window")):
        layers = [layer for layer in layers_of(header) if layer.is_windowed == is_windowed]
        cells = caches.window_cells if is_windowed else caches.cells
        streams = f", {caches.streams} streams" if caches.streams > 1 else ""
        why = f"{len(layers)} layers x {cells} cells{streams}, {kv.k}/{kv.v}"
        sizes = [(layer.number, caches.of(layer) * _cell_bytes(layer, kv)) for layer in layers]
        yield from _split(label, plan, header, sizes, why)


def _cell_bytes(layer: Layer, kv: KvTypes) -> int:
    return cache_bytes(layer.keys, kv.k) + cache_bytes(layer.values, kv.v)


def _compute_rows(
    name: str, plan: Plan, header: Gguf, caches: Caches, kv: KvTypes, outputs: int, words: int | None
) -> Iterator[Row]:
    """
    What is needed while computing. An estimate: the mask of every cache (f16, one micro-batch wide), logits of all
    outputs, the widest layer's activations. For Qwen3.5-4B at 262144 tokens it gives 320 MiB, where 0.31 GiB were
    measured, and with a quantised cache 1344, where 1.30 GiB were (unslothai/unsloth, pull request 6718).

    On the card, the kernels of flash attention for many tokens read f16: a cache of any other type is copied, one
    layer's at a time.
    """
    ubatch, layers = ubatch_of(plan.settings), layers_of(header)
    kinds = {layer.is_windowed: caches.of(layer) for layer in layers}
    mask = sum(kinds.values()) * (ubatch + caches.sequences) * F16
    activations = ubatch * F32 * _widest(header) + COMPUTE_REST
    logits = outputs * (words or 0) * F32
    parts = f"masks {_mib(mask)}, logits {_mib(logits)}, the rest {_mib(activations)}"
    yield from _on_device(name, plan, mask + activations + logits, f"estimate: {parts}")
    if _gpu_layers(plan, header):
        first = _first_on_gpu(plan, header)
        copy = _f16_copy([layer for layer in layers if layer.number >= first], caches, kv)
        yield Row(f"{name}: f16 copy", copy, "gpu", "a layer's keys and values, for flash attention")
        # The mask is made on the host, as f32 in older builds; logits come back to it.
        yield Row(name, 2 * mask + logits, "host", "estimate: masks and logits on their way")


def _f16_copy(layers: list[Layer], caches: Caches, kv: KvTypes) -> int:
    """
    Of the largest layer, for keys and values apart. What is f16 already is not copied.

    Yet a larger type must never seem to need less: with fewer than three layers, f16 has to make up the difference
    to q8_0 and its copy.
    """
    total = 0
    for kind, elements in (
        (kv.k, [caches.of(layer) * layer.keys for layer in layers]),
        (kv.v, [caches.of(layer) * layer.values for layer in layers]),
    ):
        copy, stored = max(elements, default=0) * F16, sum(elements)
        total += copy if kind != "f16" else max(0, copy + stored * 34 // 32 - stored * F16)
    return total


def _widest(header: Gguf) -> int:
    """Floats a token: gate, up and their product, or queries three times, beside twice the residual stream."""
    heads = max(header.heads) if isinstance(header.heads, list) else header.heads or 0
    wide = max(header.feed_forward) if isinstance(header.feed_forward, list) else header.feed_forward or 0
    embedding = header.embedding or 0
    queries = heads * (header.key_length or (embedding // heads if heads else 0))
    states = (header.ssm_inner or 0) + 2 * (header.ssm_groups or 0) * (header.ssm_state or 0)
    return 3 * max(wide, queries, states, embedding) + 2 * embedding


def _outputs(plan: Plan) -> int:
    """
    Tokens that the target's logits are kept of. Measured with build 10068: one a slot, and one for each drafted
    token. The guide's engines are older and keep a whole micro-batch's. BeeLlama v0.4 counts as upstream: only so
    does Qwen 3.6 27B at 32k with DFlash leave a 24 GB card what its users report, 0.7 to 0.8 GB.
    """
    ubatch = ubatch_of(plan.settings)
    if plan.dialect == "guide":
        return ubatch
    return min(ubatch, plan.settings.slots * (1 + rollback_of(plan)))


def _split(name: str, plan: Plan, header: Gguf, sizes: list[tuple[int, int]], why: str) -> Iterator[Row]:
    """A row for each place that the layers' parts lie in: the last layers are on the card."""
    first = _first_on_gpu(plan, header)
    on_gpu = sum(size for layer, size in sizes if layer >= first)
    yield Row(name, on_gpu, "gpu", why)
    yield Row(name, sum(size for _, size in sizes) - on_gpu, "host", why)


def _on_device(name: str, plan: Plan, size: int, why: str) -> Iterator[Row]:
    yield Row(name, size, "gpu" if _gpu_layers(plan, plan.model.header) else "host", why)


def _first_on_gpu(plan: Plan, header: Gguf) -> int:
    return (header.layers or 0) + 1 - _gpu_layers(plan, header)


def _gpu_layers(plan: Plan, header: Gguf) -> int:
    """How many of a model's layers, its output among them, are on the card; `auto` stands for what is hoped for."""
    layers, wanted = (header.layers or 0) + 1, plan.settings.gpu_layers
    if plan.accelerator == "cpu":
        return 0
    return layers if isinstance(wanted, str) else min(wanted, layers)


def _trunk(header: Gguf) -> int:
    return (header.layers or 0) - (header.nextn_layers or 0)


def _unwindowed(header: Gguf) -> Gguf:
    return header.model_copy(update={"window": None})


def _only_nextn(header: Gguf) -> Gguf:
    """The MTP layers as a model of their own: plain attention."""
    if not header.nextn_layers:
        raise CatalogError(
            f"the {header.architecture} model has no layers for multi-token prediction. Fix: name a GGUF that has "
            "them, or choose another variant"
        )
    kv_heads = header.kv_heads[-header.nextn_layers :] if isinstance(header.kv_heads, list) else header.kv_heads
    fresh = {"layers": header.nextn_layers, "kv_heads": kv_heads, "nextn_layers": None, "shared_kv_layers": None}
    return _unwindowed(header.model_copy(update={**fresh, "ssm_inner": None}))


# --- what would fit --------------------------------------------------------------------------------


def largest_context(
    plan: Plan, gpu_free_bytes: int | None = None, host_free_bytes: int | None = None, most: int | None = None
) -> int | None:
    """
    The largest context that fits, a multiple of 256 (more room is taken for no other), or None if not even that does.

    :param most: no more than this; by default what the model was made for.
    """
    limit = (most or plan.model.header.context or max(CONTEXTS)) // PADDING

    def does_fit(steps: int) -> bool:
        return budget(_with(plan, context=steps * PADDING)).fits(gpu_free_bytes, host_free_bytes)

    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if does_fit(middle) else (low, middle - 1)
    return low * PADDING or None


def standard_context(
    plan: Plan, gpu_free_bytes: int | None = None, host_free_bytes: int | None = None, most: int | None = None
) -> int | None:
    """The largest usual context that fits, for ``context: auto``; None where even the smallest does not."""
    largest = largest_context(plan, gpu_free_bytes, host_free_bytes, most) or 0
    return max((context for context in CONTEXTS if context <= largest), default=None)


# Best first; keys never coarser than values.
LADDER: tuple[Pair, ...] = (
    ("f16", "f16"),
    ("q8_0", "q8_0"),
    ("q6_0", "q6_0"),
    ("q5_1", "q5_1"),
    ("q5_0", "q5_0"),
    ("q5_0", "q4_1"),
    ("q4_1", "q4_1"),
    ("q4_0", "q4_0"),
)


def kv_types_that_fit(
    plan: Plan,
    gpu_free_bytes: int | None = None,
    host_free_bytes: int | None = None,
    *,
    has_all_kernels: bool = True,
) -> list[KvTypes]:
    """The pairs of cache types with which the wanted context fits, the finest first."""
    found = []
    for k, v in LADDER:
        kv = KvTypes(k=k, v=v)
        is_usable = v == "f16" or plan.settings.flash_attention == "on"
        if not is_usable or lacking_kernel(kv, plan.dialect, has_all_kernels=has_all_kernels):
            continue
        if budget(_with(plan, kv=kv)).fits(gpu_free_bytes, host_free_bytes):
            found.append(kv)
    return found


def _with(plan: Plan, **changes: object) -> Plan:
    return plan._replace(settings=plan.settings.model_copy(update=changes))


# --- kernels of flash attention --------------------------------------------------------------------

_UPSTREAM_TYPES = ("f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0")
_BEE_TYPES = (*_UPSTREAM_TYPES, "q6_1", "q6_0", "q3_1", "q3_0", "q2_1", "q2_0")
_SAME = frozenset((kind, kind) for kind in ("f16", "bf16", "q8_0", "q4_0"))


def attention_kernels(dialect: DialectName, *, has_all_kernels: bool) -> frozenset[Pair]:
    """
    The pairs of K and V types that a CUDA build has flash attention for.

    :param has_all_kernels: built with GGML_CUDA_FA_ALL_QUANTS, as our images and builds are. Without, upstream and
        the guide's engines have four pairs of equals; BeeLlama v0.4 has 50, of which q5_0/q4_1 is known beside them.
    """
    if has_all_kernels:
        types = _BEE_TYPES if dialect == "bee4" else _UPSTREAM_TYPES
        return frozenset((k, v) for k in types for v in types)
    return _SAME | {("q5_0", "q4_1")} if dialect == "bee4" else _SAME


def lacking_kernel(kv: KvTypes | None, dialect: DialectName, *, has_all_kernels: bool) -> str | None:
    """Why a pair is refused on CUDA, in a sentence; None where the build has a kernel for it."""
    pair = ("f16", "f16") if kv is None else (kv.k, kv.v)
    if pair in attention_kernels(dialect, has_all_kernels=has_all_kernels):
        return None
    name = "/".join(pair)
    if pair in attention_kernels(dialect, has_all_kernels=True):
        return (
            f"this build has no CUDA kernel of flash attention for KV {name}, so attention would run on the CPU "
            "without an error. Fix: build it with GGML_CUDA_FA_ALL_QUANTS=ON, or set kv to {k: q8_0, v: q8_0}"
        )
    return (
        f"no build of dialect {dialect} has a CUDA kernel of flash attention for KV {name}. "
        "Fix: set kv to {k: q8_0, v: q8_0}"
    )


# --- as text ---------------------------------------------------------------------------------------

WIDTH = 100  # columns


def render(budget: Budget, gpu_free_bytes: int | None = None, host_free_bytes: int | None = None) -> str:
    """The rows as a table in MiB, and a bar for each place whose free memory is given."""
    lines = []
    sides: tuple[tuple[Place, str, int, int | None], ...] = (
        ("gpu", "On the card", budget.gpu_bytes, gpu_free_bytes),
        ("host", "In the host's memory", budget.host_bytes, host_free_bytes),
    )
    for place, title, needed, free in sides:
        rows = [row for row in budget.rows if row.place == place]
        if rows:
            lines += [title, *map(_line, rows), _line(Row("sum", needed, place, _verdict(needed, free)))]
            lines += [] if free is None else [f"  {_bar(rows, free)}"]
    if budget.growth:
        lines += ["What the host may need later, at most", *map(_line, budget.growth)]
    return "\n".join(lines)


def _line(row: Row) -> str:
    return f"  {row.name:<32.32} {_mib(row.bytes):>8} MiB  {row.why}"[:WIDTH].rstrip()


def _verdict(needed: int, free: int | None) -> str:
    if free is None:
        return ""
    left = free - needed
    return f"of {_mib(free)} MiB free: " + (f"{left // MIB} MiB left" if left >= 0 else f"{_mib(-left)} MiB too much")


def _bar(rows: list[Row], free: int) -> str:
    """A letter for each row, as wide as its part; `!` is what does not fit, `.` what stays free."""
    columns = WIDTH - 4
    whole = max(free, sum(row.bytes for row in rows), 1)
    bar, used = "", 0
    for row in rows:
        used += row.bytes
        bar = bar.ljust(used * columns // whole, row.name.removeprefix("the ")[0])
    bar = bar.ljust(columns, ".")
    limit = free * columns // whole
    return f"[{bar[:limit]}{'!' * (columns - limit)}]"


def _mib(size: int) -> int:
    """Rounded up: a budget never says less than it is."""
    return -(-size // MIB)
