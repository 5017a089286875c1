"""A ServerSpec: everything one host needs to be told, resolved and validated. Pure."""

import ipaddress
import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, StringConstraints, TypeAdapter, ValidationError, field_validator

from beeyard import images
from beeyard.catalog import (
    PROJECT,
    Baseline,
    Catalog,
    CatalogError,
    Decoding,
    DFlash,
    Engine,
    EngineLock,
    FileLock,
    Gate,
    HubFile,
    ImageReference,
    LoadMode,
    Mtp,
    PartLock,
    Server,
    Settings,
    Source,
    Strict,
    Variant,
    pick,
    sentence,
)

# Ours among the keys of host.data, as ssh_ marks the SSH connector's. A typo after it is an error.
PREFIX = "llama_"

_DECODING: TypeAdapter[Decoding] = TypeAdapter(Decoding)

Runtime = Literal["systemd", "supervisor", "compose"]
ImageSource = Literal["pull", "build", "carry"]
DockerSource = Literal["present", "distribution", "docker.com"]
ToolkitSource = Literal["present", "install"]
DriverSource = Literal["present", "install"]
GpuAccess = Literal["none", "reservation", "cdi"]
# A name of ours that becomes part of a path.
UserName = Annotated[str, StringConstraints(pattern=r"^[a-z_][a-z0-9_-]*$")]
SERVICE_USER = "beeyard"
LONGEST_PREFIX = 80  # supervisor's socket lives below it, and a socket's path ends at 107 bytes


def _no_control_characters(value: object) -> object:
    if isinstance(value, str) and re.search(r"[\x00-\x1f\x7f]", value):
        raise ValueError("must not hold control characters")
    if isinstance(value, str) and re.search(r"""[%$'"\\;#]""", value):
        raise ValueError(
            "must not hold any of % $ ' \" \\ ; #, which systemd or supervisor would take for their own. "
            "Fix: choose a path without them; spaces are fine"
        )
    return value


HostPath = Annotated[PurePosixPath, BeforeValidator(_no_control_characters)]

# A kernel setting as sysctl calls it: vm.swappiness.
SysctlName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9_-]+(\.[A-Za-z0-9_/-]+)+$")]
SysctlValue = int | Annotated[str, StringConstraints(pattern=r"^[ -~]+$")]


class Limits(Strict):
    """What a program may take that runs as an ordinary user: locked memory in KiB, and open files."""

    memlock: Literal["unlimited"] | Annotated[int, Field(gt=0)] | None = None
    nofile: Annotated[int, Field(gt=0)] | None = None


