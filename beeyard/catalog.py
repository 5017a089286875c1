"""Presets: what the YAML files under presets/ may say. Knows nothing of hosts or pyinfra."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

PROJECT = Path(__file__).parents[1]
PRESETS = PROJECT / "presets"
# More folders of presets, separated as in PATH; what they name is added to ours or replaces it.
PRESETS_VARIABLE = "BEEYARD_PRESETS"
# libyaml's where PyYAML has it: a tenth of the time, and each deploy reads all presets.
SAFE_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

T = TypeVar("T")
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
CommitSha = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{40}$")]
DialectName = Literal["guide", "bee4", "llama.cpp"]
ImageName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][\w./-]*(:\d+)?[\w./-]*:[\w.-]+$")]
ImageDigest = Annotated[str, StringConstraints(pattern=r"^(sha256:[0-9a-f]{64}|local)$")]
ImageReference = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][\w./:-]*@sha256:[0-9a-f]{64}$")]
LoadMode = Literal["mmap", "none", "mlock", "mmap+mlock"]
OnOffAuto = Literal["on", "off", "auto"]
Drafter = Literal["early", "dflash-2", "dspark"]
NgramType = Literal["ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache"]


class CatalogError(ValueError):
    """A preset or host setting that cannot be used. Its text is one sentence that ends in ``Fix: …``."""


class Strict(BaseModel):
    """Frozen, and a wrong key is an error that names it."""

    model_config = ConfigDict(frozen=True, extra="forbid")


# --- where files come from -------------------------------------------------------------------------


class HubFile(Strict):
    """A file of a Hugging Face Hub repository. Its commit, size and hash are in the lock."""

    kind: Literal["hub"]
    repository: Annotated[str, StringConstraints(pattern=r"^[\w.-]+/[\w.-]+$")]
    file: str
    revision: str = "main"


class WheelMember(Strict):
    """A file inside a wheel of the Python package index."""

    kind: Literal["wheel"]
    package: str
    version: str
    member: str

    @property
    def file(self) -> str:
        """The member's own name."""
        return self.member.rpartition("/")[2]


class UrlFile(Strict):
    """A file at an HTTP address."""

    kind: Literal["url"]
    url: Annotated[str, StringConstraints(pattern=r"^https?://")]

    @property
    def file(self) -> str:
        """The last part of the address."""
        return self.url.rpartition("/")[2].partition("?")[0]


class LocalFile(Strict):
    """A file on the machine that deploys, relative to the project; it is sent to the host."""

    kind: Literal["path"]
    path: str

    @property
    def file(self) -> str:
        """The file's own name."""
        return self.path.rpartition("/")[2]


Source = Annotated[HubFile | WheelMember | UrlFile | LocalFile, Field(discriminator="kind")]


class Model(Strict):
    """One GGUF file."""

    source: Source
    note: str | None = None


# --- engines ---------------------------------------------------------------------------------------


class WheelArtefact(Strict):
    """An engine inside a wheel of the Python package index."""

    kind: Literal["wheel"]
    package: str
    version: str
    binary: str


class ReleaseArtefact(Strict):
    """
    An engine in a .tar.gz, whose address, size and hash are in the lock.

    ``cuda`` is what it was compiled with and ``architectures`` are the cards that it holds code for, as CMake writes
    them, where that is known.
    """

    kind: Literal["release"]
    binary: str = "llama-server"
    cuda: Annotated[str, StringConstraints(pattern=r"^\d+\.\d+$")] | None = None
    architectures: tuple[Annotated[str, StringConstraints(pattern=r"^\d{2,3}$")], ...] = ()


class DebianArtefact(Strict):
    """An engine in a package of the host's own distribution; apt checks its signature."""

    kind: Literal["debian"]
    package: str
    version: str
    binary: str


class SourceArtefact(Strict):
    """An engine that the host compiles from the engine's repository at its commit, or from a mirror of that."""

    kind: Literal["source"]
    mirror: Annotated[str, StringConstraints(pattern=r"^(https?|git|ssh)://")] | None = None
    binary: str = "llama-server"


Artefact = Annotated[WheelArtefact | ReleaseArtefact | DebianArtefact | SourceArtefact, Field(discriminator="kind")]


