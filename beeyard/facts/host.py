"""Facts about a host as a whole."""

import json

from pyinfra.api import FactBase, QuoteString, StringCommand

from beeyard.facts.errors import not_understood
from beeyard.probes import Probe

# One script, so that the host is asked once. A missing thing is an empty value, never an error.
PROBE = r"""
nearest() { p=$1; until [ -e "$p" ]; do p=$(dirname "$p"); done; echo "$p"; }
prefix=$(nearest "$1")
echo "apt=$(command -v apt-get)"
echo "python=$(command -v python3)"
echo "curl=$(command -v curl)"
echo "prefix_parent=$prefix"
echo "prefix_writable=$([ -d "$prefix" ] && [ -w "$prefix" ] && echo yes)"
echo "first_free_port=$(cat /proc/sys/net/ipv4/ip_unprivileged_port_start 2>/dev/null || echo 1024)"
echo "held_engine=$(cat "$3" 2>/dev/null)"
port=$(printf ':%04X' "$2")
inode=$(awk -v port="$port" '$4 == "0A" && substr($2, length($2) - 4) == port { print $10; exit }' \
    /proc/net/tcp /proc/net/tcp6 2>/dev/null)
if [ -n "$inode" ]; then
    holder=$(find /proc/[0-9]*/fd -lname "socket:?$inode?" 2>/dev/null | head -n 1 | cut -d/ -f3)
    echo "listener_pid=${holder:-0}"
    echo "listener=$([ -n "$holder" ] && tr '\0' ' ' <"/proc/$holder/cmdline" | cut -c1-80)"
fi
"""


class HostProbe(FactBase[Probe]):
    """Returns what of a host, besides its hardware, decides whether and how a server can be put there."""

    def command(self, prefix: str, port: int, held_engine: str) -> StringCommand:
        """One command for all of it; ``held_engine`` is where a pod's image says what engine it holds."""
        words = (QuoteString(word) for word in (PROBE, "probe", prefix, str(port), held_engine))
        return StringCommand("sh -c", *words)

    def process(self, output: list[str]) -> Probe:
        """Read the lines that PROBE prints."""
        found = dict(line.split("=", 1) for line in output if "=" in line)
        try:
            return Probe(
                has_apt=bool(found["apt"]),
                python=found["python"],
                curl=found["curl"],
                prefix_parent=found["prefix_parent"],
                prefix_writable=found["prefix_writable"] == "yes",
                held_engine=json.loads(found["held_engine"]) if found["held_engine"] else None,
                first_free_port=int(found["first_free_port"]),
                listener_pid=int(found["listener_pid"]) if "listener_pid" in found else None,
                listener=found.get("listener", "").strip(),
            )
        except (KeyError, ValueError):
            raise not_understood("its tools and port", repr(output)) from None


class BuildTools(FactBase[dict[str, str]]):
    """Returns where the tools are that an engine is compiled with; empty for one that is missing."""

    def command(self) -> str:
        """As engine.sh looks for them."""
        return 'for tool in git cmake ninja c++; do echo "$tool=$(command -v "$tool")"; done'

    def process(self, output: list[str]) -> dict[str, str]:
        """A line each."""
        return dict(line.split("=", 1) for line in output if "=" in line)


# A desktop has thousands of packages, which are not to come over at each deploy.
INSTALLED = r"""
dpkg-query --show --showformat '${db:Status-Abbrev}|${Package}, ${Provides}\n' | awk -F '|' '
    BEGIN { for (i = 1; i < ARGC; i++) wanted[ARGV[i]]; ARGC = 1 }
    $1 ~ /^ii/ {
        count = split($2, names, ", ")
        for (i = 1; i <= count; i++) { sub(/ .*/, "", names[i]); if (names[i] in wanted) print names[i] }
    }' "$@"
"""


class InstalledPackages(FactBase[set[str]]):
    """Returns those of the given Debian packages that are installed, or that an installed one provides."""

    default = set

    def requires_command(self, packages: list[str]) -> str:
        """Elsewhere than on Debian there are none."""
        return "dpkg-query"

    def command(self, packages: list[str]) -> StringCommand:
        """Ask dpkg's own database."""
        return StringCommand("sh -c", QuoteString(INSTALLED), "look", *(QuoteString(name) for name in packages))

    def process(self, output: list[str]) -> set[str]:
        """A line each."""
        return set(output)


class PackageVersion(FactBase[str | None]):
    """Returns the installed version of a Debian package, or None."""

    def command(self, package: str) -> StringCommand:
        """Ask dpkg's own database."""
        show = StringCommand("dpkg-query --show --showformat '${db:Status-Abbrev}|${Version}'", QuoteString(package))
        return StringCommand(show, "2>/dev/null || true")

    def process(self, output: list[str]) -> str | None:
        """Keep it if it is installed."""
        status, _, version = (output[0] if output else "").partition("|")
        return version if status.startswith("ii") else None


class SudoWorks(FactBase[bool]):
    """Returns whether the connected user may run commands as root without being asked for a password."""

    def command(self) -> str:
        """One try, so that no account is locked by several."""
        return 'if [ "$(id -u)" = 0 ] || sudo -n true 2>/dev/null; then echo yes; else echo no; fi'

    def process(self, output: list[str]) -> bool:
        """It says yes or no."""
        return output == ["yes"]


class KernelSettings(FactBase[dict[str, list[str]]]):
    """Returns the words of those of the given kernel settings that the host has, by their names."""

    default = dict

    def command(self, names: list[str]) -> StringCommand:
        """Read them as sysctl does, which a small host may not have."""
        script = (
            'for name do file=/proc/sys/$(echo "$name" | tr "./" "/."); '
            '[ ! -r "$file" ] || echo "$name=$(cat "$file" 2>/dev/null)"; done'
        )
        return StringCommand("sh -c", QuoteString(script), "look", *(QuoteString(name) for name in names))

    def process(self, output: list[str]) -> dict[str, list[str]]:
        """Their values' words are parted by tabs or blanks."""
        pairs = (line.partition("=") for line in output)
        return {name: value.split() for name, _, value in pairs}
