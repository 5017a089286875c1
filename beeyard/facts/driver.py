"""Facts about a host's NVIDIA driver."""

from collections import defaultdict
from pathlib import Path

from pyinfra.api import FactBase, FactProcessError, QuoteString, StringCommand

from beeyard.probes import DriverProbe

SCRIPT = Path(__file__).with_name("driver.sh")
# Of what the driver is made; not the container toolkit, CUDA, or modules that follow the kernel's own versions.
SOURCES = r"^nvidia-(graphics-drivers|open-gpu-kernel-modules)"


class NvidiaDriver(FactBase[DriverProbe]):
    """Returns whether the host's NVIDIA driver works, and what its distribution offers."""

    def command(self) -> StringCommand:
        """The whole script as one argument."""
        return StringCommand("sh -c", QuoteString(SCRIPT.read_text()))

    def process(self, output: list[str]) -> DriverProbe:
        """Read the lines that driver.sh prints."""
        lines: dict[str, list[str]] = defaultdict(list)
        for line in output:
            key, _, value = line.partition("=")
            lines[key].append(value)
        try:
            (kernel,), (uid,), (container,) = lines["kernel"], lines["uid"], lines["container"]
            return DriverProbe(
                is_root=uid == "0",
                has_apt=lines["apt"] != [""],
                works="works" in lines,
                has_nvidia_smi=lines["nvidia_smi"] != [""],
                container="" if container == "none" else container,
                distribution="".join(lines["distribution"]),
                release="".join(lines["release"]),
                architecture="".join(lines["architecture"]),
                kernel=kernel,
                cards=lines["card"],
                components=lines["component"],
                images=lines["image"],
                installed=dict(_pair(line) for line in lines["installed"]),
                booted_since="booted_since" in lines,
                offers=dict(_pair(line) for line in lines["offer"]),
                recommended="".join(lines["recommended"]),
                secure_boot="secure_boot" in lines,
                enrolled_key="".join(lines["enrolled_key"][:1]),
            )
        except ValueError as error:
            raise FactProcessError(f"unexpected NVIDIA driver: {output!r}") from error


class DriverPackages(FactBase[dict[str, bool]]):
    """Returns the installed packages of the NVIDIA driver, and whether each is held."""

    default = dict

    def requires_command(self) -> str:
        """Elsewhere than on Debian there are none."""
        return "dpkg-query"

    def command(self) -> str:
        """Ask dpkg's own database."""
        return (
            "dpkg-query --show --showformat '${source:Package}|${db:Status-Want}|${db:Status-Status}|${Package}\\n' "
            f"| grep -E '{SOURCES}' || true"
        )

    def process(self, output: list[str]) -> dict[str, bool]:
        """A line a package."""
        rows = [line.split("|") for line in output]
        return {package: want == "hold" for _, want, status, package in rows if status == "installed"}


class GpuIsReady(FactBase[bool]):
    """Returns whether CUDA's device is there and every card's driver stays loaded; ``unit`` starts at boot."""

    def command(self, unit: str) -> StringCommand:
        """All of it must hold. A card that knows no persistence mode says [N/A]."""
        return StringCommand(
            "if test -e /dev/nvidia-uvm && systemctl is-enabled --quiet", QuoteString(unit),
            "&& ! nvidia-smi --query-gpu=persistence_mode --format=csv,noheader | grep -q Disabled",
            "; then echo yes; else echo no; fi",
        )  # fmt: skip

    def process(self, output: list[str]) -> bool:
        """It says yes or no."""
        return output == ["yes"]


def _pair(line: str) -> tuple[str, str]:
    package, version = line.split(" ")
    return package, version