class HostSettings(Strict):
    """What an inventory or ``--data`` may say of a host; each key with ``llama_`` before it."""

    preset: str
    variant: str | None = None
    engine: str | None = None
    runtime: Literal["auto", "systemd", "supervisor", "compose"] = "auto"
    # For runtime compose. Where the Docker Engine comes from if it is missing, and what gives it the card.
    docker: DockerSource = "present"
    nvidia_toolkit: ToolkitSource = "present"
    gpu_access: Literal["auto", "reservation", "cdi"] = "auto"
    # Where the engine's image comes from: a registry, a build on the host, or this machine's Docker Engine.
    image_from: Literal["auto", "pull", "build", "carry"] = "auto"
    image_variant: str | None = None
    image: ImageReference | None = None
    bind: str = "127.0.0.1"
    port: int = Field(default=8910, ge=1, le=65535)
    prefix: HostPath = PurePosixPath("/opt/beeyard")
    models_dir: HostPath | None = None
    # "self" is the user that connects; by default a service's own user where that is root.
    user: UserName | None = None
    # auto: the largest standard size that fits into the card's memory.
    context: Literal["auto"] | Annotated[int, Field(gt=0)] | None = None
    # Whether a preset's mlock is wanted where the limit of locked memory is too low for it.
    mlock: Literal["require", "auto", "off"] = "auto"
    # One of several cards, by its index or UUID, as nvidia-smi lists them.
    card: str | None = None
    load_timeout: int | None = Field(default=None, gt=0)
    # Proof that drafting helps: at the gate, and in `make verify`, which measures the baseline for it.
    gate_min_acceptance: Annotated[float, Field(ge=0, le=1)] | None = None
    gate_min_speedup: Annotated[float, Field(gt=0)] | None = None
    settings: dict[str, Any] = {}
    # Over the variant's own: draft_max, cross_context, … but not its kind.
    decoding: dict[str, Any] = {}
    # Where model files are looked for before their own address: a directory of this machine or an address, which are
    # as models_dir is, or host:NAME, another host of the inventory.
    model_source: str | None = None
    # Bytes a systemd unit may lock, or infinity.
    memlock: Literal["infinity"] | Annotated[int, Field(gt=0)] = "infinity"
    # How a gateway reaches the host where it is not as from here: HOST, or HOST:PORT of its SSH.
    reached_at: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]+(:[0-9]{1,5})?$")] | None = None
    # Whether a gateway of the inventory gives the host no work while its server is switched.
    drain: bool = True
    # tcp: a TLS port of its own before a server on loopback, in a pod; that port, and where clients find it.
    expose: Literal["tcp"] | None = None
    expose_port: int = Field(default=8911, ge=1, le=65535)
    expose_at: (
        Annotated[str, StringConstraints(pattern=r"^(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9.-]+):[0-9]{1,5}$")] | None
    ) = None
    # Ports of exporters of metrics that run there already, by kind, for a monitor of the inventory.
    exporters: dict[Literal["node", "dcgm"], Annotated[int, Field(ge=1, le=65535)]] = {}
    # Whether nftables closes the host but for SSH and its server; and to whom that is open: to all if empty.
    firewall: bool = False
    open_to: tuple[str, ...] = ()
    # What of the machine itself is changed, and only if it is asked for: docs/inventories.md.
    nvidia_driver: DriverSource = "present"
    gpu_at_boot: bool = False
    hold_driver: bool = False
    sysctl: dict[SysctlName, SysctlValue] = {}
    limits: Limits = Limits()

    @field_validator("bind")
    @classmethod
    def _an_address(cls, value: str) -> str:
        return str(ipaddress.ip_address(value))

    @field_validator("prefix")
    @classmethod
    def _short_enough(cls, value: PurePosixPath) -> PurePosixPath:
        absolute = PurePosixPath(PROJECT) / value
        if len(str(absolute)) > LONGEST_PREFIX:
            raise ValueError(
                f"{absolute} is {len(str(absolute))} characters long, at most {LONGEST_PREFIX} leave room for a "
                "socket below it. Fix: set llama_prefix to a shorter absolute path"
            )
        return absolute


class HeldEngine(Strict):
    """The engine that a host was born with: a pod that started from an image of ours."""

    name: str
    commit: str
    # The cards that it holds code for, as CMake writes them; none in an image for the CPU alone.
    architectures: tuple[str, ...] = ()


class HostKind(Strict):
    """What of a host decides how its server is run."""

    has_systemd: bool
    is_root: bool
    # Its cards' compute capabilities, as nvidia-smi says them.
    compute_capabilities: tuple[str, ...] = ()
    # Whether its Docker Engine finds a CDI description of the cards, and knows NVIDIA's runtime.
    has_cdi: bool = False
    has_nvidia_runtime: bool = False
    held_engine: HeldEngine | None = None
    # The UUID of the card that the server is to run on, where there are others.
    card: str | None = None


# How a model is loaded where it cannot be locked.
UNLOCKED: dict[LoadMode, LoadMode] = {"mlock": "none", "mmap+mlock": "mmap"}
# For what does not depend on the host: names, arguments, where files lie.
ANY_HOST = HostKind(has_systemd=True, is_root=True)


class Front(Strict):
    """A TLS port before a server on loopback. ``at``: HOST:PORT by which clients find it."""

    port: int
    at: str

    @property
    def name(self) -> str:
        """The host name or address that its certificate is for."""
        return self.at.rpartition(":")[0].strip("[]")

    @property
    def url(self) -> str:
        """Where clients find it."""
        return f"https://{self.at}"


