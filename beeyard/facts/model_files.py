"""Facts about downloaded model files."""

import re
from typing import TypedDict

from pyinfra.api import FactBase, QuoteString, StringCommand

from beeyard.facts.errors import not_understood

LOOK = r"""
fetch=$1; shift
while [ $# -gt 0 ]; do
    if [ -f "$fetch" ]; then sh "$fetch" look "$1" "$2"; else echo absent; fi
    stat -c %s "$1.partial" 2>/dev/null || echo 0
    shift 2
done
"""


class ModelFileStates(FactBase[list[tuple[str, int]]]):
    """
    Returns for each (path, sha256) what the file is and how many bytes of it are there as a partial.

    ``verified`` rests on the stamp that ``fetch.sh`` leaves (hash, size, times), so that 20 GB are not
    read again; ``unstamped`` must be hashed; ``absent`` must be fetched.
    """

    def command(self, fetch: str, files: list[tuple[str, str]]) -> StringCommand:
        """One command for all of them."""
        words = [QuoteString(word) for pair in files for word in pair]
        return StringCommand("sh -c", QuoteString(LOOK), "look", QuoteString(fetch), *words)

    def process(self, output: list[str]) -> list[tuple[str, int]]:
        """Read LOOK's two lines a file."""
        try:
            return [(state, int(size)) for state, size in zip(output[::2], output[1::2], strict=True)]
        except ValueError:
            raise not_understood("its model files", repr(output)) from None


STORED = r"""
models=$1 prefix=$2
for stamp in "$models"/*/*.verified; do
    file=${stamp%.verified}
    [ -f "$stamp" ] && [ -f "$file" ] && echo "stored=$(stat -c %s "$file") $file"
done
for part in "$models"/*/*.partial "$models"/*/*.partial.[0-9]* "$models"/*/*.wrong-sha256; do
    [ -f "$part" ] && echo "stored=$(stat -c %s "$part") $part"
done
cat "$prefix"/servers/*/server.json 2>/dev/null | grep -oE '/[0-9a-f]{12}/[^/"]+\.gguf"' |
    cut -d/ -f2 | sed 's/^/named=/'
echo done= # pyinfra takes no output for no answer
"""


class StoredModels(TypedDict):
    """What lies in a host's models' directory that we put there, in bytes; and what its servers name."""

    stored: dict[str, int]
    named: set[str]


class ModelStore(FactBase[StoredModels]):
    """
    Returns the model files, and what is left of broken ones, that ``fetch.sh`` put into a directory.

    A file without its stamp is somebody else's. ``named`` are the folders, twelve digits each, of what the servers
    have that a switch could go back to: JSON may write the rest of a path in another way than the file system.
    """

    def command(self, models_dir: str, prefix: str) -> StringCommand:
        """One command for all of them."""
        return StringCommand("sh -c", QuoteString(STORED), "look", QuoteString(models_dir), QuoteString(prefix))

    def process(self, output: list[str]) -> StoredModels:
        """A line a file."""
        lines = [line.partition("=") for line in output]
        sizes = [value.partition(" ") for kind, _, value in lines if kind == "stored"]
        ours = re.compile(r".*/[0-9a-f]{12}/[^/]+")
        return StoredModels(
            stored={path: int(size) for size, _, path in sizes if ours.fullmatch(path)},
            named={value for kind, _, value in lines if kind == "named"},
        )
