"""Which driver a host gets, by what its distribution offers; and what stands against it."""

from typing import Any

import pytest

from beeyard.drivers import NoDriverError, driver_notes, driver_obstacles, driver_packages
from beeyard.probes import DriverProbe

RTX_3090, RTX_4090, RTX_5090, GTX_1080 = "2204", "2684", "2b85", "1b80"
BOOKWORM = {
    "nvidia-driver": "535.261.03-1",
    "nvidia-open-kernel-dkms": "535.261.03-1",
    "linux-headers-amd64": "6.1.176-1",
    "linux-headers-6.1.0-50-amd64": "6.1.176-1",
}
NOBLE = {
    "nvidia-driver-535": "535.274.02-0ubuntu0.24.04.1",
    "nvidia-driver-535-server": "535.274.02-0ubuntu0.24.04.1",
    "nvidia-driver-550-open": "550.163.01-0ubuntu0.24.04.1",
    "nvidia-driver-560-open": "565.77-0ubuntu0.24.04.1",  # an empty package on the way to 565
    "nvidia-driver-570": "570.195.03-0ubuntu0.24.04.1",
    "nvidia-driver-570-open": "570.195.03-0ubuntu0.24.04.1",
    "nvidia-driver-570-server-open": "570.195.03-0ubuntu0.24.04.1",
    "linux-headers-generic": "6.8.0-90.91",
    "linux-headers-generic-hwe-24.04": "6.14.0-37.37~24.04.1",
    "linux-headers-6.8.0-90-generic": "6.8.0-90.91",
}


def probe(**changes: Any) -> DriverProbe:
    found = DriverProbe(
        is_root=True,
        has_apt=True,
        works=False,
        has_nvidia_smi=False,
        container="",
        distribution="debian",
        release="12",
        architecture="amd64",
        kernel="6.1.0-50-amd64",
        cards=[RTX_4090],
        components=["contrib", "main", "non-free", "non-free-firmware"],
        images=["linux-image-amd64"],
        installed={},
        booted_since=False,
        offers=BOOKWORM,
        recommended="",
        secure_boot=False,
        enrolled_key="",
    )
    found.update(changes)  # type: ignore[typeddict-item]
    return found


def ubuntu(**changes: Any) -> DriverProbe:
    return probe(**{
        "distribution": "ubuntu", "release": "24.04", "kernel": "6.8.0-90-generic", "images": ["linux-image-generic"],
        "components": ["main", "restricted"], "offers": NOBLE, **changes,
    })  # fmt: skip


def test_debian_has_one_driver_and_what_builds_its_module() -> None:
    assert driver_packages(probe()) == [
        "nvidia-driver", "nvidia-smi", "libcuda1", "nvidia-modprobe", "linux-headers-amd64",
        "linux-headers-6.1.0-50-amd64",
    ]  # fmt: skip


def test_a_blackwell_on_debian_wants_a_newer_driver_with_open_modules() -> None:
    with pytest.raises(
        NoDriverError, match=r"wants driver 570 or newer with open .* offers nvidia-driver 535.*Fix: "
    ):
        driver_packages(probe(cards=[RTX_5090]))
    newer = {**BOOKWORM, "nvidia-driver": "590.48.01-1", "nvidia-open-kernel-dkms": "590.48.01-1"}
    assert "nvidia-open-kernel-dkms" in driver_packages(probe(cards=[RTX_5090], offers=newer))


@pytest.mark.parametrize(
    ("changes", "driver"),
    [
        ({}, "nvidia-driver-570-server-open"),
        ({"cards": [RTX_5090]}, "nvidia-driver-570-server-open"),
        ({"recommended": "nvidia-driver-550-open"}, "nvidia-driver-550-open"),
        ({"recommended": "nvidia-driver-570"}, "nvidia-driver-570-open"),
        ({"recommended": "nvidia-driver-550-open", "cards": [RTX_3090, RTX_5090]}, "nvidia-driver-570-server-open"),
        ({"cards": [GTX_1080]}, "nvidia-driver-570"),
    ],
)
def test_ubuntu_has_many_drivers_of_which_one_fits(changes: dict[str, Any], driver: str) -> None:
    assert driver_packages(ubuntu(**changes))[0] == driver


def test_headers_follow_the_kernel_that_updates_bring() -> None:
    hwe = ubuntu(images=["linux-image-generic-hwe-24.04"], kernel="6.14.0-36-generic")
    assert driver_packages(hwe)[1:] == ["linux-headers-generic-hwe-24.04"]
    with pytest.raises(NoDriverError, match=r"no headers of kernel 6\.99-own, .*Fix: "):
        driver_packages(ubuntu(images=[], kernel="6.99-own"))


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"container": "docker"}, "this host is a container (docker), whose driver is that of the machine below it"),
        ({"distribution": "fedora"}, "installs drivers of Debian and Ubuntu, and this is fedora"),
        ({"is_root": False}, "this user is not root. Fix: add _sudo: true"),
        ({"cards": []}, "no NVIDIA card on its PCI bus"),
        ({"components": ["main", "contrib"]}, "apt does not know non-free, non-free-firmware here"),
        ({"distribution": "ubuntu", "components": ["main"]}, "apt does not know restricted here, where Ubuntu"),
        (
            {"installed": {"nvidia-driver": "535"}, "booted_since": True},
            "its kernel module is not loaded in 6.1.0-50",
        ),
    ],
)
def test_each_obstacle_is_a_sentence_with_its_fix(changes: dict[str, Any], complaint: str) -> None:
    (text,) = driver_obstacles(probe(**changes))
    assert complaint in text
    assert "Fix: " in text


def test_a_driver_that_waits_for_the_reboot_is_no_obstacle() -> None:
    assert driver_obstacles(probe()) == []
    assert driver_obstacles(probe(installed={"nvidia-driver": "535.261.03-1"})) == []


def test_secure_boot_is_told_before_a_module_is_built_that_would_not_load() -> None:
    assert driver_notes(probe()) == []
    (text,) = driver_notes(probe(secure_boot=True))
    assert text.startswith(
        "Secure Boot is on here, and the driver's module is built on this host: its kernel will not"
    )
    assert "Fix: once it is installed, mokutil --import /var/lib/dkms/mok.pub" in text
    assert "/var/lib/shim-signed/mok/MOK.der" in driver_notes(ubuntu(secure_boot=True))[0]
    assert driver_notes(probe(secure_boot=True, enrolled_key="/var/lib/dkms/mok.pub")) == []


def test_secure_boot_stands_against_no_installation_and_is_named_when_the_module_is_not_loaded() -> None:
    assert driver_obstacles(probe(secure_boot=True)) == []
    after = {"installed": {"nvidia-driver": "535.261.03-1"}, "booted_since": True}
    (text,) = driver_obstacles(probe(secure_boot=True, **after))
    assert "Fix: Secure Boot is on: mokutil --import /var/lib/dkms/mok.pub, reboot, and confirm" in text
    (other,) = driver_obstacles(probe(**after))
    assert "Secure Boot" not in other
    assert "Fix: see dkms status" in other
