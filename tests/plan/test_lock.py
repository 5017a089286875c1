"""`beeyard lock` and a deploy that locks, against a small Hub and a forge that answers as GitHub's API does."""

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml

from beeyard.catalog import PROJECT
from tests.plan.conftest import COMMIT, CONTENT, free_port, model

TARBALL = b"a tarball" * 1000
SHA256 = hashlib.sha256(TARBALL).hexdigest()
OTHERS = f"# Ours.\nmodels:\n  other:  # kept\n    size: 1\n    sha256: {'a' * 64}\n"
ENGINE = {
    "title": "Bees", "dialect": "llama.cpp", "flags": "llama.cpp-b10068", "accelerator": "cpu", "commit": COMMIT,
    "repository": "https://github.com/bees/engine", "tag": "v1", "asset": "*-x64.tar.gz",
    "artefact": {"kind": "release"},
}  # fmt: skip
SERVER = {
    "model": "honey", "engine": "bees", "default_variant": "baseline", "settings": {"context": 4096},
    "variants": {"baseline": {"decoding": {"kind": "baseline"}}},
}  # fmt: skip


class Forge(BaseHTTPRequestHandler):
    """One repository with one release."""

    commit: ClassVar[str] = COMMIT
    digest: ClassVar[str | None] = f"sha256:{SHA256}"
    status: ClassVar[int] = 200
    requests: ClassVar[list[str | None]] = []

    def do_GET(self) -> None:
        Forge.requests.append(self.headers.get("Authorization"))
        names = ("engine-v1-x64.tar.gz", "engine-v1-arm64.tar.gz")
        url = f"http://{self.headers['Host']}/files"
        known = {"size": len(TARBALL), "digest": Forge.digest}
        answers: dict[str, Any] = {
            "/repos/bees/engine/commits/v1": {"sha": Forge.commit},
            "/repos/bees/engine/releases/tags/v1": {
                "assets": [{"name": name, "browser_download_url": f"{url}/{name}", **known} for name in names]
            },
        }  # fmt: skip
        body = TARBALL if self.path.startswith("/files/") else json.dumps(answers.get(self.path)).encode()
        found = self.path in answers or self.path.startswith("/files/")
        self.send_response(Forge.status if Forge.status != 200 else 200 if found else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None: ...


@pytest.fixture
def forge() -> Iterator[str]:
    Forge.commit, Forge.digest, Forge.status = COMMIT, f"sha256:{SHA256}", 200
    Forge.requests.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Forge) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class Presets:
    """A folder of presets with one server, whose model is on the Hub and whose engine is on the forge."""

    def __init__(self, folder: Path, forge: str) -> None:
        self.folder, self.lock = folder, folder / "lock.yaml"
        self.env = {**os.environ, "BEEYARD_PRESETS": str(folder), "GITHUB_API_URL": forge, "PYINFRA_PROGRESS": "off"}
        self.env.pop("GITHUB_TOKEN", None)
        self.write(ENGINE)
        self.lock.write_text("# Ours.\nmodels: {}\n")

    def write(self, engine: dict[str, Any], file: str = "honey-Q4.gguf") -> None:
        source = {"kind": "hub", "repository": "bees/honey", "file": file}
        tables = {"engines": {"bees": engine}, "servers": {"hive": SERVER}, "models": {"honey": {"source": source}}}
        for name, table in tables.items():
            (self.folder / f"{name}.yaml").write_text(yaml.safe_dump(table))

    def run(self, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "beeyard.cli", "lock", "--file", str(self.lock), *words]
        run = subprocess.run(
            command, check=False, capture_output=True, text=True, cwd=PROJECT, env={**self.env, **env}, timeout=60
        )  # fmt: skip
        assert "Traceback" not in run.stderr
        return run


@pytest.fixture
def presets(hub: Path, forge: str, tmp_path_factory: pytest.TempPathFactory) -> Presets:
    assert hub.is_dir()
    return Presets(tmp_path_factory.mktemp("presets"), forge)


def test_a_preset_is_locked_whole_model_and_engine(presets: Presets) -> None:
    presets.lock.write_text(OTHERS)
    run = presets.run("hive")
    assert run.returncode == 0, run.stderr
    locked = yaml.safe_load(presets.lock.read_text())
    assert locked["engines"]["bees"]["sha256"] == SHA256
    assert locked["engines"]["bees"]["url"].endswith("/files/engine-v1-x64.tar.gz")
    honey = locked["models"]["honey"]
    assert (honey["size"], honey["revision"]) == (len(CONTENT), COMMIT)
    assert honey["gguf"]["kv_heads"] == [16, 16, 16, 16, 16, 4]
    assert presets.lock.read_text().startswith(OTHERS)
    assert Forge.requests == [None, None]


def test_locking_again_changes_not_a_byte(presets: Presets) -> None:
    presets.run("hive")
    before = presets.lock.read_bytes()
    run = presets.run("hive")
    assert "honey is locked as it is\nbees is locked as it is\n" in run.stdout
    assert presets.lock.read_bytes() == before


def test_check_says_nothing_while_upstream_is_as_locked(presets: Presets) -> None:
    assert "is not locked. Fix: run `beeyard lock honey`" in presets.run("--check", "hive").stderr
    presets.run("hive")
    run = presets.run("--check", "hive")
    assert (run.returncode, run.stdout, run.stderr) == (0, "upstream is as the lock says\n", "")


