"""Which packages give a host its NVIDIA driver, from what its distribution offers. Pure."""

import re

from beeyard.probes import DriverProbe

# PCI device numbers: the first Turing, from which on NVIDIA's open kernel modules drive a card (their README), and
# the first Blackwell, which no others drive. Source: pci.ids.
FIRST_OPEN, FIRST_BLACKWELL = "1e00", "2900"
LEAST_FOR_BLACKWELL = 570
COMPONENTS = {"debian": ("contrib", "non-free", "non-free-firmware"), "ubuntu": ("restricted",)}
# Which key DKMS signs modules with. Source: its Debian package's framework.conf, and Ubuntu's shim-signed.
SIGNING_KEYS = {"debian": "/var/lib/dkms/mok.pub", "ubuntu": "/var/lib/shim-signed/mok/MOK.der"}
UBUNTU = re.compile(r"nvidia-driver-(?P<number>\d+)(?P<server>-server)?(?P<open>-open)?")


class NoDriverError(ValueError):
    """The distribution has no driver for the host's cards; a sentence with its Fix."""


def driver_obstacles(probe: DriverProbe) -> list[str]:
    """Why the distribution's driver cannot be installed on a host where none works; or why it does not work."""
    if probe["container"]:
        return [
            f"llama_nvidia_driver is install, but this host is a container ({probe['container']}), whose driver is "
            "that of the machine below it. Fix: install it there (of a rented pod, take another one), or leave "
            "llama_nvidia_driver out"
        ]
    if probe["distribution"] not in COMPONENTS or not probe["has_apt"]:
        return [
            f"llama_nvidia_driver installs drivers of Debian and Ubuntu, and this is {probe['distribution']}. "
            "Fix: install the driver as its distribution says, and leave llama_nvidia_driver out"
        ]
    if not probe["is_root"]:
        return ["llama_nvidia_driver is install, and this user is not root. Fix: add _sudo: true to the host's data"]
    if not probe["cards"]:
        return [
            "llama_nvidia_driver is install, but this host has no NVIDIA card on its PCI bus. Fix: see that the card "
            "sits well (in a VM: is passed through), or take a CPU preset, as smol"
        ]
    if probe["installed"]:
        return _of_installed(probe)
    return _components(probe)


def driver_notes(probe: DriverProbe) -> list[str]:
    """What to know before the distribution's driver is installed: whether the kernel will load it."""
    if not probe["secure_boot"] or probe["enrolled_key"]:
        return []
    key = SIGNING_KEYS.get(probe["distribution"], SIGNING_KEYS["debian"])
    return [
        "Secure Boot is on here, and the driver's module is built on this host: its kernel will not load it before "
        f"the key that signs it is enrolled. Fix: once it is installed, mokutil --import {key} (package mokutil), "
        "reboot, and confirm the key at the machine's own console; or turn Secure Boot off in its firmware"
    ]


def driver_packages(probe: DriverProbe) -> list[str]:
    """
    What to install.

    :raises NoDriverError: nothing that is offered drives the host's cards.
    """
    driver = _ubuntu(probe) if probe["distribution"] == "ubuntu" else _debian(probe)
    return [*driver, *_headers(probe)]


def _of_installed(probe: DriverProbe) -> list[str]:
    if not probe["booted_since"]:
        return []
    package, version = next(iter(probe["installed"].items()))
    return [
        f"{package} {version} is installed, the host was booted since, and nvidia-smi finds no card: its kernel "
        f"module is not loaded in {probe['kernel']}. Fix: {_secure_boot_fix(probe)}see dkms status and journalctl -k "
        "-g 'nvidia|NVRM'"
    ]


def _secure_boot_fix(probe: DriverProbe) -> str:
    if not probe["secure_boot"]:
        return ""
    if probe["enrolled_key"]:
        return (
            f"Secure Boot is on, and {probe['enrolled_key']} is enrolled: see that it signed the module (modinfo); "
        )
    key = SIGNING_KEYS.get(probe["distribution"], SIGNING_KEYS["debian"])
    return f"Secure Boot is on: mokutil --import {key}, reboot, and confirm the key at the console; then "


