"""
One llama-server over HTTP: ask it a thing with a clock beside it, and look at it before and after.

Nothing is parsed while the clock runs: what arrives is kept with its time, and read once the answer has ended. What
is wrong with an answer becomes a sentence, never an exception; a server that cannot be asked at all is a BenchError.
"""

import json
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import httpx

from beeyard.catalog import CatalogError
from beeyard.trust import trusted

CHAT = "/v1/chat/completions"
# Bytes of one answer; more is no answer that was asked for.
LONGEST_ANSWER = 64 * 2**20
POLL_S = 0.25
# Characters: shorter ones may well be one character over and over.
SHORT_TEXT = 16
# How far the server's own times may exceed ours, which include them.
CLOCK_SLACK, CLOCK_SLACK_MS = 1.05, 20.0
STARTED_ANEW = (
    "the server was started anew while it was measured. Fix: look at its log for why it ended, as out of memory, and "
    "measure again"
)
# What a gateway in front of a server answers when that takes too long for it; 524 is Cloudflare's, as at a pod's
# address, after 100 s without a byte.
PROXY_TIMEOUTS = (502, 504, 524)
PROXIES = (".proxy.runpod.net",)
TUNNEL = "measure past it: an inventory's host, which is reached by SSH, or --url http://127.0.0.1:8910 on the host"
# What an answer's timings must say for it to count.
TIMINGS = ("prompt_n", "prompt_ms", "predicted_n", "predicted_ms", "predicted_per_second")
METRIC = re.compile(r'^llamacpp:(\w+)(?:\{position="(\d+)"\})? (\S+)$', re.MULTILINE)


class BenchError(CatalogError):
    """Why a server cannot be measured. Its text is one sentence that ends in ``Fix: …``."""


class Patience(NamedTuple):
    """
    How long is waited, in seconds.

    To connect; for the next byte, as a long prompt is read in silence; for a whole answer; for a model to load; for a
    server that went away to come back, as its keeper starts it again.
    """

    connect_s: float = 10
    silence_s: float = 600
    answer_s: float = 3600
    load_s: float = 900
    return_s: float = 60


class Look(NamedTuple):
    """
    The server between two requests, as far as it says; None and empty text are what it does not.

    ``process`` is a word that llama-server draws at its start, so another one is another process. The others only
    grow while it lives: ``decoded`` tokens, ``task`` numbers, ``drafts`` asked of the drafter, tokens of its that
    were accepted ``per_position``.
    """

    process: str = ""
    build: str = ""
    decoded: int | None = None
    task: int | None = None
    drafts: int | None = None
    per_position: tuple[int, ...] | None = None

    def is_same_process_as(self, later: "Look") -> bool:
        """Whether nothing speaks against it that the process lived on."""
        if self.process and later.process and self.process != later.process:
            return False
        pairs = [(self.decoded, later.decoded), (self.task, later.task), (self.drafts, later.drafts)]
        return all(before is None or after is None or before <= after for before, after in pairs)


@dataclass(frozen=True)
class Answer:
    """
    What came of a request. Seconds count from the moment it was sent; ``fault`` says what is wrong with it.

    ``first_s`` is the first text, ``end_s`` the piece that ends the answer, ``wall_s`` the end of the connection.
    """

    text: str = ""
    pieces: int = 0
    finish_reason: str | None = None
    timings: Mapping[str, Any] = field(default_factory=dict)
    usage: Mapping[str, Any] = field(default_factory=dict)
    first_s: float | None = None
    end_s: float | None = None
    wall_s: float = 0.0
    gaps_s: tuple[float, ...] = ()
    fault: str | None = None
    # Whether the server says that it is not ready yet.
    is_loading: bool = False


def proxy_note(url: str) -> str | None:
    """A sentence where an address is that of a pod's proxy, whose time limit and way would be measured, too."""
    found = re.match(r"https?://([^/:]+)", url)
    if found is None or not found[1].endswith(PROXIES):
        return None
    name = found[1]
    return (
        f"{name} is a proxy in front of the pod, which gives up after some 100 s without a byte, and whose way "
        f"counts into every time to the first token. Fix: {TUNNEL}"
    )


def _proxy_fault(status: int, after_s: float) -> str:
    return (
        f"a proxy in front of the server answered {status} after {after_s:.0f} s: its own time limit, the server may "
        f"be fine. Fix: {TUNNEL}"
    )


