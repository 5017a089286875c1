"""Facts about files."""

import json
from typing import Any, TypedDict

from pyinfra.api import FactBase, QuoteString, StringCommand

from beeyard.facts.errors import not_understood


class FileState(TypedDict):
    """One file as it is. ``kind`` is as stat says it: regular file, directory, symbolic link."""

    kind: str
    mode: str
    owner: str
    uid: str
    target: str | None
    sha256: str | None


# Three processes, however many files there are. A file that may not be read has no digest.
LOOK = r"""
stat --format='=%F|%a|%U|%u|%n' -- "$@" 2>/dev/null
for path do
    shift
    if [ -L "$path" ]; then printf '>%s\n%s\n' "$(readlink -- "$path")" "$path"
    elif [ -f "$path" ]; then set -- "$@" "$path"; fi
done
[ $# -eq 0 ] || sha256sum --zero -- "$@" 2>/dev/null | tr '\0' '\n'
exit 0
"""


class FileStates(FactBase[dict[str, FileState]]):
    """Returns mode, owner and sha256 (or link target) of those of the given paths that are there."""

    default = dict

    def command(self, paths: list[str]) -> StringCommand:
        """One command for all of them."""
        return StringCommand("sh -c", QuoteString(LOOK), "look", *(QuoteString(path) for path in paths))

    def process(self, output: list[str]) -> dict[str, FileState]:
        """Read LOOK's lines: what stat says, two for a link, then digests."""
        found: dict[str, FileState] = {}
        lines = iter(output)
        try:
            for line in lines:
                if line.startswith("="):
                    kind, mode, owner, uid, path = line[1:].split("|", 4)
                    kind = kind.replace("regular empty file", "regular file")
                    found[path] = FileState(kind=kind, mode=mode, owner=owner, uid=uid, target=None, sha256=None)
                elif line.startswith(">"):
                    found[next(lines)]["target"] = line[1:]
                else:
                    digest, path = line.split("  ", 1)
                    found[path]["sha256"] = digest
        except (KeyError, StopIteration, ValueError):
            raise not_understood("its files", repr(output)) from None
        return found


class JsonFile(FactBase[dict[str, Any]]):
    """Returns what is in a file of ours, a JSON object; an empty one where there is none, or another thing."""

    default = dict

    def command(self, path: str) -> StringCommand:
        """Read it, if it is there."""
        return StringCommand("cat", QuoteString(path), "2>/dev/null || echo '{}'")

    def process(self, output: list[str]) -> dict[str, Any]:
        """As it is."""
        try:
            found = json.loads("\n".join(output))
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}
