"""Operations on a host's Docker Engine and its access to NVIDIA cards."""

import hashlib
from collections.abc import Generator, Sequence

from pyinfra import host, state
from pyinfra.api import FunctionCommand, QuoteString, StringCommand, operation

from beeyard.checks import docker_faults
from beeyard.facts.docker import DockerEngine
from beeyard.facts.files import FileStates
from beeyard.facts.seen import seen
from beeyard.operations.packages import apt_get, apt_install
from beeyard.operations.refusals import refusal

Commands = Generator[StringCommand | FunctionCommand, None, None]

# Adds an apt repository whose key has this fingerprint, or nothing at all.
REPOSITORY = r"""
set -eu
name=$1 key_url=$2 fingerprint=$3 line=$4
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
curl --fail --silent --show-error --location --retry 3 --output "$work/key" "$key_url" || {
    echo "the key of $name cannot be fetched from $key_url. Fix: check that the host reaches it" >&2
    exit 1
}
found=$(gpg --homedir "$work" --batch --show-keys --with-colons "$work/key" 2>/dev/null |
    awk -F: '/^fpr/ { print $10; exit }')
[ "$found" = "$fingerprint" ] || {
    echo "the key of $name is ${found:-no key}, $fingerprint is wanted. Fix: ask who changed it, before going on" >&2
    exit 1
}
gpg --homedir "$work" --batch --dearmor --output "$work/ring" "$work/key"
install -D -m 644 "$work/ring" "/usr/share/keyrings/beeyard-$name.gpg"
printf '%s\n' "$line" >"$work/list"
install -m 644 "$work/list" "/etc/apt/sources.list.d/beeyard-$name.list"
"""

# For a Docker that does not know the runtime: it was not configured, or not restarted since.
CONFIGURE = r"""
set -eu
file=/etc/docker/daemon.json
said=$(nvidia-ctk runtime configure --runtime=docker 2>&1) && grep -qs '"nvidia"' "$file" || {
    echo "nvidia-ctk did not configure Docker: $(printf '%s' "$said" | tail -n 1). Fix: see that $file is JSON" >&2
    exit 1
}
systemctl reset-failed docker 2>/dev/null || : # who tried often in a minute may start it again
systemctl restart docker
"""


def repository_file(name: str) -> str:
    """Where apt's line of a repository lies that we add."""
    return f"/etc/apt/sources.list.d/beeyard-{name}.list"


@operation()
def repository(repository: str, key_url: str, fingerprint: str, line: str) -> Commands:
    """
    Ensure that apt on the host knows a repository, by a key that we know.

    + repository: what to call its files
    + key_url: where its key is
    + fingerprint: which key that must be, 40 hex digits
    + line: its line of sources.list, which names /usr/share/keyrings/beeyard-REPOSITORY.gpg
    """
    path = repository_file(repository)
    keyring = f"/usr/share/keyrings/beeyard-{repository}.gpg"
    found = seen(FileStates, paths=[path, keyring])
    there = found.get(path)
    wanted = hashlib.sha256(f"{line}\n".encode()).hexdigest()
    if there is not None and there["sha256"] == wanted and found.get(keyring) is not None:
        host.noop(f"apt knows the repository of {repository}")
        return
    words = (REPOSITORY, "add", repository, key_url, fingerprint, line)
    yield StringCommand("sh -c", *(QuoteString(word) for word in words))


@operation()
def installed(packages: Sequence[str]) -> Commands:
    """
    Ensure that the host has a Docker Engine that answers, with compose.

    + packages: what to install if it has not
    """
    now = seen(DockerEngine)
    if now.version and now.compose:
        host.noop(f"Docker Engine {now.version} with compose {now.compose} answers")
        return
    yield apt_get("update")
    yield apt_install(packages)
    yield StringCommand("systemctl enable --now docker")


@operation()
def answers(wants_gpu: bool) -> Commands:
    """
    Ensure, before anything is built or stopped, that what was installed now works. Changes nothing.

    + wants_gpu: whether containers are to have an NVIDIA card
    """
    if not state.is_executing:
        return
    reasons = docker_faults(seen(DockerEngine), wants_gpu=wants_gpu)
    if reasons:
        yield refusal(" ".join(reasons))


@operation()
def sees_nvidia() -> Commands:
    """Ensure that Docker can give containers the host's NVIDIA cards, by the toolkit that is installed."""
    now = seen(DockerEngine)
    if "nvidia" in now.runtimes or now.has_cdi:
        host.noop("Docker knows the NVIDIA runtime")
        return
    yield StringCommand("sh -c", QuoteString(CONFIGURE))