class Engine(Strict):
    """A pinned build of llama-server and the dialect of flags it speaks."""

    title: str
    dialect: DialectName
    flags: str
    repository: str
    commit: CommitSha | None = None
    # The release that the commit is of, and which of its files runs here, * for what changes; `beeyard lock` asks.
    tag: str | None = None
    asset: str | None = None
    accelerator: Literal["cuda", "cpu"]
    cpu_flags: tuple[str, ...] = ()
    # The oldest glibc that it runs with, as 2.35.
    min_glibc: Annotated[str, StringConstraints(pattern=r"^\d+\.\d+$")] | None = None
    packages: tuple[str, ...] = ()
    # Whether somebody else's build has CUDA kernels for all pairs of cache types (GGML_CUDA_FA_ALL_QUANTS).
    fa_all_quants: bool | None = None
    # Whether it reads DFlash 2's drafters: BeeLlama from v0.4.4, llama.cpp from pull request 27816 (2026-08-27).
    reads_dflash_2: bool = False
    artefact: Artefact

    @model_validator(mode="after")
    def _source_has_a_commit(self) -> Self:
        if self.artefact.kind == "source" and self.commit is None:
            raise ValueError(
                f"{self.title} is compiled from source and names no commit. "
                "Fix: add its commit, all 40 digits, in presets/engines.yaml"
            )
        return self


# --- images ----------------------------------------------------------------------------------------


class ImageVariant(Strict):
    """A build of Dockerfile.cuda: for a CUDA version and the architectures it holds code for, or for the CPU."""

    cuda: Annotated[str, StringConstraints(pattern=r"^\d+\.\d+$")] | None = None
    build_base: ImageName
    server_base: ImageName
    architectures: tuple[Annotated[str, StringConstraints(pattern=r"^\d{2,3}$")], ...] = ()

    @property
    def accelerator(self) -> Literal["cuda", "cpu"]:
        """What it computes with."""
        return "cpu" if self.cuda is None else "cuda"


class Repository(Strict):
    """An apt repository of somebody else's. ``{distribution}``, ``{codename}`` and ``{keyring}`` are filled in."""

    key_url: Annotated[str, StringConstraints(pattern=r"^https?://")]
    fingerprint: Annotated[str, StringConstraints(pattern=r"^[0-9A-F]{40}$")]
    line: str
    packages: tuple[str, ...]


# --- GPUs ------------------------------------------------------------------------------------------


class Gpu(Strict):
    """A card: what nvidia-smi calls it, its compute capability and its memory in MiB as nvidia-smi says."""

    smi_name: str
    compute_capability: Annotated[str, StringConstraints(pattern=r"^\d+\.\d$")]
    memory_mib: int = Field(gt=0)
    min_cuda: Annotated[str, StringConstraints(pattern=r"^\d+\.\d$")]


# --- servers ---------------------------------------------------------------------------------------


class KvTypes(Strict):
    """How the KV cache is stored, for keys and for values."""

    k: str
    v: str


class Sampling(Strict):
    """Defaults for requests that do not say."""

    temperature: float = Field(default=0.7, ge=0)
    top_k: int = Field(default=64, ge=0)
    top_p: float = Field(default=0.95, gt=0, le=1)
    min_p: float = Field(default=0.0, ge=0, le=1)


class Settings(Strict):
    """How a model is served, whatever the decoding. Sizes in tokens, times in seconds."""

    context: int = Field(default=32768, gt=0)
    slots: int = Field(default=1, gt=0)
    gpu_layers: Literal["all", "auto"] | Annotated[int, Field(ge=0)] = "all"
    batch: int = Field(default=2048, gt=0)
    ubatch: int = Field(default=512, gt=0)
    kv: KvTypes | None = KvTypes(k="q5_0", v="q4_1")
    kv_unified: bool = False
    flash_attention: OnOffAuto = "on"
    load_mode: LoadMode = "mlock"
    no_host_buffer: bool = False
    cache_ram_mib: int | None = Field(default=0, ge=0)
    jinja: bool = True
    reasoning: OnOffAuto = "off"
    metrics: bool = True
    log_timestamps: bool = True
    log_prefix: bool = True
    sampling: Sampling = Sampling()
    load_timeout_s: int = Field(default=900, gt=0)
    drain_timeout_s: int = Field(default=60, ge=0)

    @model_validator(mode="after")
    def _quantised_values_need_flash_attention(self) -> Self:
        if self.kv is not None and self.kv.v not in ("f32", "f16", "bf16") and self.flash_attention != "on":
            raise ValueError(
                f"V cache type {self.kv.v} needs flash attention, which is {self.flash_attention}. "
                "Fix: set flash_attention to 'on', or kv.v to f16"
            )
        return self


class Baseline(Strict):
    """One token at a time."""

    kind: Literal["baseline"]


class DFlash(Strict):
    """
    A DFlash drafter proposes a block, the model verifies it.

    ``adaptive``: whether the engine changes the depth by itself, as drafts do well or badly (BeeLlama's own default).
    """

    kind: Literal["dflash"]
    draft_model: str
    cross_context: int | None = Field(default=None, gt=0)
    draft_max: int | None = Field(default=None, gt=0)
    adaptive: bool | None = None


