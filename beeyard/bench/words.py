"""Text of a record for a report: what a server or a file says may hold anything. Pure."""

import re
import unicodedata

# Where Markdown reads something into a character; entities are read as the character itself.
_MARKED = re.compile(r"([\\`*_{}\[\]()#+!|~$])")


def plain(text: str, limit: int | None = None) -> str:
    """
    One line without control characters, or those that turn the direction of writing.

    :param limit: the most characters; what is cut off ends in an ellipsis
    """
    kept = "".join(
        "\ufffd" if unicodedata.category(one) in ("Cc", "Cf", "Cs") else one for one in " ".join(text.split())
    )
    return kept if limit is None or len(kept) <= limit else kept[: limit - 1] + "…"


def marked(text: str) -> str:
    """For Markdown: nothing in it is a mark, a tag, a table's bar or somebody's name."""
    safe = plain(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _MARKED.sub(r"\\\1", safe).replace("@", "@\u2060")
