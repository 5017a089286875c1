"""Operations on Debian packages."""

from collections.abc import Generator, Sequence

from pyinfra import host
from pyinfra.api import QuoteString, StringCommand, operation

from beeyard.facts.host import InstalledPackages

# Waits for another apt, asks nothing, keeps configuration files, tries a mirror's hiccup again.
APT = (
    "env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 "
    "-o Dpkg::Options::=--force-confold -o Dpkg::Use-Pty=0"
)


@operation()
def installed(packages: Sequence[str]) -> Generator[StringCommand, None, None]:
    """
    Ensure that Debian packages are installed, in any version.

    + packages: their names, or names that others provide
    """
    there = host.get_fact(InstalledPackages)
    missing = [package for package in packages if package not in there]
    if not missing:
        host.noop("packages are installed")
        return
    yield StringCommand(APT, "update")
    yield StringCommand(APT, "install --yes --no-install-recommends", *(QuoteString(name) for name in missing))
