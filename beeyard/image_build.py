"""Building images here: `make image`. BuildKit's own progress, and one sentence at the end if it fails."""

import json
import os
import pty
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from beeyard.catalog import PROJECT, Catalog, CatalogError
from beeyard.contract import FlagTable, from_label, parse_help, to_label
from beeyard.images import (
    BINARY,
    FLAGS_LABEL,
    Build,
    architecture,
    check_architectures,
    locked_scanner,
    pick_build,
    pod_tag,
    published_name,
    variant_for,
)
from beeyard.render import bake_file

GIB = 2**30
LEAST_ENGINE = 23
# Where Docker keeps its data: a CUDA base unpacked, its cache of compiled files, and the image.
WANTED_BYTES = {"cuda": 25 * GIB, "cpu": 4 * GIB}
TAIL = 200_000  # characters of output to look for a reason in
Command = list[str]


def build(
    catalog: Catalog,
    engine: str,
    variant: str | None,
    architectures: Sequence[str],
    jobs: str,
    source: Path | None,
    options: Sequence[str] = (),
    *,
    pod: bool = False,
) -> str:
    """
    Build an engine's image and return its name.

    :param variant: of presets/images.yaml; None chooses by this machine's cards.
    :param architectures: instead of the variant's own, as CMake writes them; empty with None takes the cards'.
    :param source: a checkout of the engine, instead of its pinned commit.
    :param options: more of ``docker buildx bake``.
    :param pod: the image that a rented pod starts from, with sshd and a supervisor beside the server.
    :raises CatalogError: in one sentence, why there is no image now.
    """
    if variant is None:
        architectures = architectures or cards_here()
        variant = variant_for(architectures, catalog.images, catalog.gpus)
    wanted = pick_build(catalog, engine, variant)
    if wanted.variant.cuda is not None:
        check_architectures(wanted.variant.cuda, architectures or wanted.variant.architectures, catalog.gpus)
    _check_docker(wanted)
    name = pod_tag(wanted.tag) if pod else wanted.tag
    with _bake(catalog) as bake:
        # --load: a builder in a container of its own keeps what it makes to itself.
        command = _command(wanted, bake, architectures, jobs, source, [*options, "--load"])
        command += _named(wanted, name, pod=pod)
        _run(command, wanted)
        # Once more with the binary's own flags as a label: everything but the label comes from the cache.
        _run([*command, *_flags_label(wanted, _flags_of(name)), "--progress=quiet"], wanted)
    return name


@contextmanager
def _bake(catalog: Catalog) -> Iterator[Path]:
    """docker-bake.hcl, not the committed one: it has the presets of BEEYARD_PRESETS, too."""
    with tempfile.TemporaryDirectory() as folder:
        bake = Path(folder, "docker-bake.hcl")
        bake.write_text(bake_file(catalog))
        yield bake


def _flags_label(wanted: Build, flags: str) -> Command:
    return ["--set", f"{wanted.target}.labels.{FLAGS_LABEL}={flags}"]


def _named(wanted: Build, name: str, *, pod: bool) -> Command:
    stage = ["--set", f"{wanted.target}.target=pod"] if pod else []
    return [*stage, "--set", f"{wanted.target}.tags={name}"]


def publish(
    catalog: Catalog, engine: str, variant: str, jobs: str, repository: str, version: str, *, pod: bool = False
) -> str:
    """
    Build an engine's image, send it to a registry with SBOM and provenance, and return it by digest.

    :param repository: as ghcr.io/OWNER/NAME; the image's own name becomes its tag.
    :param version: of this project, behind the tag and in the image's labels; it may be empty.
    :param pod: the image that a rented pod starts from.
    :raises CatalogError: in one sentence, why it is not there now.
    """
    wanted = pick_build(catalog, engine, variant)
    name, scanner = published_name(wanted, repository, version), locked_scanner(catalog)
    name = pod_tag(name) if pod else name
    check_login(repository)
    check_builder(_docker("buildx", "inspect").stdout, _docker("info", "--format", "{{json .DriverStatus}}").stdout)
    local = build(catalog, engine, variant, (), jobs, None, pod=pod)
    with _bake(catalog) as bake:
        metadata = bake.with_name("metadata.json")
        sent = ["--metadata-file", str(metadata)]
        command = publish_command(wanted, bake, jobs, _flags_of(local), version, scanner, sent)
        _run([*command, *_named(wanted, name, pod=pod)], wanted)
        digest = json.loads(metadata.read_text())[wanted.target]["containerimage.digest"]
    return f"{repository}@{digest}"


def check_login(repository: str) -> None:
    """
    Refuse what would fail after an hour of building.

    :raises CatalogError: Docker has no login for the registry. One on this very machine may want none.
    """
    registry = repository.partition("/")[0]
    config = Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker", "config.json")
    try:
        known = json.loads(config.read_text())
    except (OSError, ValueError):
        known = {}
    found = any(registry in name for table in ("auths", "credHelpers") for name in known.get(table) or {})
    if not found and registry.partition(":")[0] not in ("localhost", "127.0.0.1"):
        raise CatalogError(
            f"nobody is logged in at {registry}, so {repository} cannot be pushed to. Fix: docker login {registry} "
            "--username NAME --password-stdin, with a token that may write packages on its stdin"
        )