class Mtp(Strict):
    """The model's own multi-token-prediction heads draft; ``model`` is the GGUF that has them."""

    kind: Literal["mtp"]
    model: str
    draft_max: int | None = Field(default=None, gt=0)


class Ngram(Strict):
    """What was said before drafts what comes next; no draft model."""

    kind: Literal["ngram"]
    type: NgramType = "ngram-simple"
    size_n: int | None = Field(default=None, gt=0)
    size_m: int | None = Field(default=None, gt=0)


Decoding = Annotated[Baseline | DFlash | Mtp | Ngram, Field(discriminator="kind")]


_SENTENCE = "The quick brown bees visit every flower in the garden before the rain begins."


class Gate(Strict):
    """What a new server is asked before it may stay."""

    # Invites repetition, so that n-gram decoding too has something to draft from.
    prompt: str = "Please say: " + " ".join([_SENTENCE] * 4)
    max_tokens: int = Field(default=96, gt=0)
    # Of the tokens drafted for answers to `proof`, how many must be accepted, 0 to 1; None: nothing of it is asked.
    min_acceptance: Annotated[float, Field(ge=0, le=1)] | None = None
    # Unlike the prompt above these invite no repetition: what is accepted there is accepted in daily work, too.
    proof: tuple[str, ...] = (
        "Write a Python class for a priority queue with decrease-key, with type hints and unit tests.",
        "Explain in four paragraphs how a bee colony decides where to live, and what people took from that.",
    )
    proof_tokens: int = Field(default=256, gt=0)


class Variant(Strict):
    """One way of decoding; ``settings`` and ``engine`` only where they must differ from the server's."""

    decoding: Decoding
    engine: str | None = None
    settings: dict[str, Any] = {}


class Server(Strict):
    """A model with its variants."""

    model: str
    engine: str
    default_variant: str
    settings: dict[str, Any] = {}
    gate: Gate = Gate()
    variants: dict[str, Variant]


# --- the benchmark ---------------------------------------------------------------------------------


class Message(Strict):
    """One turn of a conversation."""

    role: Literal["system", "user", "assistant"]
    content: Annotated[str, StringConstraints(min_length=1)]


class Prompt(Strict):
    """
    What is asked: a conversation that ends with the user's words.

    In presets a text alone stands for one message of the user's, and so does ``text`` beside the other keys.
    """

    messages: Annotated[tuple[Message, ...], Field(min_length=1)]
    # Tokens of made-up records before the first words, for a long prompt; the server's own tokenizer counts.
    filler_tokens: int = Field(default=0, ge=0)
    # A JSON schema that the answer must fit.
    answer_schema: dict[str, Any] | None = None

    @model_validator(mode="before")
    @classmethod
    def _a_text_is_one_message(cls, value: Any) -> Any:
        given = {"text": value} if isinstance(value, str) else value
        if isinstance(given, dict) and "text" in given:
            rest = {key: said for key, said in given.items() if key != "text"}
            return {"messages": ({"role": "user", "content": given["text"]},), **rest}
        return given

    @model_validator(mode="after")
    def _the_user_is_last(self) -> Self:
        if self.messages[-1].role != "user":
            raise ValueError("a prompt's last message must be the user's. Fix: end it with what is to be answered")
        return self


class Workload(Strict):
    """Prompts of one kind; ``source`` says whose words they are."""

    title: str
    source: str
    max_tokens: int = Field(gt=1)
    temperature: float = Field(ge=0)
    prompts: Annotated[dict[str, Prompt], Field(min_length=1)]


# --- the lock --------------------------------------------------------------------------------------


class Gguf(Strict):
    """What a GGUF file's header says of its model. Lengths in dimensions, context and window in tokens."""

    architecture: str
    layers: int | None = None
    # One number, or one a layer where they differ.
    heads: int | list[int] | None = None
    kv_heads: int | list[int] | None = None
    key_length: int | None = None
    value_length: int | None = None
    embedding: int | None = None
    context: int | None = None
    window: int | None = None
    # Where only some layers have the window: those that have not, from 0, and what is different in the others.
    full_layers: list[int] | None = None
    key_length_swa: int | None = None
    value_length_swa: int | None = None
    # At the end: layers that use the keys and values of earlier ones, and layers that only draft (MTP).
    shared_kv_layers: int | None = None
    nextn_layers: int | None = None
    feed_forward: int | list[int] | None = None
    # Of a hybrid: every so many-th layer has attention, the others a state of these sizes.
    attention_every: int | None = None
    ssm_convolution: int | None = None
    ssm_inner: int | None = None
    ssm_state: int | None = None
    ssm_groups: int | None = None
    # Of a DFlash drafter: the tokens of a block.
    block: int | None = None
    words: int | None = None
    # Of all its words in order: a drafter's must be its target's.
    vocabulary: str | None = None
    # Of a drafter that has the architecture's name of plain DFlash and is another kind: in the schema before the one
    # that upstream merged; DFlash 2, with a selector; DSpark, with a Markov head.
    drafter: Drafter | None = None


