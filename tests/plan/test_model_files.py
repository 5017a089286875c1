"""Model files against a real web server that misbehaves, through pyinfra and the real curl."""

import hashlib
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from pyinfra.api import HiddenValue

from beeyard import onhost
from beeyard.operations import model_files
from beeyard.operations.sent import HereFile
from tests.operations import Failed
from tests.plan.conftest import Apply

FETCH = str(Path(onhost.__file__).parent / "fetch.sh")
CONTENT = bytes(range(256)) * 4096
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Handler(BaseHTTPRequestHandler):
    """Serves CONTENT with ranges; ``faults`` are taken one a request."""

    requests: ClassVar[list[tuple[str | None, str | None]]] = []
    faults: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        Handler.requests.append((wanted, self.headers.get("Authorization")))
        fault = Handler.faults.pop(0) if Handler.faults else ""
        if fault.isdigit():
            self.send_error(int(fault))
            return
        if fault == "html":
            self._send(200, b"<!DOCTYPE html><title>Sign in</title>" + b" " * len(CONTENT))
            return
        if fault == "no-range":
            wanted = None
        start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted else 0
        if start >= len(CONTENT):
            self.send_error(416)
            return
        body = CONTENT[start:]
        if fault == "slow":
            time.sleep(3.5)
        if fault == "flip":
            body = bytes([body[0] ^ 1]) + body[1:]
        self._send(206 if wanted else 200, body, cut=len(body) // 2 if fault == "cut" else None, start=start)

    def _send(self, status: int, body: bytes, cut: int | None = None, start: int = 0) -> None:
        self.send_response(status)
        if status == 206:
            self.send_header("Content-Range", f"bytes {start}-{len(CONTENT) - 1}/{len(CONTENT)}")
        if body.startswith(b"<"):
            self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[:cut])

    def log_message(self, *args: Any) -> None: ...


@pytest.fixture
def url() -> Iterator[str]:
    Handler.requests.clear()
    Handler.faults.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/model.gguf"
    server.shutdown()


@pytest.fixture
def wanted(url: str, tmp_path: Path) -> dict[str, Any]:
    path = str(tmp_path / "my models" / "m.gguf")
    return {"path": path, "url": url, "size": len(CONTENT), "sha256": SHA256, "fetch": FETCH}


def test_it_downloads_then_leaves_alone(apply: Apply, wanted: dict[str, Any]) -> None:
    assert apply(model_files.from_url, **wanted) == 1
    assert Path(wanted["path"]).read_bytes() == CONTENT
    assert apply(model_files.from_url, **wanted) == 0
    assert len(Handler.requests) == 1


@pytest.mark.parametrize("faults", [["cut"], ["503", "cut", "503"], ["cut", "no-range"]])
def test_it_gets_over_a_bad_network(apply: Apply, wanted: dict[str, Any], faults: list[str]) -> None:
    Handler.faults[:] = faults
    assert apply(model_files.from_url, **wanted) == 1
    assert Path(wanted["path"]).read_bytes() == CONTENT


def test_it_resumes_what_an_earlier_run_left(apply: Apply, wanted: dict[str, Any]) -> None:
    partial = Path(f"{wanted['path']}.partial")
    partial.parent.mkdir()
    partial.write_bytes(CONTENT[:1000])
    assert apply(model_files.from_url, **wanted) == 1
    assert Handler.requests == [("bytes=1000-", None)]


def test_it_uses_a_whole_partial_without_asking_again(apply: Apply, wanted: dict[str, Any]) -> None:
    partial = Path(f"{wanted['path']}.partial")
    partial.parent.mkdir()
    partial.write_bytes(CONTENT)
    assert apply(model_files.from_url, **wanted) == 1
    assert Handler.requests == []