def read_key(file: Path) -> str:
    """
    The first key of a key file, as llama-server reads it.

    :raises BenchError: the file cannot be read or holds no key. Its content is not shown.
    """
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not text"
        raise BenchError(f"{file}: {reason}. Fix: deploy first, or name the key with --key-file") from error
    for line in lines:
        if line and not line.startswith("#"):
            if not line.isascii() or not line.isprintable():
                raise BenchError(f"{file} holds what is no key. Fix: name the server's key with --key-file")
            return line
    raise BenchError(f"{file} holds no key. Fix: deploy again, or name another with --key-file")


def root_of(url: str) -> str:
    """The server's address, of which clients are often given the path of its API."""
    return url.rstrip("/").removesuffix("/v1")


def http_client(url: str, key: str | None, silence_s: float, connect_s: float) -> httpx.Client:
    """
    What asks a llama-server: by no proxy of the environment, and on a connection for each request.

    llama-server closes a kept one now and then just as the next request goes out.
    """
    return httpx.Client(
        base_url=url, headers={"Authorization": f"Bearer {key}"} if key else {}, trust_env=False,
        verify=trusted(url), timeout=httpx.Timeout(silence_s, connect=connect_s),
        limits=httpx.Limits(max_keepalive_connections=0),
    )  # fmt: skip


