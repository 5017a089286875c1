"""Facts about systemd's units."""

from typing import TypedDict

from pyinfra.api import FactBase, QuoteString, StringCommand


class UnitState(TypedDict):
    """One unit, as systemctl says it: active, inactive, failed, …; enabled, disabled, …"""

    active: str
    enabled: str


LOOK = r"""
for unit do
    printf '%s %s %s\n' "$unit" "$(systemctl is-active "$unit" 2>/dev/null || true)" \
        "$(systemctl is-enabled "$unit" 2>/dev/null || true)"
done
"""


class UnitStates(FactBase[dict[str, UnitState]]):
    """Returns what units do now and at boot; empty words for one that is not there."""

    default = dict

    def command(self, units: list[str]) -> StringCommand:
        """One command for all of them."""
        return StringCommand("sh -c", QuoteString(LOOK), "look", *(QuoteString(unit) for unit in units))

    def process(self, output: list[str]) -> dict[str, UnitState]:
        """Read LOOK's line a unit."""
        rows = (line.split(" ") for line in output)
        return {unit: UnitState(active=active, enabled=enabled) for unit, active, enabled in rows}


OWN = r"""
[ "$(systemctl is-active "$1.service")" = active ] || exit 0
dpkg --status "$1" >/dev/null || echo no package
dpkg --verify "$1" | grep " $2$"
exit 0
"""


class OwnService(FactBase[bool]):
    """Returns whether a package's service runs here with a configuration that is not the package's."""

    default = bool

    def command(self, package: str, config: str) -> StringCommand:
        """Ask systemd, then dpkg."""
        return StringCommand(
            "sh -c", QuoteString(OWN), "look", QuoteString(package), QuoteString(config), "2>/dev/null"
        )

    def process(self, output: list[str]) -> bool:
        """Whatever dpkg says is a difference."""
        return bool(output)


class FoundUnits(FactBase[list[str]]):
    """Returns the names of units of ours in a folder, by how they begin."""

    default = list

    def command(self, folder: str, prefix: str) -> StringCommand:
        """List them."""
        return StringCommand("ls -1", QuoteString(folder), "2>/dev/null | grep", QuoteString(f"^{prefix}"), "|| true")

    def process(self, output: list[str]) -> list[str]:
        """A name a line."""
        return output


class Lines(FactBase[list[str]]):
    """Returns a text file's lines; none where it is not there. ``~`` is the connected user's home."""

    default = list

    def command(self, path: str) -> StringCommand:
        """Read it."""
        return StringCommand("sh -c", QuoteString('! test -e "$1" || cat "$1"'), "look", home(path))

    def process(self, output: list[str]) -> list[str]:
        """As they are."""
        return output


def home(path: str) -> StringCommand | QuoteString:
    """A path for the shell, whose ``~/`` it expands."""
    if path.startswith("~/"):
        return StringCommand('"$HOME"/', QuoteString(path[2:]), _separator="")
    return QuoteString(path)