class Image(Strict):
    """The image that runtime compose runs."""

    variant: str
    source: ImageSource
    # What the host's Docker Engine calls it. Never a name whose content may change.
    reference: str


class ModelFile(Strict):
    """A model file on its way to a host: where it comes from, and what it must be once it is locked."""

    name: str
    source: Source
    lock: FileLock | None

    @property
    def file(self) -> str:
        """The file's own name."""
        return self.source.file.rpartition("/")[2]

    @property
    def pieces(self) -> list[PartLock]:
        """The file as the lock has it, and all later parts of a split one; none while it is not locked."""
        if self.lock is None:
            return []
        return [PartLock(file=self.file, size=self.lock.size, sha256=self.lock.sha256), *self.lock.parts]

    @property
    def digest(self) -> str:
        """Twelve hex digits that tell this file from others of its name."""
        return self.lock.sha256[:12] if self.lock else "unlocked"


class ServerSpec(Strict):
    """One server on one host. The only thing that travels from presets to hosts, checks and benchmarks."""

    preset: str
    variant: str
    engine_name: str
    engine: Engine
    engine_lock: EngineLock | None
    runtime: Runtime
    bind: str
    port: int
    # What others reach it by, where that is not the server itself.
    front: Front | None
    prefix: PurePosixPath
    models_dir: PurePosixPath
    user: str | None
    memlock: Literal["infinity"] | int
    image: Image | None
    # Whether the host itself started from an image that holds the engine.
    engine_is_held: bool
    # The architectures of the cards that it is to run on, as CMake writes them; none on the CPU.
    architectures: tuple[str, ...]
    # The UUID of the one that it is to use, where there are others.
    card: str | None
    docker: DockerSource
    nvidia_toolkit: ToolkitSource
    gpu_at_boot: bool
    hold_driver: bool
    sysctl: dict[SysctlName, SysctlValue]
    limits: Limits
    gpu_access: GpuAccess
    settings: Settings
    decoding: Decoding
    gate: Gate
    model_source: str | None
    model: ModelFile
    draft: ModelFile | None

    @property
    def model_files(self) -> list[ModelFile]:
        """What must be on the host before the server can start."""
        return [self.model] if self.draft is None else [self.model, self.draft]

    def carrying(self, image_id: str) -> "ServerSpec":
        """The same with the image of an ID that the machine that deploys has, under a name made from that ID."""
        assert self.image is not None, "only runtime compose carries an image"  # noqa: S101
        digits = image_id.removeprefix("sha256:")[:12]
        name = f"{images.tag(self.engine_name, self.image.variant)}-{digits}"
        return self.model_copy(update={"image": self.image.model_copy(update={"reference": name})})

    def path_of(self, file: ModelFile) -> PurePosixPath:
        """Where a model file lies on the host; the digest lets two files of one name live side by side."""
        return self.models_dir / file.digest / file.file

    def pieces_of(self, file: ModelFile) -> list[tuple[PurePosixPath, PartLock]]:
        """Where each piece of a model lies on the host; the parts of a split one lie together."""
        return [(self.path_of(file).with_name(piece.file), piece) for piece in file.pieces]

    @property
    def engine_dir(self) -> PurePosixPath:
        """Where the engine is unpacked; versions live side by side."""
        if self.engine_is_compiled:
            digest = images.source_digest(self.engine.commit, self.engine.accelerator, self.architectures)
        else:
            digest = self.engine_lock.sha256[:12] if self.engine_lock else "unlocked"
        return self.prefix / "engines" / f"{self.engine_name}-{digest}"

    @property
    def binary(self) -> PurePosixPath:
        """The llama-server that runs. An absolute path in the preset (Debian's package) stands for itself."""
        if self.engine_is_in_image:
            return PurePosixPath(images.BINARY)
        return self.engine_dir / self.engine.artefact.binary

    @property
    def engine_is_in_image(self) -> bool:
        """Whether the engine comes with an image, with all that it needs: the server's own, or the host's."""
        return self.image is not None or self.engine_is_held

    @property
    def engine_is_compiled(self) -> bool:
        """Whether the host compiles it."""
        return not self.engine_is_in_image and self.engine.artefact.kind == "source"

    @property
    def listens_on(self) -> str:
        """The address that the server itself binds: in a container all of its own, which `bind` publishes."""
        return self.bind if self.image is None else "0.0.0.0"  # noqa: S104

    @property
    def served_key_file(self) -> PurePosixPath:
        """The API key's file as the server sees it."""
        return self.api_key_file if self.image is None else PurePosixPath("/run/secrets/api-key")

    @property
    def wants_gpu(self) -> bool:
        """Whether layers are to be on a card."""
        return self.engine.accelerator == "cuda" and self.settings.gpu_layers != 0

    @property
    def api_key_file(self) -> PurePosixPath:
        """
        The key that requests must carry; its mode is 0600 and its owner the server's user.

        A container's user has a file of its own, so that the server of another runtime can always be put back.
        """
        return self.prefix / "etc" / ("api-key" if self.image is None else f"api-key-{images.USER_ID}")

    @property
    def url(self) -> str:
        """Where the server answers, as seen from the host itself."""
        address = ipaddress.ip_address(self.bind)
        if address.is_unspecified:
            address = ipaddress.ip_address("127.0.0.1" if address.version == 4 else "::1")
        host = f"[{address}]" if address.version == 6 else str(address)
        return f"http://{host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether only the host itself can reach the server."""
        return ipaddress.ip_address(self.bind).is_loopback

    @property
    def is_reached(self) -> bool:
        """Whether others reach it, by itself or by its TLS port."""
        return self.front is not None or not self.is_loopback

    @property
    def drafts(self) -> bool:
        """Whether an answer must show drafted tokens."""
        return self.decoding.kind != "baseline"

    @property
    def unlocked(self) -> list[str]:
        """One sentence for each download that the lock does not name."""
        return self.unlocked_models + self.unlocked_engine

    @property
    def lockable(self) -> list[str]:
        """Names of what is not locked yet and can be: files of the Hub, an engine whose release is known."""
        found = [file.name for file in self.model_files if file.lock is None and isinstance(file.source, HubFile)]
        return [*found, self.engine_name] if self.unlocked_engine and self.engine.tag and self.engine.asset else found

    @property
    def unlocked_models(self) -> list[str]:
        """One sentence for each model file of those."""
        return [
            f"model {file.name!r} is not in presets/lock.yaml. Fix: run `beeyard lock {file.name}` and commit it"
            for file in self.model_files
            if file.lock is None
        ]

    @property
    def unlocked_engine(self) -> list[str]:
        """At most one sentence, for the engine."""
        if self.engine_is_in_image:
            return []
        kind = self.engine.artefact.kind
        incomplete = self.engine_lock is None or (kind == "release" and self.engine_lock.url is None)
        if kind not in ("debian", "source") and incomplete:
            return [
                f"engine {self.engine_name!r} has no tarball in presets/lock.yaml. Fix: add its url, size and "
                "sha256 there, as docs/engines.md says, or have the hosts compile it: artefact {kind: source} in "
                "presets/engines.yaml"
            ]
        return []


