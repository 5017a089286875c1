"""Facts about downloaded model files."""

from pyinfra.api import FactBase, FactProcessError, QuoteString, StringCommand

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

    ``verified`` rests on the stamp that ``fetch.sh`` leaves (hash, size, times, inode), so that 20 GB are not
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
        except ValueError as error:
            raise FactProcessError(f"unexpected model file states: {output!r}") from error