def test_check_tells_a_file_that_moved_and_one_that_vanished(presets: Presets, hub: Path) -> None:
    presets.run("hive")
    (hub / "honey-Q4.gguf").write_bytes(model(words=310))
    (hub / ".revision").write_text("f" * 40)
    run = presets.run("--check", "honey")
    assert run.returncode == 4
    assert "there is no such revision" in run.stderr
    (hub / ".revision").write_text(COMMIT)
    run = presets.run("--check", "honey")
    assert run.returncode == 4
    assert f"honey: the file of commit {COMMIT} is not what the lock says. Fix: " in run.stderr
    (hub / "honey-Q4.gguf").unlink()
    run = presets.run("--check", "honey")
    assert run.returncode == 4
    assert "has no honey-Q4.gguf" in run.stderr


@pytest.mark.parametrize(
    ("engine", "complaint"),
    [
        ({**ENGINE, "tag": "v2"}, "https://github.com/bees/engine has no v2. Fix: correct the engine's tag"),
        ({**ENGINE, "commit": "1" * 40}, f"tag v1 is at {COMMIT}, the engine 'bees' at {'1' * 40}. Fix: "),
        ({**ENGINE, "asset": None}, "to one of: engine-v1-arm64.tar.gz, engine-v1-x64.tar.gz"),
        (
            {**ENGINE, "asset": "*.tar.gz"},
            "has 2 files (engine-v1-arm64.tar.gz, engine-v1-x64.tar.gz) called *.tar.gz",
        ),
        ({**ENGINE, "tag": None}, "engine 'bees' names no tag, so no release. Fix: "),
        ({**ENGINE, "repository": "https://example.com/x"}, "https://example.com/x is on no forge that we can ask."),
    ],
)
def test_a_release_that_does_not_fit_is_told_and_nothing_is_written(
    presets: Presets, engine: dict[str, Any], complaint: str
) -> None:
    presets.write(engine)
    before = presets.lock.read_text()
    run = presets.run("bees")
    assert run.returncode == 2
    assert complaint in run.stderr
    assert presets.lock.read_text() == before


@pytest.mark.parametrize(
    ("status", "complaint"),
    [
        (403, "its forge has had too many questions. Fix: try again in an hour, or set GITHUB_TOKEN"),
        (401, "its forge does not accept GITHUB_TOKEN"),
        (502, "its forge fails with 502. Fix: try again later"),
    ],
)
def test_a_forge_in_trouble_is_told_apart(presets: Presets, status: int, complaint: str) -> None:
    Forge.status = status
    run = presets.run("bees")
    assert run.returncode == 2
    assert complaint in run.stderr


def test_a_preset_whose_engine_names_no_file_gets_its_models_locked(presets: Presets) -> None:
    presets.write({**ENGINE, "asset": None})
    run = presets.run("hive")
    assert run.returncode == 0, run.stderr
    assert "engine bees is not locked: it names no file of a release. Fix: `beeyard lock bees` lists" in run.stdout
    assert list(yaml.safe_load(presets.lock.read_text())["models"]) == ["honey"]


def test_all_reasons_are_told_at_once(presets: Presets) -> None:
    presets.write({**ENGINE, "tag": "v2"}, file="nectar.gguf")
    run = presets.run("hive")
    assert "has no nectar.gguf" in run.stderr
    assert "has no v2" in run.stderr


def test_a_forge_that_tells_no_digest_is_asked_for_the_file(presets: Presets) -> None:
    Forge.digest = None
    assert presets.run("bees").returncode == 0
    assert yaml.safe_load(presets.lock.read_text())["engines"]["bees"]["sha256"] == SHA256


def test_the_forges_token_is_sent_and_never_shown(presets: Presets) -> None:
    run = presets.run("bees", GITHUB_TOKEN="ghp_CANARY")
    assert Forge.requests == ["Bearer ghp_CANARY"] * 2
    assert "CANARY" not in run.stdout + run.stderr + presets.lock.read_text()


def test_an_unknown_name_is_told_with_what_there_is(presets: Presets) -> None:
    run = presets.run("hvie")
    assert run.returncode == 2
    assert "no preset, model or engine 'hvie' in presets/. Fix: use one of beellama-07ac3ce," in run.stderr


def test_a_deploy_locks_what_is_not_locked_and_says_so(presets: Presets, tmp_path: Path) -> None:
    words = [
        "--data",
        "llama_preset=hive",
        "--data",
        f"llama_prefix={tmp_path}/p",
        "--data",
        f"llama_port={free_port()}",
    ]
    run = subprocess.run(
        [sys.executable, "-m", "pyinfra", *words, "inventories/local.py", "deploy.py", "--dry"],
        check=False, capture_output=True, text=True, cwd=PROJECT, env=presets.env, timeout=120,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    said = " ".join(run.stderr.split())
    assert f"locked honey: {len(CONTENT)} bytes" in said
    assert "It is in lock.yaml now: look at it and commit it" in said
    locked = yaml.safe_load(presets.lock.read_text())
    assert (locked["models"]["honey"]["revision"], locked["engines"]["bees"]["sha256"]) == (COMMIT, SHA256)