def resolve(host_data: Mapping[str, Any], catalog: Catalog, kind: HostKind) -> ServerSpec:
    """
    Join one host's data with the presets it names. The only place where both meet.

    :param kind: decides runtime ``auto`` and the user that the server runs as.
    :raises CatalogError: an unknown key, preset, variant, engine or runtime, by name.
    """
    host = host_settings(host_data)
    server = pick(catalog.servers, host.preset, "preset")
    variant_name = host.variant or server.default_variant
    variant = pick(server.variants, variant_name, f"variant of {host.preset}")
    engine_name = host.engine or variant.engine or server.engine
    engine = pick(catalog.engines, engine_name, "engine")
    runtime = _runtime(host, kind)
    settings = _settings(host, server, variant)
    wants_gpu = engine.accelerator == "cuda" and settings.gpu_layers != 0
    cards = tuple(images.architecture(found) for found in kind.compute_capabilities) if wants_gpu else ()
    decoding = _decoding(host, variant)
    model_name = decoding.model if isinstance(decoding, Mtp) else server.model
    draft_name = decoding.draft_model if isinstance(decoding, DFlash) else None
    return ServerSpec(
        preset=host.preset,
        variant=variant_name,
        engine_name=engine_name,
        engine=engine,
        engine_lock=catalog.lock.engines.get(engine_name),
        runtime=runtime,
        bind=host.bind,
        port=host.port,
        front=_front(host),
        prefix=host.prefix,
        models_dir=PurePosixPath(PROJECT) / host.models_dir if host.models_dir else host.prefix / "models",
        user=str(images.USER_ID) if runtime == "compose" else _user(host, kind),
        memlock=host.memlock,
        image=_image(host, catalog, cards, engine_name, wants_gpu) if runtime == "compose" else None,
        engine_is_held=runtime != "compose" and _is_held(kind.held_engine, cards, engine_name, engine),
        architectures=cards,
        card=kind.card if cards else None,
        docker=host.docker,
        nvidia_toolkit=host.nvidia_toolkit,
        gpu_at_boot=host.gpu_at_boot and wants_gpu,
        hold_driver=host.hold_driver and wants_gpu,
        sysctl=host.sysctl,
        limits=host.limits,
        gpu_access=_gpu_access(host, kind) if runtime == "compose" and wants_gpu else "none",
        settings=settings,
        decoding=decoding,
        gate=_gate(host, server),
        model_source=host.model_source,
        model=_model_file(catalog, model_name),
        draft=_model_file(catalog, draft_name) if draft_name is not None else None,
    )


