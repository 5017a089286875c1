"""Operations on a host's Docker images."""

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import IO

from pyinfra import host, logger, state
from pyinfra.api import FileUploadCommand, FunctionCommand, QuoteString, StringCommand, operation

from beeyard.contract import from_label, parse_help, violations
from beeyard.facts.docker import DockerEngine, ImageHelp, ImageLayers, ImageStates
from beeyard.facts.seen import seen
from beeyard.operations.file_set import Directory, File, put
from beeyard.operations.refusals import refusal

Commands = Generator[StringCommand | FileUploadCommand | FunctionCommand, None, None]


@operation()
def pulled(reference: str) -> Commands:
    """
    Ensure that the host's Docker Engine has an image of a registry.

    + reference: the image by digest
    """
    if _is_there(reference):
        return
    yield StringCommand("docker image pull --quiet", QuoteString(reference))


@operation()
def carried(
    reference: str, layers: Sequence[str], directory: str, stream: Callable[[set[str]], IO[bytes]]
) -> Commands:
    """
    Ensure that the host's Docker Engine has an image of the machine that deploys.

    + reference: the image's name, here and there; it must change with the image's content
    + layers: the digests of its layers, the base's first
    + directory: where its bytes may lie on the host until they are loaded
    + stream: makes the image's bytes, without the layers that it is given

    Layers that the host has are not sent.
    """
    if _is_there(reference):
        return
    there = host.get_fact(ImageLayers) if seen(DockerEngine).keeps_layers_apart else []
    common = max((_common(layers, others) for others in there), default=0)
    if common:
        logger.info(f"{host.print_prefix}has {common} of the {len(layers)} layers of {reference}")
    tarball = QuoteString(f"{directory}/image.tar")
    yield FileUploadCommand(stream(set(layers[:common])), f"{directory}/image.tar")
    yield StringCommand("docker image load --quiet --input", tarball, "; code=$?; rm -f", tarball, "; exit $code")


@operation()
def built(
    reference: str, directory: str, files: Mapping[str, bytes], target: str, arguments: Mapping[str, str], log: str
) -> Commands:
    """
    Ensure that the host's Docker Engine has an image that is built there.

    + reference: the image's name; it must change with anything that it is built from
    + directory: where the build's files lie on the host
    + files: the build's files below it, Dockerfile.cuda among them
    + target, arguments: as ``docker build`` takes them
    + log: where on the host its progress can be followed
    """
    if _is_there(reference):
        return
    if state.is_executing and not seen(DockerEngine).buildx:
        yield refusal(
            "docker buildx is missing, which builds the image. Fix: install docker-buildx-plugin (Docker's "
            "repository) or docker-buildx (Debian, Ubuntu), or set llama_image_from to carry or pull"
        )
        return
    for folder in sorted({f"{directory}/{name}".rpartition("/")[0] for name in files}):
        yield from put(Directory(folder))
    for name, content in files.items():
        yield from put(File(f"{directory}/{name}", content))
    logger.info(f"{host.print_prefix}builds {reference}, which may take an hour; follow it with: tail -f {log}")
    words: list[str | QuoteString] = []
    for name, value in arguments.items():
        words += ["--build-arg", QuoteString(f"{name}={value}")]
    build = StringCommand(
        "docker buildx build --progress=plain --load --file", QuoteString(f"{directory}/Dockerfile.cuda"),
        "--target", QuoteString(target), "--tag", QuoteString(reference), *words, QuoteString(directory),
    )  # fmt: skip
    # Of a page of progress, what went wrong: our own sentence if there is one, and what git says of a commit.
    failed = (
        'grep -aE "Fix: |ERROR:|^fatal: " "$1" | tail -n 2 >&2; '
        'echo "the image was not built. Fix: read $1 on the host" >&2'
    )
    yield StringCommand(
        build, ">", QuoteString(log), "2>&1 || { sh -c", QuoteString(failed), "failed", QuoteString(log), "; false; }"
    )


@operation()
def fits(reference: str, arguments: Sequence[str], architectures: Sequence[str]) -> Commands:
    """
    Ensure that an image takes an argument list and holds code for the host's cards, before a server is touched.

    + reference: the image
    + arguments: the server's command, the binary first
    + architectures: of the cards that it is to run on, as CMake writes them

    The image's labels say both; one without our table of flags is asked for its --help.
    """
    if not state.is_executing:
        return
    found = seen(ImageStates, references=[reference]).get(reference)
    if found is None:
        yield refusal(f"image {reference} is not on the host. Fix: deploy again")
        return
    labels = found["labels"]
    engine = f"image {reference}"
    reasons = _other_cards(engine, labels.get("beeyard.cuda-architectures", ""), architectures)
    try:
        label = labels.get("beeyard.flags")
        table = from_label(label) if label else parse_help(host.get_fact(ImageHelp, reference=reference))
        reasons += [f"{text}. Fix: change the preset's settings" for text in violations(arguments, table, engine)]
    except ValueError as error:
        reasons.append(f"{engine} cannot be asked for its flags ({error}). Fix: build it again")
    if reasons:
        yield refusal(f"{'; '.join(reasons)}. Nothing was stopped")
    else:
        host.noop(f"{engine} takes all arguments")


def _other_cards(engine: str, held: str, wanted: Sequence[str]) -> list[str]:
    missing = [name for name in wanted if name not in held.split(";")]
    if not missing:
        return []
    return [
        f"{engine} holds code for architectures {held.replace(';', ', ') or 'none'}; the card here is {missing[0]}. "
        f"Fix: run `make image CUDA_ARCHITECTURES={missing[0]}`, or set llama_image_variant"
    ]


def _is_there(reference: str) -> bool:
    if reference in seen(ImageStates, references=[reference]):
        host.noop(f"image {reference} is there")
        return True
    return False


def _common(layers: Sequence[str], others: Sequence[str]) -> int:
    """How many layers two images share. A layer is another one on another base, so only a common start counts."""
    count = 0
    for one, other in zip(layers, others, strict=False):
        if one != other:
            break
        count += 1
    return count