def check_builder(builder: str, storage: str) -> None:
    """
    Refuse a builder that makes no attestations.

    :param builder: what ``docker buildx inspect`` prints.
    :param storage: the engine's DriverStatus, which names its image store.
    :raises CatalogError: it is Docker's own, on Docker's own image store.
    """
    if re.search(r"^Driver:\s+docker$", builder, re.MULTILINE) and "io.containerd.snapshotter" not in storage:
        raise CatalogError(_NO_ATTESTATIONS)


_NO_ATTESTATIONS = (
    "this Docker Engine keeps no attestations. Fix: turn on its containerd image store, as .ci/containerd-store.sh "
    "does, or take a builder of its own with `docker buildx create --use`"
)


def publish_command(
    wanted: Build, bake: Path, jobs: str, flags: str, version: str, scanner: str, options: Sequence[str]
) -> Command:
    """The build that comes from the cache whole and goes to a registry, with its attestations."""
    # mode=max has the build's arguments and the Dockerfile in it; a build has no secret among them.
    sent = ["--push", "--provenance=mode=max", f"--sbom=generator={scanner}", *options]
    command = [*_command(wanted, bake, (), jobs, None, sent), *_flags_label(wanted, flags)]
    return [*command, "--set", f"{wanted.target}.args.VERSION={version}"] if version else command


def flags_of_image(tag: str) -> FlagTable:
    """The flags that :func:`build` found an image's binary to have."""
    return from_label(json.loads(_docker("image", "inspect", tag).stdout)[0]["Config"]["Labels"][FLAGS_LABEL])


def build_all(catalog: Catalog, engine: str, jobs: str) -> list[str]:
    """Every variant of presets/images.yaml, each for all its cards."""
    return [build(catalog, engine, variant, (), jobs, None) for variant in catalog.images]


def cards_here() -> list[str]:
    """The architectures of this machine's NVIDIA cards; none where nvidia-smi names none."""
    try:
        run = subprocess.run(
            ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"],
            check=False, capture_output=True, text=True,
        )  # fmt: skip
    except OSError:
        return []
    found = re.findall(r"^\d+\.\d$", run.stdout, re.MULTILINE) if run.returncode == 0 else []
    return sorted({architecture(capability) for capability in found})


def digest_of(reference: str) -> str:
    """
    What a registry says an image's digest is.

    :raises CatalogError: it cannot be asked, or does not have it.
    """
    run = _docker("buildx", "imagetools", "inspect", reference, "--format", "{{json .Manifest.Digest}}")
    digest = run.stdout.strip().strip('"')
    if run.returncode != 0 or not re.fullmatch(r"sha256:[0-9a-f]{64}", digest):
        said = (run.stderr.strip() or run.stdout.strip() or "no reason given").splitlines()[-1]
        raise CatalogError(
            f"the registry does not say what {reference} is: {said}. Fix: run this where it can be reached, and "
            "check the name in presets/images.yaml"
        )
    return digest


def _command(
    wanted: Build, bake: Path, architectures: Sequence[str], jobs: str, source: Path | None, options: Sequence[str]
) -> Command:
    command = ["docker", "buildx", "bake", "--file", str(bake), *options, wanted.target]
    if architectures:
        command += ["--set", f"{wanted.target}.args.CUDA_ARCHITECTURES={';'.join(architectures)}"]
    command += ["--set", f"{wanted.target}.args.JOBS={jobs}"]
    if source is not None:
        if not (source / "CMakeLists.txt").is_file():
            raise CatalogError(f"{source} holds no CMakeLists.txt, so no engine. Fix: name a checkout of one")
        command += ["--set", f"{wanted.target}.contexts.source={source.resolve()}"]
    return command


def _check_docker(wanted: Build) -> None:
    if shutil.which("docker") is None:
        raise CatalogError(
            "there is no docker on this machine. Fix: install Docker Engine with buildx, then run again"
        )
    version = _docker("version", "--format", "{{.Server.Version}}")
    if version.returncode != 0:
        said = version.stderr.strip().splitlines()[-1]
        raise CatalogError(f"the Docker Engine does not answer: {said}. Fix: systemctl start docker")
    if int(version.stdout.partition(".")[0]) < LEAST_ENGINE:
        raise CatalogError(
            f"Docker Engine {version.stdout.strip()} is too old for Dockerfile.cuda; {LEAST_ENGINE} or newer is "
            "wanted. Fix: upgrade it"
        )
    if _docker("buildx", "version").returncode != 0:
        raise CatalogError(
            "docker has no buildx. Fix: install docker-buildx-plugin, or your distribution's docker-buildx"
        )
    root = Path(_docker("info", "--format", "{{.DockerRootDir}}").stdout.strip())
    least = WANTED_BYTES[wanted.variant.accelerator]
    if root.is_dir() and (free := shutil.disk_usage(root).free) < least:
        raise CatalogError(
            f"{root}, where Docker keeps its data, has {free / GIB:.1f} GiB free; building {wanted.tag} wants "
            f"{least / GIB:.0f} GiB. Fix: docker builder prune, or give it another disk"
        )


