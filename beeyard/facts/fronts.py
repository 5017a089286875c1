"""Facts about the TLS port before a pod's server."""

from typing import TypedDict

from pyinfra.api import FactBase, QuoteString, StringCommand

from beeyard.facts.errors import not_understood

# answers AUTHORITY NAME PORT: whether TLS is spoken there with a certificate of that authority for that name.
# What the server behind it says is another matter: a 503 is an answer.
ANSWERS = r"""
answers() {
    case $2 in *:*) at="[$2]" ;; *) at=$2 ;; esac
    curl --silent --output /dev/null --max-time 5 --noproxy '*' --cacert "$1" --connect-to "::127.0.0.1:$3" \
        "https://$at:$3/health" 2>/dev/null
}
"""
LOOK = f"""
{ANSWERS}
[ ! -r "$1" ] || cat "$1"
if [ -r "$2" ] && answers "$2" "$3" "$4"; then echo answers; else echo silent; fi
"""


class FrontLook(TypedDict):
    """What a front was last seen serving with, and whether it answers now."""

    stamp: str
    answers: bool


class FrontState(FactBase[FrontLook]):
    """Returns ``{"stamp": "0a1b…", "answers": True}`` of the TLS port; an empty stamp where it never served."""

    def command(self, stamp: str, authority: str, certified: str, port: int) -> StringCommand:
        """One request of its own host, with the name that its clients use."""
        words = [QuoteString(word) for word in (stamp, authority, certified, str(port))]
        return StringCommand("sh -c", QuoteString(LOOK), "look", *words)

    def process(self, output: list[str]) -> FrontLook:
        """The stamp, if there is one, then a word."""
        match output:
            case [*before, "answers" | "silent" as word] if len(before) <= 1:
                return FrontLook(stamp="".join(before), answers=word == "answers")
        raise not_understood("its TLS port", repr(output))
