"""The NVIDIA driver of a host that has none: it comes alone, for no card is known before the next boot."""

from pyinfra import host, logger
from pyinfra.api import deploy

from beeyard.deploys.surveyed import missing_driver, refused
from beeyard.drivers import driver_notes, driver_obstacles
from beeyard.operations import drivers


def comes_first() -> bool:
    """Whether this run brings the current host its driver, or tells why not, and leaves its server for later."""
    probe = missing_driver()
    if probe is None:
        return False
    if not refused(driver_obstacles(probe)):
        for note in driver_notes(probe):
            logger.warning(f"{host.print_prefix}{note}")
        bring()
    return True


@deploy("Bring the NVIDIA driver")
def bring() -> None:
    """From the distribution, and without a reboot."""
    drivers.installed(name="NVIDIA driver")
    drivers.awaits_reboot(name="What is left to do")
