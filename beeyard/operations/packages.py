"""Operations on Debian packages."""

from collections.abc import Generator, Sequence
from pathlib import Path

from pyinfra import host
from pyinfra.api import QuoteString, StringCommand, operation

from beeyard import onhost
from beeyard.facts.host import InstalledPackages
from beeyard.facts.seen import seen
from beeyard.operations.watched import WatchedCommand, watched

APT = (Path(onhost.__file__).parent / "apt.sh").read_text()
# Its last line says what apt waits for.
PROGRESS = "/run/beeyard-apt"
WAIT_S = 300  # for another apt: as long as unattended-upgrades mostly takes


def apt_get(*words: str, wait_s: int = WAIT_S) -> WatchedCommand:
    """
    A command that runs apt-get when nobody else uses apt; it asks nothing and keeps configuration files.

    :param words: update, or install and what
    :param wait_s: seconds to wait for another apt; whoever holds its lock is named
    """
    said = (QuoteString(word) for word in (APT, "apt", str(wait_s), PROGRESS, *words))
    return watched(StringCommand("sh -c", *said), PROGRESS)


def apt_install(packages: Sequence[str], *options: str, wait_s: int = WAIT_S) -> WatchedCommand:
    """A command that installs packages without what they only recommend."""
    return apt_get("install", "--yes", "--no-install-recommends", *options, *packages, wait_s=wait_s)


@operation()
def installed(packages: Sequence[str], wait_s: int = WAIT_S) -> Generator[StringCommand, None, None]:
    """
    Ensure that Debian packages are installed, in any version.

    + packages: their names, or names that others provide
    + wait_s: seconds to wait for another apt
    """
    there = seen(InstalledPackages, packages=list(packages))
    missing = [package for package in packages if package not in there]
    if not missing:
        host.noop("packages are installed")
        return
    yield apt_get("update", wait_s=wait_s)
    yield apt_install(missing, wait_s=wait_s)
