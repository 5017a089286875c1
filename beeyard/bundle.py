"""
The support bundle: what a stranger needs to help, in one file, and nothing that is nobody else's business. Pure.

Keys, tokens, addresses, names of machines and people are replaced by words that are the same wherever the same thing
stood. Of logs only lines are kept that llama-server or its libraries write themselves: no prompt is among them.
"""

import ipaddress
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from beeyard.catalog import Catalog
from beeyard.dialects import argv
from beeyard.doctor import Check
from beeyard.examination import Examined
from beeyard.survey import dump, solved

FORMAT = 1
# Shorter ones are words of other things, too.
SHORTEST = 3
PUBLIC_HOSTS = {"huggingface.co", "github.com", "127.0.0.1", "localhost"}
OPEN_ADDRESSES = {"0.0.0.0", "::", "::1"}  # noqa: S104
# Characters without - and _ that are no word of a name.
DRAWN = 16

_URL = re.compile(r"\b([a-z][a-z0-9+.-]*://)(?:[^/@\s\"']+@)?([^/:\s\"'<>]+)")
_TOKENS = re.compile(
    r"\b(hf_[A-Za-z0-9]{8,}|sk-[A-Za-z0-9_-]{8,}|gh[pousr]_[A-Za-z0-9]{16,}|xox[abp]-[A-Za-z0-9-]{8,})"
)
_IMAGE = re.compile(r"[\w.-]+(?::\d+)?/[\w./-]+(?=@sha256:)")
_BEARER = re.compile(r"(?i)\b(bearer|x-api-key:|--api-key[= ])\s*[^\s\"',]+")
_LONG = re.compile(r"[A-Za-z0-9_+=-]{32,}")
# Not the time that a line of the log begins with.
_IPV4 = re.compile(r"(?<![\d.])(?:\d{1,3}\.){3}\d{1,3}(?![\d.])(?! [DIWE] )")
_IPV6 = re.compile(r"(?<![\w:.])(?:[0-9A-Fa-f]{0,4}:){2,7}[0-9A-Fa-f]{0,4}(?![\w:])")
_MAC = re.compile(r"\b(?:[0-9a-f]{2}:){5}[0-9a-f]{2}\b", re.IGNORECASE)
_MAIL = re.compile(r"\b[\w.+-]+@[\w-]+\.[\w.-]+\b")
_CARD = re.compile(r"\b(?:GPU|MIG)-[0-9a-fA-F-]{8,}")
_HOME = re.compile(r"(/home|/Users)/([^/\s\"':]+)")

# 0.01.821.849 I srv …: llama-server's own lines, by --log-timestamps and --log-prefix; D is where prompts are.
_OWN_LINE = re.compile(r"^(?:\d+\.\d\d\.\d{3}\.\d{3} [IWE] +\S|[IWE] +(?:srv|slot|cmn|que|res|spec) )")
_LIBRARIES = re.compile(
    r"^(?:\S*llama-server: error while loading|ggml_|GGML_ASSERT|CUDA error|cuda|llama_|terminate called|"
    r"  what\(\):|Segmentation fault|Aborted|error: |warn: |no usable GPU|build: |system_info: |systemd\[)"
)
# What a request or an answer may stand in.
_SPEECH = re.compile(
    r"[{}]|\bprompt: ['\"]|\bcontent\b|\bmessages?\b\W*[:=]|request: |response: |\btext\b\W*[:=]|<\|"
)
LEFT_OUT = "<left out: it may hold what somebody wrote>"