class Server:
    """A llama-server by its address. Proxies of the environment are not used; the key goes into no text of ours."""

    def __init__(self, url: str, key: str | None = None, patience: Patience | None = None) -> None:
        if not re.match(r"https?://[^/]", url):
            raise BenchError(f"{url!r} is no address of a server. Fix: write it as http://127.0.0.1:8910")
        if "@" in httpx.URL(url).netloc.decode() or httpx.URL(url).userinfo:
            raise BenchError("the address holds a user's name. Fix: name the key's file with --key-file instead")
        self.url = root_of(url)
        self.patience = patience or Patience()
        self._http = http_client(self.url, key, self.patience.silence_s, self.patience.connect_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    # --- what it says of itself ---------------------------------------------------------------------

    def await_ready(self) -> None:
        """
        Wait until it says that its model is loaded.

        :raises BenchError: nothing answers there, it asks for another key, or it is not ready in time.
        """
        deadline = time.monotonic() + self.patience.load_s
        while True:
            began = time.monotonic()
            try:
                status = self._http.get("/health", timeout=self.patience.connect_s).status_code
            except httpx.HTTPError as error:
                raise BenchError(
                    f"{self.url} does not answer ({_reason(error)}). Fix: deploy, or name another --url"
                ) from error
            if status == 200:
                break
            if status in PROXY_TIMEOUTS:
                raise BenchError(f"{self.url}/health: {_proxy_fault(status, time.monotonic() - began)}")
            if status != 503:
                raise BenchError(f"{self.url}/health answers {status}. Fix: name the --url of a llama-server")
            if time.monotonic() > deadline:
                raise BenchError(
                    f"{self.url} has been loading its model for {self.patience.load_s:.0f} s. Fix: look at its log"
                )
            time.sleep(POLL_S)
        if self._get("/props").status_code in (401, 403):
            raise BenchError(f"{self.url} wants another API key. Fix: name its key's file with --key-file")

    def props(self) -> dict[str, Any]:
        """What it says of itself, without its chat template; of its model's path only the file's name."""
        found = _table(self._get("/props"))
        settings = found.get("default_generation_settings") or {}
        names = ("total_slots", "model_alias", "build_info")
        said: dict[str, Any] = {name: found[name] for name in names if name in found}
        if isinstance(settings, dict) and "n_ctx" in settings:
            said["n_ctx"] = settings["n_ctx"]
        for name in ("model_alias", "model_path"):
            if isinstance(found.get(name), str):
                said[name] = re.split(r"[/\\]", found[name])[-1]
        return said

    def look(self) -> Look:
        """
        How far it is.

        :raises BenchError: it does not answer any more.
        """
        props, metrics, slots = self._get("/props"), self._get("/metrics"), self._get("/slots")
        said = _table(props)
        counters: dict[str, int] = {}
        positions: dict[int, int] = {}
        for name, position, value in METRIC.findall(metrics.text if metrics.status_code == 200 else ""):
            try:
                number = int(float(value))
            except (ValueError, OverflowError):
                continue
            if position:
                positions[int(position)] = number
            else:
                counters[name] = number
        tasks = [slot.get("id_task") for slot in _list(slots) if isinstance(slot, dict)]
        numbers = [task for task in tasks if isinstance(task, int)]
        return Look(
            process=str(said.get("media_marker", "")),
            build=str(said.get("build_info", "")),
            decoded=counters.get("tokens_predicted_total"),
            task=max(numbers) if numbers else None,
            drafts=counters.get("spec_decode_num_drafts_total"),
            per_position=tuple(positions[place] for place in sorted(positions)) or None,
        )

    def count_tokens(self, text: str) -> int:
        """
        The tokens of a text.

        :raises BenchError: it does not say.
        """
        try:
            tokens = self._http.post("/tokenize", json={"content": text}).json()["tokens"]
            return len(tokens)
        except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
            raise BenchError(
                f"{self.url}/tokenize does not count tokens ({_reason(error)}). Fix: leave out the workloads that "
                "are sized by it, as --workload guide does"
            ) from error

    def _get(self, path: str) -> httpx.Response:
        try:
            return self._http.get(path, timeout=30)
        except httpx.HTTPError as error:
            raise BenchError(
                f"{self.url} answers no longer ({_reason(error)}). Fix: look at its log for why it ended"
            ) from error

    # --- one request --------------------------------------------------------------------------------

    def ask(self, body: Mapping[str, Any]) -> Answer:
        """Send a chat request as a stream, and keep time. Whatever happens to it is in the answer's ``fault``."""
        asked = {
            **body, "stream": True, "cache_prompt": False, "stream_options": {"include_usage": True},
        }  # fmt: skip
        content = json.dumps(asked).encode()
        headers = {"Content-Type": "application/json", "Accept": "text/event-stream", "Accept-Encoding": "identity"}
        came: list[tuple[float, bytes]] = []
        status, fault, size = 0, None, 0
        sent = time.perf_counter()
        try:
            with self._http.stream("POST", CHAT, content=content, headers=headers) as response:
                status = response.status_code
                for piece in response.iter_raw():
                    now = time.perf_counter() - sent
                    came.append((now, piece))
                    size += len(piece)
                    if size > LONGEST_ANSWER or now > self.patience.answer_s:
                        fault = (
                            f"the answer had not ended after {now:.0f} s and {size} bytes. "
                            "Fix: ask for fewer tokens, or look whether the server is still itself"
                        )
                        break
        except httpx.TimeoutException:
            fault = (
                f"the server said nothing for {self.patience.silence_s:.0f} s. "
                "Fix: look whether it still computes, and how long it takes for a prompt"
            )
        except httpx.HTTPError as error:
            cut = f"the stream was cut after {size} bytes" if came else "the connection was lost before any answer"
            fault = f"{cut} ({_reason(error)}). Fix: look at the server's log for why it ended"
        return _read(came, time.perf_counter() - sent, status, fault)


def fault_of(answer: Answer, before: Look, after: Look | None) -> str | None:
    """
    Why an answer must not go into any figure, or None.

    :param after: None where the server did not answer any more
    """
    if after is None:
        return answer.fault or "the server was gone after it. Fix: look at its log for why it ended"
    if not before.is_same_process_as(after):
        return STARTED_ANEW
    if answer.fault:
        return answer.fault
    return _timing_fault(answer) or _text_fault(answer) or _company_fault(answer, before, after)


def _timing_fault(answer: Answer) -> str | None:
    timings = answer.timings
    if not timings:
        return "the answer has no timings. Fix: measure a llama-server itself, not a gateway in front of it"
    wrong = [name for name in TIMINGS if not is_amount(timings.get(name))]
    if wrong:
        return f"its timings have no {wrong[0]}. Fix: measure with a llama-server that says it"
    if timings.get("cache_n"):
        return (
            f"{timings['cache_n']} tokens of its prompt came from a cache. Fix: see that nothing in front of the "
            "server drops cache_prompt, and start the server with --cache-ram 0"
        )
    if timings["predicted_n"] < 2:
        return f"it has {timings['predicted_n']} tokens, too few for a rate. Fix: see why the model ends at once"
    return _clock_fault(answer)


def _clock_fault(answer: Answer) -> str | None:
    timings = answer.timings
    zero = [name for name in TIMINGS if timings[name] <= 0]
    if zero:
        return f"its timings say 0 for {zero[0]}. Fix: measure with a llama-server that keeps time"
    claimed, ours = timings["prompt_ms"] + timings["predicted_ms"], answer.wall_s * 1000
    if claimed > ours * CLOCK_SLACK + CLOCK_SLACK_MS:
        return (
            f"its timings say {claimed:.0f} ms and the whole request took {ours:.0f} ms. "
            "Fix: trust no figure of this server; another build of it may be right"
        )
    return None


def _text_fault(answer: Answer) -> str | None:
    text = answer.text.strip()
    if not text:
        return "its text is empty. Fix: see why the model says nothing, as with `beeyard ask`"
    if len(text) >= SHORT_TEXT and len(set(text)) == 1:
        return (
            f"its text is {text[0]!r} over and over, so the engine computes nonsense. "
            "Fix: take another engine with llama_engine, or another draft model"
        )
    return None


def _company_fault(answer: Answer, before: Look, after: Look) -> str | None:
    if before.decoded is None or after.decoded is None:
        return None
    others = after.decoded - before.decoded - int(answer.timings["predicted_n"])
    if others <= 0:
        return None
    return (
        f"the server decoded {others} tokens for somebody else meanwhile. "
        "Fix: measure while nobody uses it, with one slot"
    )


def is_amount(value: object) -> bool:
    """Whether something is a number, finite and not negative."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < float("inf")


# --- reading a stream -------------------------------------------------------------------------------


def _events(came: list[tuple[float, bytes]]) -> Iterator[tuple[float, bytes]]:
    """Server-sent events: the data of each, with the time at which it was whole. Comments and other fields go."""
    rest, data = b"", []
    for now, piece in came:
        *lines, rest = (rest + piece).split(b"\n")
        for raw in lines:
            line = raw.removesuffix(b"\r")
            if line.startswith(b"data:"):
                data.append(line.removeprefix(b"data:").removeprefix(b" "))
            elif line.startswith(b"error:"):  # as llama-server of early 2026 says it
                data.append(b'{"error":' + line.removeprefix(b"error:") + b"}")
            elif not line and data:
                yield now, b"\n".join(data)
                data = []


def _read(came: list[tuple[float, bytes]], wall_s: float, status: int, fault: str | None) -> Answer:
    if status in PROXY_TIMEOUTS:
        return Answer(wall_s=wall_s, fault=_proxy_fault(status, wall_s))
    if status not in (0, 200):
        said = _excerpt(b"".join(data for _, data in came))
        return Answer(
            wall_s=wall_s,
            is_loading=status == 503,
            fault=f"the server answered {status}: {said}. Fix: do what that says, or look at its log",
        )
    text: list[str] = []
    times: list[float] = []
    finish_reason, end_s, is_done = None, None, False
    timings: Mapping[str, Any] = {}
    usage: Mapping[str, Any] = {}
    for now, data in _events(came):
        if data == b"[DONE]":
            is_done = True
            continue
        try:
            chunk = json.loads(data)
            if "error" in chunk:
                error = chunk["error"].get("message") if isinstance(chunk["error"], dict) else chunk["error"]
                fault = f"the server broke off: {_excerpt(str(error).encode())}. Fix: look at its log"
                break
            timings, usage = chunk.get("timings") or timings, chunk.get("usage") or usage
            for choice in chunk.get("choices") or ():
                delta = choice.get("delta") or {}
                piece = (delta.get("reasoning_content") or "") + (delta.get("content") or "")
                if piece:
                    text.append(piece)
                    times.append(now)
                if choice.get("finish_reason"):
                    finish_reason, end_s = str(choice["finish_reason"]), now
        except (ValueError, TypeError, AttributeError):
            fault = fault or (
                f"the stream holds what is no chat answer: {_excerpt(data)}. Fix: name the --url of a llama-server"
            )
            break
    if fault is None and not times and finish_reason is None:
        said = _excerpt(b"".join(data for _, data in came))
        fault = f"the answer is no stream of a chat: {said}. Fix: name the --url of a llama-server"
    elif fault is None and (finish_reason is None or not is_done):
        fault = (
            f"the stream was cut after {len(times)} pieces of text. Fix: look at the server's log for why it ended"
        )
    return Answer(
        text="".join(text), pieces=len(times), finish_reason=finish_reason, timings=timings, usage=usage,
        first_s=times[0] if times else None, end_s=end_s, wall_s=wall_s,
        gaps_s=tuple(later - sooner for sooner, later in pairwise(times)), fault=fault,
    )  # fmt: skip


def _excerpt(data: bytes) -> str:
    text = " ".join(re.sub(r"[^\x20-\x7e]", " ", data[:400].decode("utf-8", "replace")).split())
    return repr(text[:120] + ("…" if len(text) > 120 else "")) if text else "nothing"


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__


def _table(response: httpx.Response) -> dict[str, Any]:
    found = _json(response)
    return found if isinstance(found, dict) else {}


def _list(response: httpx.Response) -> list[Any]:
    found = _json(response)
    return found if isinstance(found, list) else []


def _json(response: httpx.Response) -> object:
    try:
        return response.json() if response.status_code == 200 else None
    except ValueError:
        return None