@pytest.mark.parametrize(
    ("faults", "complaint"),
    [
        (["flip", "flip"], "twice what was fetched has"),
        (["html"], "answers with a web page"),
        (["401"], "answers 401: it wants a token"),
        (["403"], "answers 403: access is not granted"),
        (["404"], "answers 404: there is no such file"),
    ],
)
def test_a_wrong_file_is_never_kept(
    apply: Apply, wanted: dict[str, Any], faults: list[str], complaint: str, capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    Handler.faults[:] = faults
    with pytest.raises(Failed):
        apply(model_files.from_url, **wanted)
    said = capfd.readouterr().err + caplog.text
    assert complaint in said
    assert "Fix: " in said
    assert not Path(wanted["path"]).exists()
    assert not Path(f"{wanted['path']}.partial").exists()


def test_a_download_that_ends_too_early_is_kept_to_be_resumed(
    apply: Apply, wanted: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FETCH_PAUSE", "0")
    Handler.faults[:] = ["503"] * 5
    partial = Path(f"{wanted['path']}.partial")
    partial.parent.mkdir()
    partial.write_bytes(CONTENT[:5000])
    with pytest.raises(Failed):
        apply(model_files.from_url, **wanted)
    assert partial.read_bytes() == CONTENT[:5000]
    Handler.faults.clear()
    assert apply(model_files.from_url, **wanted) == 1
    assert Path(wanted["path"]).read_bytes() == CONTENT


@pytest.mark.parametrize("fault", ["html", "no-range"])
def test_one_strange_answer_throws_away_nothing_of_what_came_before(
    apply: Apply, wanted: dict[str, Any], fault: str
) -> None:
    partial = Path(f"{wanted['path']}.partial")
    partial.parent.mkdir()
    partial.write_bytes(CONTENT[:5000])
    Handler.faults[:] = [fault]
    if fault == "html":  # a portal that wants a login wants it again the next time
        with pytest.raises(Failed):
            apply(model_files.from_url, **wanted)
        assert partial.read_bytes() == CONTENT[:5000]
    assert apply(model_files.from_url, **wanted) == 1
    assert [asked for asked, _ in Handler.requests] == ["bytes=5000-"] * 2


@pytest.mark.parametrize("left", [CONTENT[:100], b"<html>Log in.</html>", b"!" * len(CONTENT)])
def test_nothing_wrong_stays_in_its_place_when_it_cannot_be_fetched(
    apply: Apply, wanted: dict[str, Any], left: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FETCH_PAUSE", "0")
    path = Path(wanted["path"])
    path.parent.mkdir()
    path.write_bytes(left)
    Handler.faults[:] = ["503"] * 5
    with pytest.raises(Failed):
        apply(model_files.from_url, **wanted)
    assert not path.exists()
    assert apply(model_files.from_url, **wanted) == 1
    assert path.read_bytes() == CONTENT


@pytest.mark.parametrize("damage", ["flip", "truncate", "touch"])
def test_a_file_that_changed_is_looked_at_again(apply: Apply, wanted: dict[str, Any], damage: str) -> None:
    apply(model_files.from_url, **wanted)
    path = Path(wanted["path"])
    if damage == "touch":
        path.touch()
    else:
        path.write_bytes(CONTENT[:-1] + b"!" if damage == "flip" else CONTENT[:100])
    assert apply(model_files.from_url, **wanted) == 1
    assert path.read_bytes() == CONTENT
    assert len(Handler.requests) == (1 if damage == "touch" else 2)
    assert apply(model_files.from_url, **wanted) == 0


def test_a_token_with_anything_in_it_reaches_the_hub_and_no_file(
    apply: Apply, wanted: dict[str, Any], tmp_path: Path
) -> None:
    token = 'hf_"q\\$HOME%p x'
    apply(model_files.from_url, **wanted, token=HiddenValue(token))
    assert Handler.requests == [(None, f"Bearer {token}")]
    assert not any(token in file.read_text("latin-1") for file in tmp_path.rglob("*") if file.is_file())


def test_how_far_it_is_can_be_seen_while_it_runs(
    apply: Apply, wanted: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    for folder in ("bin", "log"):
        (tmp_path / folder).mkdir()
    fetch = shutil.copy(FETCH, tmp_path / "bin")
    monkeypatch.setenv("FETCH_EVERY", "2")
    Handler.faults[:] = ["slow"]
    with caplog.at_level("INFO", logger="pyinfra"):
        assert apply(model_files.from_url, **{**wanted, "fetch": str(fetch)}) == 1
    assert "m.gguf: 1 MB from http://127.0.0.1:" in caplog.text
    assert "m.gguf: 0 of 1 MB, 0 MB/s, unknown left" in caplog.text


def test_a_mirror_is_asked_first_and_never_gets_the_token(apply: Apply, wanted: dict[str, Any]) -> None:
    mirror = wanted["url"]
    apply(model_files.from_url, **{**wanted, "url": "http://127.0.0.1:9/"}, mirror=mirror, token=HiddenValue("hf_x"))
    assert Path(wanted["path"]).read_bytes() == CONTENT
    assert Handler.requests == [(None, None)]


def test_a_copy_is_sent_and_one_that_is_another_file_is_fetched_anew(
    apply: Apply, wanted: dict[str, Any], tmp_path: Path
) -> None:
    copy = tmp_path / "copy.gguf"
    copy.write_bytes(CONTENT)
    apply(model_files.from_url, **wanted, sent_from=HereFile(str(copy)))
    assert (Path(wanted["path"]).read_bytes(), Handler.requests) == (CONTENT, [])
    for other in (CONTENT[:-1] + b"!", CONTENT[:-1]):
        Path(wanted["path"]).unlink()
        Handler.requests.clear()
        copy.write_bytes(other)
        apply(model_files.from_url, **wanted, sent_from=HereFile(str(copy)))
        assert (Path(wanted["path"]).read_bytes(), len(Handler.requests)) == (CONTENT, 1)


def test_what_is_sent_goes_on_with_what_is_there(apply: Apply, wanted: dict[str, Any], tmp_path: Path) -> None:
    copy = tmp_path / "copy.gguf"
    copy.write_bytes(b"?" * 1000 + CONTENT[1000:])  # its start is not asked for
    path = Path(wanted["path"])
    path.parent.mkdir(exist_ok=True)
    path.with_name(f"{path.name}.partial").write_bytes(CONTENT[:1000])
    apply(model_files.from_url, **wanted, sent_from=HereFile(str(copy)))
    assert (path.read_bytes(), Handler.requests) == (CONTENT, [])


def test_the_port_that_sends_takes_its_secret_alone(apply: Apply, wanted: dict[str, Any], tmp_path: Path) -> None:
    fetch = tmp_path / "steals.sh"
    # As another user of the host could, who sees the address in the list of processes.
    fetch.write_text(
        '[ "$1" = look ] && exec echo absent\n'
        'curl --silent --output /dev/null --write-out "%{http_code}" "$2" >"$3.said"'
    )
    copy = tmp_path / "copy.gguf"
    copy.write_bytes(CONTENT)
    Path(wanted["path"]).parent.mkdir(exist_ok=True)
    del wanted["url"]
    apply(model_files.sent, source=HereFile(str(copy)), **{**wanted, "fetch": str(fetch)})
    assert Path(f"{wanted['path']}.said").read_text() == "401"


@pytest.mark.parametrize("faults", [["404"], ["flip", "flip"], ["html"]])
def test_a_mirror_that_has_it_not_or_wrong_is_gone_past(
    apply: Apply, wanted: dict[str, Any], faults: list[str]
) -> None:
    Handler.faults[:] = faults
    apply(model_files.from_url, **wanted, mirror=f"{wanted['url']}?mirror", token=HiddenValue("hf_x"))
    assert Path(wanted["path"]).read_bytes() == CONTENT
    assert Handler.requests[-1] == (None, "Bearer hf_x")


def test_two_at_once_fetch_once(wanted: dict[str, Any], url: str) -> None:
    command = ["sh", FETCH, "get", url, wanted["path"], str(len(CONTENT)), SHA256]
    runs = [subprocess.Popen(command, stdin=subprocess.DEVNULL) for _ in range(3)]
    assert [run.wait(30) for run in runs] == [0, 0, 0]
    assert len(Handler.requests) == 1


def test_a_file_from_here_is_checked_like_any_other(apply: Apply, tmp_path: Path) -> None:
    src = tmp_path / "here.gguf"
    src.write_bytes(CONTENT)
    wanted = {"path": f"{tmp_path}/there/m.gguf", "source": HereFile(str(src)), "size": len(CONTENT), "fetch": FETCH}
    src.chmod(0o600)
    assert apply(model_files.sent, **wanted, sha256=SHA256) > 0
    assert Path(str(wanted["path"])).stat().st_mode & 0o044 == 0o044, "the server is another user"
    assert apply(model_files.sent, **wanted, sha256=SHA256) == 0
    src.write_bytes(CONTENT[:-1] + b"!")
    with pytest.raises(Failed):
        apply(model_files.sent, **{**wanted, "path": f"{tmp_path}/there/n.gguf"}, sha256=SHA256)
    assert not (tmp_path / "there" / "n.gguf").exists()