def _components(probe: DriverProbe) -> list[str]:
    wanted = COMPONENTS[probe["distribution"]]
    if probe["distribution"] == "debian" and probe["release"].isdigit() and int(probe["release"]) < 12:
        wanted = ("contrib", "non-free")
    missing = [component for component in wanted if component not in probe["components"]]
    if not missing:
        return []
    return [
        f"apt does not know {', '.join(missing)} here, where {probe['distribution'].capitalize()} has the NVIDIA "
        f"driver. Fix: add {' '.join(missing)} to the components of its sources in /etc/apt (Components: in a "
        ".sources file, the end of a deb line), then deploy again"
    ]


def _needs_open(probe: DriverProbe) -> bool:
    return any(card >= FIRST_BLACKWELL for card in probe["cards"])


def _may_open(probe: DriverProbe) -> bool:
    return all(card >= FIRST_OPEN for card in probe["cards"])


def _number(version: str) -> int:
    found = re.match(r"(?:\d+:)?(\d+)\.", version)
    return int(found[1]) if found else 0


def _too_old(found: str) -> NoDriverError:
    return NoDriverError(
        f"the card here is a Blackwell (compute capability 10.0 or 12.0), which wants driver {LEAST_FOR_BLACKWELL} "
        f"or newer with open kernel modules; apt offers {found}. Fix: a newer release of the distribution or its "
        "backports, or NVIDIA's own packages (nvidia-open), and leave llama_nvidia_driver out"
    )


def _debian(probe: DriverProbe) -> list[str]:
    version = probe["offers"].get("nvidia-driver")
    if version is None:
        raise NoDriverError(
            "apt offers no nvidia-driver here. Fix: see that non-free is in its sources, and `apt-get update` "
            "succeeds"
        )
    # nvidia-driver itself needs neither: a desktop may do without.
    found = ["nvidia-driver", "nvidia-smi", "libcuda1", "nvidia-modprobe"]
    if not _needs_open(probe):
        return found
    if _number(version) < LEAST_FOR_BLACKWELL or "nvidia-open-kernel-dkms" not in probe["offers"]:
        raise _too_old(f"nvidia-driver {version}")
    return [*found, "nvidia-open-kernel-dkms"]


def _ubuntu(probe: DriverProbe) -> list[str]:
    fitting = {}
    for name, version in probe["offers"].items():
        found = UBUNTU.fullmatch(name)
        # An older name with a newer version is an empty package on the way there.
        if found and _number(version) == int(found["number"]) and bool(found["open"]) == _may_open(probe):
            fitting[int(found["number"]), bool(found["server"])] = name
    newest = max(fitting, default=None)
    if newest is None:
        raise NoDriverError(
            "apt offers no nvidia-driver-NUMBER for the cards here. Fix: see that restricted is in its sources, and "
            "`apt-get update` succeeds"
        )
    if _needs_open(probe) and newest[0] < LEAST_FOR_BLACKWELL:
        raise _too_old(fitting[newest])
    recommended = UBUNTU.fullmatch(probe["recommended"])
    if recommended:
        asked = int(recommended["number"]), bool(recommended["server"])
        if asked in fitting and not (_needs_open(probe) and asked[0] < LEAST_FOR_BLACKWELL):
            return [fitting[asked]]
    return [fitting[newest]]


def _headers(probe: DriverProbe) -> list[str]:
    """Of every kernel that comes with updates, and of the running one: DKMS builds the module for each."""
    follow = [f"linux-headers-{image.removeprefix('linux-image-')}" for image in probe["images"]]
    wanted = [*follow, f"linux-headers-{probe['kernel']}"]
    if not follow:
        wanted.append(f"linux-headers-{probe['architecture']}")
    found = [name for name in dict.fromkeys(wanted) if name in probe["offers"]]
    if not found:
        raise NoDriverError(
            f"apt offers no headers of kernel {probe['kernel']}, for which the driver's module is built. Fix: "
            "install the distribution's own kernel and boot it, or install the headers of this one"
        )
    return found