def every_variant(host_data: Mapping[str, Any], catalog: Catalog, kind: HostKind = ANY_HOST) -> list[ServerSpec]:
    """The same as :func:`resolve`, for each variant of the preset; llama_decoding is of the host's own alone."""
    host = host_settings(host_data)
    server = pick(catalog.servers, host.preset, "preset")
    own = host.variant or server.default_variant
    plain = {key: value for key, value in host_data.items() if key != f"{PREFIX}decoding"}
    return [
        resolve({**(host_data if name == own else plain), f"{PREFIX}variant": name}, catalog, kind)
        for name in server.variants
    ]


def host_settings(host_data: Mapping[str, Any]) -> HostSettings:
    """Ours among a host's data, validated."""
    ours = {key.removeprefix(PREFIX): value for key, value in host_data.items() if key.startswith(PREFIX)}
    try:
        return HostSettings(**ours)
    except ValidationError as error:
        raise CatalogError(f"host data (keys llama_…): {sentence(error)}") from error


def _runtime(host: HostSettings, kind: HostKind) -> Runtime:
    if host.runtime == "compose" and not kind.is_root:
        raise CatalogError(
            "runtime 'compose' is asked for, but this user is not root, who alone can give the key to the "
            "container's user. Fix: add _sudo: true to the host's data, or run compose.yaml of a clone there"
        )
    if host.runtime == "systemd" and not kind.has_systemd:
        raise CatalogError(
            "runtime 'systemd' is asked for, but systemd does not run this host (no /run/systemd/system). "
            "Fix: leave llama_runtime out, or set it to supervisor"
        )
    if host.runtime == "systemd" and not kind.is_root:
        raise CatalogError(
            "runtime 'systemd' is asked for, but this user is not root. "
            "Fix: add _sudo: true to the host's data, or set llama_runtime to supervisor"
        )
    if host.runtime == "auto":
        return "systemd" if kind.has_systemd and kind.is_root else "supervisor"
    return host.runtime


def _front(host: HostSettings) -> Front | None:
    if host.expose is None:
        return None
    if host.expose_at is None:
        raise CatalogError(
            "llama_expose is tcp, and llama_expose_at does not say where clients find it. Fix: set it to HOST:PORT, "
            f"as the provider's console shows them for port {host.expose_port}/tcp of the pod"
        )
    if not ipaddress.ip_address(host.bind).is_loopback:
        raise CatalogError(
            f"llama_expose is tcp, and llama_bind {host.bind} opens the server itself beside its TLS port. "
            "Fix: leave llama_bind out"
        )
    if host.expose_port == host.port:
        raise CatalogError(
            f"llama_expose_port {host.port} is the server's own port. Fix: leave it out (8911), or take another"
        )
    return Front(port=host.expose_port, at=host.expose_at)


