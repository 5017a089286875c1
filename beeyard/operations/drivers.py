"""Operations on a host's NVIDIA driver."""

from collections.abc import Generator

from pyinfra import host, logger, state
from pyinfra.api import FunctionCommand, QuoteString, StringCommand, operation

from beeyard.drivers import NoDriverError, driver_notes, driver_packages
from beeyard.facts.driver import DriverPackages, GpuIsReady, NvidiaDriver
from beeyard.facts.files import FileStates
from beeyard.operations.file_set import File, as_wanted, put
from beeyard.operations.packages import apt_get, apt_install
from beeyard.operations.refusals import refusal

Commands = Generator[StringCommand | FunctionCommand, None, None]


@operation()
def installed() -> Commands:
    """Ensure that the distribution's NVIDIA driver is installed, with what builds its module for the host's "
    "kernels."""
    found = host.get_fact(NvidiaDriver)
    if found["installed"]:
        host.noop(f"an NVIDIA driver is installed: {_listed(found['installed'])}")
        return
    yield apt_get("update")
    if not state.is_executing:
        return  # what apt offers is known only then
    try:
        wanted = driver_packages(host.get_fact(NvidiaDriver))
    except NoDriverError as error:
        yield refusal(str(error))
        return
    logger.info(f"{host.print_prefix}installing {' '.join(wanted)}, whose module is built here: minutes")
    yield apt_install(wanted)


@operation()
def awaits_reboot() -> Commands:
    """Tell, at the end of a run, that the driver that was installed is loaded at the next boot. Changes nothing."""
    if state.is_executing:
        found = host.get_fact(NvidiaDriver)
        logger.warning(
            f"{host.print_prefix}the NVIDIA driver is installed ({_listed(found['installed'])}) and is loaded at the "
            "next boot, which is left to you; no server was put there yet. Fix: reboot the host, then deploy again"
        )
        for note in driver_notes(found):
            logger.warning(f"{host.print_prefix}{note}")
    yield from ()


@operation()
def held() -> Commands:
    """Ensure that no upgrade, unattended ones above all, replaces the NVIDIA driver under a running server."""
    found = host.get_fact(DriverPackages)
    loose = sorted(package for package, is_held in found.items() if not is_held)
    if not loose:
        host.noop(f"{len(found)} packages of the NVIDIA driver are held")
        return
    if state.is_executing:
        logger.info(
            f"{host.print_prefix}{len(loose)} packages of the NVIDIA driver are held from now on: upgrades leave "
            "them as they are. To upgrade it: apt-mark unhold them, upgrade, reboot, deploy"
        )
    yield StringCommand("apt-mark hold", *(QuoteString(package) for package in loose))


@operation()
def ready_at_boot(unit: str, definition: bytes, script: str) -> Commands:
    """
    Ensure that the cards are ready now, and at every boot before servers start.

    + unit: the unit's name
    + definition: its file
    + script: what it runs, on the host

    systemd is not reloaded: that takes the cards from running containers. It reads the unit at the next boot; now the
    script runs by itself.
    """
    file = File(f"/etc/systemd/system/{unit}", definition)
    is_written = as_wanted(file, host.get_fact(FileStates, paths=[file.path]).get(file.path))
    if is_written and host.get_fact(GpuIsReady, unit=unit):
        host.noop("the cards are ready, now and at boot")
        return
    yield from put(file)
    yield StringCommand("systemctl enable --no-reload --quiet", QuoteString(unit))
    yield StringCommand("sh", QuoteString(script))


def _listed(packages: dict[str, str]) -> str:
    return ", ".join(f"{package} {version}" for package, version in packages.items())