class Redactor:
    """Replaces what is secret or personal; the same thing by the same word."""

    def __init__(self, secrets: Iterable[str], names: Mapping[str, str]) -> None:
        """
        Take what is known beforehand.

        :param secrets: keys and tokens
        :param names: what stands in place of each name of a machine, person or folder
        """
        known = {text: "<secret>" for text in secrets if len(text) >= SHORTEST}
        known |= {text: word for text, word in names.items() if len(text) >= SHORTEST}
        # The longest first: one may be part of another.
        self._known = sorted(known.items(), key=lambda pair: -len(pair[0]))
        self._words: dict[str, str] = {}

    def text(self, text: str) -> str:
        """The same, without it."""
        for found, word in self._known:
            edges = (r"(?<!\w)" if found[0].isalnum() else "", r"(?!\w)" if found[-1].isalnum() else "")
            text = re.sub(f"{edges[0]}{re.escape(found)}{edges[1]}", word.replace("\\", r"\\"), text)
        text = _BEARER.sub(r"\1 <secret>", text)
        text = _TOKENS.sub("<secret>", text)
        text = _URL.sub(self._url, text)
        text = _IMAGE.sub(lambda found: self._word("image", found[0]), text)
        text = _MAIL.sub(lambda found: self._word("mail", found[0]), text)
        text = _CARD.sub(lambda found: self._word("card", found[0]), text)
        text = _MAC.sub(lambda found: self._word("address", found[0]), text)
        text = _IPV4.sub(self._address, text)
        text = _IPV6.sub(self._address, text)
        text = _HOME.sub(r"\1/<user>", text)
        return _LONG.sub(self._long, text)

    def all(self, found: Any) -> Any:
        """The same of JSON: every text in it, keys of tables too."""
        if isinstance(found, str):
            return self.text(found)
        if isinstance(found, Mapping):
            return {self.text(str(key)): self.all(value) for key, value in found.items()}
        if isinstance(found, Sequence):
            return [self.all(value) for value in found]
        return found

    def _word(self, kind: str, text: str) -> str:
        count = sum(word.startswith(f"<{kind}-") for word in self._words.values())
        return self._words.setdefault(text, f"<{kind}-{count + 1}>")

    def _url(self, found: re.Match[str]) -> str:
        host = found[2]
        public = host in PUBLIC_HOSTS or host.startswith(("<", "127.")) or host in OPEN_ADDRESSES
        return found[1] + (host if public else self._word("host", host))

    def _address(self, found: re.Match[str]) -> str:
        text = found[0]
        try:
            address = ipaddress.ip_address(text)
        except ValueError:  # a time, a version
            return text
        return text if address.is_loopback or address.is_unspecified else self._word("address", text)

    def _long(self, found: re.Match[str]) -> str:
        """What looks drawn by lot; hashes and commits are hex digits alone, names have no such mixture."""
        text = found[0]
        if re.fullmatch(r"[0-9a-f]+", text):
            return text if len(text) in (40, 64) else "<secret>"
        # Names of files are words with - and _ between them.
        longest = max(re.split(r"[-_]", text), key=len)
        drawn = len(longest) >= DRAWN and all(re.search(pattern, longest) for pattern in (r"[a-z]", r"[A-Z]", r"\d"))
        return "<secret>" if drawn else text


def safe_lines(lines: Iterable[str]) -> list[str]:
    """A log's lines as far as they are the program's own; what is left out in a row is one line."""
    found: list[str] = []
    for line in lines:
        is_own = (_OWN_LINE.match(line) or _LIBRARIES.match(line)) and not _SPEECH.search(line)
        if is_own:
            found.append(line)
        elif not found or found[-1] != LEFT_OUT:
            found.append(LEFT_OUT)
    return found


def bundle(
    hosts: Sequence[Examined],
    checks: Mapping[str, Sequence[Check]],
    versions: Mapping[str, str],
    catalog: Catalog,
    redactor: Redactor,
) -> str:
    """
    The file's content.

    :param checks: by host, and those of this machine
    :param versions: of what runs here, by name
    """
    facts = json.loads(dump([host.survey for host in hosts]))
    found = {
        "beeyard_bundle": FORMAT,
        "versions": dict(versions),
        "checks": {name: [check.model_dump() for check in some] for name, some in checks.items()},
        "facts": facts,
        "servers": {host.survey.name: _server(host, catalog) for host in hosts},
    }
    return json.dumps(redactor.all(found), indent=1, ensure_ascii=False) + "\n"


def _server(host: Examined, catalog: Catalog) -> dict[str, Any]:
    spec = solved(host.survey, catalog).spec
    running = host.running
    # What the gate asks is ours, but nobody needs to read it here.
    server = {key: value for key, value in host.survey.server.items() if key != "gate"}
    return {
        "state": host.state,
        "server": server,
        "spec": spec.model_dump(mode="json", exclude={"gate"}) if spec else None,
        "wanted_argv": argv(spec) if spec else None,
        "unit": running.unit.splitlines(),
        "log": safe_lines(running.log),
        "engine_build": running.build,
        "python": running.python,
        "counters": running.counters,
        "restarts": running.restarts,
        "uptime_s": running.uptime_s,
        "space": running.space,
    }