def _image(host: HostSettings, catalog: Catalog, cards: tuple[str, ...], engine_name: str, wants_gpu: bool) -> Image:
    if wants_gpu and not cards and host.image_variant is None:
        raise CatalogError(
            "runtime 'compose' chooses its image by the card, and nvidia-smi names none here. "
            "Fix: install the NVIDIA driver, or set llama_image_variant"
        )
    variant = host.image_variant or images.variant_for(cards, catalog.images, catalog.gpus)
    pick(catalog.images, variant, "image variant")
    locked = host.image or catalog.lock.images.get(f"{engine_name}-{variant}")
    source = host.image_from
    if source == "auto":
        source = "pull" if locked else "carry"
    if source == "pull" and locked is None:
        raise CatalogError(
            f"presets/lock.yaml names no image {engine_name}-{variant} to pull. Fix: set llama_image to one by "
            "digest, or llama_image_from to carry or build"
        )
    if source == "build":
        build = images.pick_build(catalog, engine_name, variant)
        return Image(variant=variant, source=source, reference=images.built_tag(build, cards))
    # What is carried is named after its content, once the machine that deploys was asked for it.
    return Image(variant=variant, source=source, reference=locked or images.tag(engine_name, variant))


def _is_held(held: HeldEngine | None, cards: tuple[str, ...], engine_name: str, engine: Engine) -> bool:
    if held is None or held.name != engine_name or engine.commit not in (None, held.commit):
        return False
    other = [name for name in cards if name not in held.architectures]
    if other:
        raise CatalogError(
            f"the image that this host started from holds {engine_name} for architectures "
            f"{', '.join(held.architectures) or 'none'}; the card here is {other[0]}. "
            "Fix: start the pod from the image variant for its card, as presets/images.yaml lists them"
        )
    return True


def _gpu_access(host: HostSettings, kind: HostKind) -> GpuAccess:
    if host.gpu_access != "auto":
        return host.gpu_access
    # A toolkit that is installed may write a description, too: that must not make the second deploy another one.
    return "cdi" if kind.has_cdi and not kind.has_nvidia_runtime else "reservation"


def _user(host: HostSettings, kind: HostKind) -> str | None:
    # As root a server would own the machine from which it serves strangers.
    if not kind.is_root or host.user == "self":
        return None
    return host.user or SERVICE_USER


def _settings(host: HostSettings, server: Server, variant: Variant) -> Settings:
    single = {"context": host.context, "load_timeout_s": host.load_timeout}
    given = {key: value for key, value in single.items() if value not in (None, "auto")}
    try:
        found = Settings(**{**server.settings, **variant.settings, **host.settings, **given})
    except ValidationError as error:
        raise CatalogError(f"settings of {host.preset}: {sentence(error)}") from error
    if host.mlock == "off" and found.load_mode in UNLOCKED:
        return found.model_copy(update={"load_mode": UNLOCKED[found.load_mode]})
    return found


def _decoding(host: HostSettings, variant: Variant) -> Decoding:
    if not host.decoding or isinstance(variant.decoding, Baseline):  # a baseline has nothing to set
        return variant.decoding
    if "kind" in host.decoding:
        raise CatalogError(
            f"llama_decoding of {host.preset} sets a kind, which is what a variant is. Fix: name a variant of that "
            "kind with llama_variant"
        )
    try:
        return _DECODING.validate_python({**variant.decoding.model_dump(), **host.decoding})
    except ValidationError as error:
        raise CatalogError(f"llama_decoding of {host.preset}: {sentence(error)}") from error


def _gate(host: HostSettings, server: Server) -> Gate:
    if host.gate_min_acceptance is None:
        return server.gate
    return server.gate.model_copy(update={"min_acceptance": host.gate_min_acceptance})


def _model_file(catalog: Catalog, name: str) -> ModelFile:
    model = pick(catalog.models, name, "model")
    return ModelFile(name=name, source=model.source, lock=catalog.lock.models.get(name))