def _flags_of(tag: str) -> str:
    options = ["--rm", "--network=none", "--read-only", "--cap-drop=ALL", f"--entrypoint={BINARY}"]
    run = _docker("run", *options, tag, "--help")
    try:
        return to_label(parse_help(run.stdout))
    except ValueError as error:
        raise CatalogError(
            f"{tag} was built, but does not run ({error}). Fix: look at {run.stderr[-200:]!r}"
        ) from error


def _run(command: Command, wanted: Build) -> None:
    code, output = _teed(command)
    if code != 0:
        raise CatalogError(reason(output, wanted))


# What BuildKit says when there is no image, and what that means. {0} is what the pattern's group found.
_REASONS = (
    (
        r"failed to resolve source metadata for (\S+?): |pull access denied for (\S+?),",
        "the base image {0} cannot be had. Fix: check that this machine reaches its registry; "
        "`make lock-images` asks it for the digests",
    ),
    (
        r"(repository .* does not contain ref .*|couldn't find remote ref \S+|not our ref \S+|"
        r"reference is not a tree: \S+|failed to checkout remote \S+)",
        "commit {commit} is not in {repository} ({0}). Fix: correct the engine's commit in presets/engines.yaml",
    ),
    (
        r"(failed to fetch remote .*|unable to access .*|Could not resolve host.*)",
        "{repository} cannot be reached ({0}). Fix: check the network, or give a checkout with SOURCE=DIR",
    ),
    (
        r"(Attestation is not supported for the docker driver)",
        _NO_ATTESTATIONS,
    ),
    (
        r"failed to push (\S+):[\w.-]+: .*(?:denied|unauthorized|401|403)",
        "{0} lets nobody push who is not logged in and allowed to. Fix: docker login --password-stdin, with a token "
        "that may write packages",
    ),
    (
        r"(?i)(no space left on device)",
        "the disk is full where Docker keeps its data. Fix: docker builder prune, or give it another disk",
    ),
    (
        r"(exit code: 137|signal: killed)",
        "the build was killed, as a machine does that runs out of memory. Fix: build with fewer compilers at a "
        "time, as JOBS=1",
    ),
    (r"ERROR: (.+)", "the image was not built: {0}. Fix: read the first error above"),
)


def reason(output: str, wanted: Build) -> str:
    """Of a page of BuildKit's progress, why there is no image, as a sentence with its Fix."""
    ours = re.findall(r"^(?:#\d+ [\d.]+ )?(.+ Fix: .+)$", output, re.MULTILINE)
    if ours:  # build-engine.sh said it
        return str(ours[-1])
    for pattern, sentence in _REASONS:
        found = re.search(pattern, output)
        if found:
            what = next(group for group in found.groups() if group).strip()
            return sentence.format(what, commit=wanted.commit, repository=wanted.repository)
    return "the image was not built, and BuildKit does not say why. Fix: read what it printed above"


def _teed(command: Command) -> tuple[int, str]:
    """Run a command with its output as on a terminal, if this is one; and its output."""
    # The folder of SOURCE= was named by whom the newer buildx would ask whether it may be read.
    command = ["env", "BUILDX_BAKE_ENTITLEMENTS_FS=0", *command]
    kept = bytearray()

    def take(data: bytes) -> bytes:
        kept.extend(data)
        del kept[:-TAIL]
        return data

    if sys.stderr.isatty():
        here = Path.cwd()
        os.chdir(PROJECT)
        try:
            status = pty.spawn(command, lambda handle: take(os.read(handle, 65536)))
        finally:
            os.chdir(here)
        plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", kept.decode(errors="replace"))
        return os.waitstatus_to_exitcode(status), plain.replace("\r", "")
    with subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as run:
        assert run.stdout is not None  # noqa: S101 -- PIPE says so
        while data := os.read(run.stdout.fileno(), 65536):
            sys.stderr.buffer.write(take(data))
            sys.stderr.flush()
    return run.returncode, kept.decode(errors="replace")


def _docker(*words: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(["docker", *words], check=False, capture_output=True, text=True)
    except OSError as error:
        raise CatalogError(
            f"docker cannot be run ({error.strerror}). Fix: install Docker Engine with buildx"
        ) from error


def inspect(tag: str) -> str:
    """An image's size and what it holds, in one line."""
    found = json.loads(_docker("image", "inspect", tag).stdout)[0]
    labels = found["Config"]["Labels"]
    held = labels.get("beeyard.cuda-architectures") or "no CUDA"
    return (
        f"{tag}: {found['Size'] / 1e6:.0f} MB, {labels['beeyard.accelerator']} ({held}), {labels['beeyard.engine']}"
    )