class PartLock(Strict):
    """What a later part of a split file must be; it lies beside the first."""

    file: str
    size: int = Field(gt=0)
    sha256: Sha256


class FileLock(Strict):
    """What a model file must be: its size in bytes and its sha256; where it has one, its commit or wheel."""

    size: int = Field(gt=0)
    sha256: Sha256
    revision: CommitSha | None = None
    wheel_sha256: Sha256 | None = None
    gguf: Gguf | None = None
    parts: list[PartLock] = []


class EngineLock(Strict):
    """What an engine's download must be; ``url`` and ``size`` (bytes) for a release tarball."""

    sha256: Sha256
    url: Annotated[str, StringConstraints(pattern=r"^https?://")] | None = None
    size: int | None = Field(default=None, gt=0)


class Lock(Strict):
    """Everything that is downloaded, pinned. What is not here is not run."""

    models: dict[str, FileLock] = {}
    engines: dict[str, EngineLock] = {}
    # Bases of images by name: a digest, or `local` for one of your own that is on the engine already.
    bases: dict[str, ImageDigest] = {}
    # Images of engines that a registry has, ENGINE-VARIANT: what to pull.
    images: dict[str, ImageReference] = {}


class Catalog(Strict):
    """All presets."""

    engines: dict[str, Engine]
    models: dict[str, Model]
    gpus: dict[str, Gpu]
    images: dict[str, ImageVariant]
    repositories: dict[str, Repository]
    servers: dict[str, Server]
    workloads: dict[str, Workload]
    lock: Lock


def pick(table: Mapping[str, T], name: str, kind: str) -> T:
    """The entry called ``name``, or a CatalogError that lists what there is."""
    if name not in table:
        raise CatalogError(f"no {kind} {name!r} in presets/. Fix: use one of {', '.join(sorted(table))}")
    return table[name]


def preset_folders() -> list[Path]:
    """Ours, then those that BEEYARD_PRESETS names: what they hold goes before ours."""
    more = os.environ.get(PRESETS_VARIABLE, "")
    return [PRESETS, *(Path(folder) for folder in more.split(os.pathsep) if folder)]


def load_catalog(folders: list[Path] | None = None) -> Catalog:
    """
    Read every preset file of the project, then of the folders that BEEYARD_PRESETS names.

    :raises CatalogError: a file that is not YAML, or a key or value that is not allowed, by name.
    """
    if folders is None:
        folders = preset_folders()
    tables: dict[str, Any] = {name: {} for name in Catalog.model_fields}
    for folder in folders:
        if not folder.is_dir():
            raise CatalogError(f"{folder}: no such folder of presets. Fix: correct {PRESETS_VARIABLE}")
        for name, table in tables.items():
            for key, value in _read(folder / f"{name}.yaml").items():
                both = name == "lock" and isinstance(value, dict)
                table[key] = {**table.get(key, {}), **value} if both else value
    try:
        return Catalog.model_validate(tables)
    except ValidationError as error:
        raise CatalogError(f"presets/: {sentence(error)}") from error


def sentence(error: ValidationError) -> str:
    """Pydantic's findings as one line: where, what is, what is allowed."""
    found = []
    for item in error.errors():
        where = ".".join(str(part) for part in item["loc"])
        if item["type"] == "extra_forbidden":
            text = f"unknown key {where!r}"
        elif item["type"] == "value_error":
            text = str(item["ctx"]["error"]) if not where else f"{where}: {item['ctx']['error']}"
        else:
            text = f"{where} is {item['input']!r}: {item['msg']}"
        found.append(text)
    message = "; ".join(found)
    return message if "Fix:" in message else f"{message}. Fix: correct it where it is set"


def _read(file: Path) -> dict[str, Any]:
    if not file.exists():
        return {}
    try:
        content = yaml.load(file.read_text(), Loader=SAFE_LOADER)  # noqa: S506 -- both are safe
    except yaml.YAMLError as error:
        raise CatalogError(f"{file.name} is not YAML ({error}). Fix: correct its syntax") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise CatalogError(f"{file.name} holds a {type(content).__name__}. Fix: make it a table")
    return content
