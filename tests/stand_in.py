"""A stand-in of llama-server that misbehaves on purpose, one way or several; told none, it behaves."""

import json
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKENS = 24
PROMPT_TOKENS = 20
TOKEN_S = 0.001
PREFILL_S = 0.004
SLOW_FIRST_S = 0.6
PROXY_S = 0.2  # for a hundred


@dataclass
class Stand:
    """What it does, and what it was asked. ``modes`` are the ways in which it misbehaves."""

    modes: set[str] = field(default_factory=set)
    key: str | None = None
    url: str = ""
    asked: list[dict[str, Any]] = field(default_factory=list)
    keys: set[str | None] = field(default_factory=set)
    process: str = "<__media_first__>"
    decoded: int = 0
    drafts: int = 0
    accepted: list[int] = field(default_factory=lambda: [0, 0, 0])
    # How many answers still get the modes; None: all.
    times: int | None = None

    def does(self, mode: str) -> bool:
        return mode in self.modes

    def restart(self) -> None:
        self.process = f"<__media_{secrets.token_hex(8)}__>"
        self.decoded, self.drafts, self.accepted = 0, 0, [0, 0, 0]


class _Handler(BaseHTTPRequestHandler):
    stand: Stand
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _send(self, status: int, body: bytes, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _is_let_in(self) -> bool:
        given = self.headers.get("Authorization")
        self.stand.keys.add(given)
        if self.stand.key is None or given == f"Bearer {self.stand.key}":
            return True
        self._send(401, b'{"error":{"message":"Invalid API Key","code":401}}')
        return False

    def do_GET(self) -> None:
        stand = self.stand
        if self.path == "/health":
            status = 503 if stand.does("loading") else 524 if stand.does("524 health") else 200
            self._send(status, b'{"status":"ok"}')
        elif not self._is_let_in():
            return
        elif self.path == "/props":
            known = {} if stand.does("old") else {"media_marker": stand.process}
            settings = {"default_generation_settings": {"n_ctx": 4096}}
            said = {"build_info": "b1-stand", "total_slots": 1, "model_path": "/home/me/models/a.gguf", **known}
            self._send(200, json.dumps({**said, **settings, "chat_template": "x" * 100}).encode())
        elif self.path == "/metrics" and not stand.does("no metrics"):
            self._send(200, self._metrics().encode(), "text/plain")
        elif self.path == "/slots":
            self._send(200, json.dumps([{"id": 0, "id_task": len(stand.asked)}]).encode())
        else:
            self._send(501, b'{"error":{"message":"This server does not support it","code":501}}')

    def _metrics(self) -> str:
        stand = self.stand
        lines = ["# TYPE llamacpp:tokens_predicted_total counter", f"llamacpp:tokens_predicted_total {stand.decoded}"]
        if not stand.does("no draft counters"):
            lines.append(f"llamacpp:spec_decode_num_drafts_total {stand.drafts}")
            lines += [
                f'llamacpp:spec_decode_num_accepted_tokens_per_pos_total{{position="{place}"}} {count}'
                for place, count in enumerate(stand.accepted)
            ]
        return "\n".join(lines) + "\n"

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self._is_let_in():
            return
        stand = self.stand
        if self.path == "/tokenize":
            self._send(200, json.dumps({"tokens": list(range(len(body["content"].split())))}).encode())
            return
        stand.asked.append(body)
        modes = set(stand.modes)
        if stand.times is not None:
            stand.times -= 1
            if stand.times < 0:
                modes -= {"loading chat", "crash", "slow first", "restart"}
        if "slow first" in modes and len(stand.asked) == 1:
            time.sleep(SLOW_FIRST_S)
        if "loading chat" in modes:
            self._send(503, b'{"error":{"message":"Loading model","type":"unavailable_error","code":503}}')
        elif proxy := {"502", "504", "524"} & modes:
            time.sleep(PROXY_S)
            self._send(int(proxy.pop()), b"<html>error code: 524</html>", "text/html")
        elif "early 200" in modes:
            self._send(200, b'{"status":"ok"}')
        elif "html" in modes:
            self._send(200, b"<html>Welcome to nginx!</html>", "text/html")
        else:
            self._answer(modes)

    def _answer(self, modes: set[str]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            for event in _events(self.stand, modes):
                self.wfile.write(b"%x\r\n%b\r\n" % (len(event), event))
                self.wfile.flush()
            self.wfile.write(b"0\r\n\r\n")
        except _Crash:
            self.close_connection = True
            self.connection.close()


class _Crash(Exception):
    pass


def _event(chunk: object) -> bytes:
    return f"data: {json.dumps(chunk)}\n\n".encode()


def _delta(text: str | None, finish: str | None = None) -> bytes:
    delta = {} if text is None else {"content": text}
    return _event({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})


def _events(stand: Stand, modes: set[str]) -> Iterator[bytes]:
    began = time.perf_counter()
    time.sleep(PREFILL_S)
    first = time.perf_counter()
    yield _event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": None}, "finish_reason": None}]})
    words = ["/"] * TOKENS if "stuck" in modes else [f"word{number} " for number in range(TOKENS)]
    for number, word in enumerate([] if "empty" in modes else words):
        if number == TOKENS // 2:
            if "crash" in modes:
                raise _Crash
            if "garbage" in modes:
                yield b"data: {not json\n\n"
            if "error" in modes:
                yield _event({"error": {"code": 500, "message": "Compute error."}})
                return
            if "ends early" in modes:
                return
        time.sleep(TOKEN_S)
        if "comments" in modes:
            yield b": ping\r\n\r\n"
        yield _delta(word)
    if "restart" in modes:
        stand.restart()
    stand.decoded += TOKENS * (2 if "company" in modes else 1)
    stand.drafts += 10
    stand.accepted = [count + more for count, more in zip(stand.accepted, (9, 7, 4), strict=True)]
    yield _delta(None, "length")
    last = _event(_last(modes, first - began, time.perf_counter() - first))
    # In two pieces, as a network may have it.
    yield last[:20]
    yield last[20:]
    if "no done" not in modes:
        yield b"data: [DONE]\n\n"


def _last(modes: set[str], prefill_s: float, decode_s: float) -> dict[str, Any]:
    count = 0 if "zero tokens" in modes else TOKENS
    decode_ms = decode_s * 1000 * (50 if "wrong clock" in modes else 1)
    timings: dict[str, Any] = {
        "cache_n": 12 if "cached" in modes else 0, "prompt_n": PROMPT_TOKENS, "prompt_ms": prefill_s * 1000,
        "prompt_per_second": PROMPT_TOKENS / prefill_s, "predicted_n": count, "predicted_ms": decode_ms,
        "predicted_per_second": 0 if "zero rate" in modes else count / decode_ms * 1000,
    }  # fmt: skip
    if "no drafts" not in modes:
        timings |= {"draft_n": 30, "draft_n_accepted": 20}
    if "no rate" in modes:
        del timings["predicted_per_second"]
    if "null rate" in modes:
        timings["predicted_per_second"] = None
    usage = {"completion_tokens": count, "prompt_tokens": PROMPT_TOKENS, "total_tokens": PROMPT_TOKENS + count}
    return {"choices": [], "usage": usage, **({} if "no timings" in modes else {"timings": timings})}


@contextmanager
def stand_in(*modes: str, key: str | None = None, times: int | None = None) -> Iterator[Stand]:
    """One on a free port of loopback, until it is left."""
    stand = Stand(modes=set(modes), key=key, times=times)
    handler = type("Handler", (_Handler,), {"stand": stand})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    stand.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield stand
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
