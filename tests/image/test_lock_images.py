"""`make lock-images` against a registry on loopback, which answers as the distribution API says, faults included."""

import hashlib
import http.server
import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from beeyard import image_build, locking
from beeyard.catalog import load_catalog
from beeyard.images import GRAFANA_IMAGE, PROMETHEUS_IMAGE, SANDBOX_IMAGE, SBOM_SCANNER
from tests import engine_image

OCI = "application/vnd.oci.image"


def digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def described(kind: str, content: bytes, **more: object) -> dict[str, object]:
    return {"mediaType": f"{OCI}.{kind}.v1+json", "digest": digest(content), "size": len(content), **more}


# Images without layers, one for each architecture.
CONFIGS = {name: json.dumps({"architecture": name, "os": "linux"}).encode() for name in ("amd64", "arm64")}
MANIFESTS = {
    name: json.dumps(
        {
            "schemaVersion": 2,
            "mediaType": f"{OCI}.manifest.v1+json",
            "config": described("config", config),
            "layers": [],
        }
    ).encode()
    for name, config in CONFIGS.items()
}
INDEX = json.dumps(
    {
        "schemaVersion": 2,
        "mediaType": f"{OCI}.index.v1+json",
        "manifests": [
            described("manifest", content, platform={"os": "linux", "architecture": name})
            for name, content in MANIFESTS.items()
        ],
    }
).encode()
DIGEST = digest(INDEX)
CONTENTS = {digest(content): content for content in (*CONFIGS.values(), *MANIFESTS.values())}


class Registry(http.server.BaseHTTPRequestHandler):
    """One index under every name but those that are called after a fault."""

    def do_HEAD(self) -> None:
        self.answer()

    def do_GET(self) -> None:
        self.answer()

    def answer(self) -> None:
        body = CONTENTS.get(self.path.rpartition("/")[2], INDEX)
        status, kind = 200, json.loads(body).get("mediaType", "application/octet-stream")
        for fault, code, error in (
            ("gone", 404, "MANIFEST_UNKNOWN"), ("private", 401, "UNAUTHORIZED"), ("broken", 500, "UNKNOWN")
        ):  # fmt: skip
            if fault in self.path:
                status, kind = code, "application/json"
                body = json.dumps({"errors": [{"code": error, "message": error.lower()}]}).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if status == 200:
            self.send_header("Docker-Content-Digest", digest(body))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *words: object) -> None:
        pass


@pytest.fixture(scope="module")
def registry() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Registry) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


def lock(presets: Path, tmp_path: Path, base: str) -> tuple[int, str, str]:
    """Lock the base, in a lock file that has an entry and a comment; exit code, what was said, the file."""
    folder = tmp_path / "presets"
    shutil.copytree(presets, folder)
    bases = {"build_base": base, "server_base": engine_image.BASE}
    (folder / "images.yaml").write_text(yaml.safe_dump({"cpu": bases}))
    # What the project itself pins is elsewhere, and no test asks the world.
    others = {
        name for variant in load_catalog().images.values() for name in (variant.build_base, variant.server_base)
    }
    own = dict.fromkeys(
        [*others, SBOM_SCANNER, SANDBOX_IMAGE, PROMETHEUS_IMAGE, GRAFANA_IMAGE, engine_image.BASE], "local"
    )
    (folder / "lock.yaml").write_text(yaml.safe_dump({"bases": own}))
    file = tmp_path / "lock.yaml"
    file.write_text('# Ours.\nbases:\n  "other:1": sha256:0\nmodels: {}\n')
    run = engine_image.beeyard("lock-images", "--file", str(file), presets=folder)
    assert "Traceback" not in run.stderr
    return run.returncode, run.stdout + run.stderr, file.read_text()


def test_the_registrys_digest_is_locked_and_the_rest_of_the_file_stays(
    presets: Path, tmp_path: Path, registry: str
) -> None:
    base = f"{registry}/bees/base:1"
    code, said, text = lock(presets, tmp_path, base)
    assert code == 0, said
    assert f"locked {base}: {DIGEST}" in said
    assert f"{engine_image.BASE} is one of your own: left as it is" in said
    assert "Now run `make render`" in said
    assert text == f'# Ours.\nbases:\n  "other:1": sha256:0\n  "{base}": {DIGEST}\nmodels: {{}}\n'


def test_published_images_of_engines_are_locked_by_digest(presets: Path, tmp_path: Path, registry: str) -> None:
    folder, file = tmp_path / "presets", tmp_path / "lock.yaml"
    shutil.copytree(presets, folder)
    file.write_text("# Ours.\n")
    words = ("lock-images", "--file", str(file), "--from", f"{registry}/bees/beeyard")
    run = engine_image.beeyard(*words, presets=folder)
    assert run.returncode == 0, run.stderr
    name = f"{engine_image.ENGINE}-{engine_image.VARIANT}"
    assert yaml.safe_load(file.read_text())["images"][name] == f"{registry}/bees/beeyard@{DIGEST}"
    again = file.read_text()
    engine_image.beeyard(*words, presets=folder)
    assert file.read_text() == again
    run = engine_image.beeyard(*words[:-1], f"{registry}/bees/gone", presets=folder)
    assert run.returncode == 2
    assert "has no image of these engines. Fix: " in run.stderr


def test_check_tells_an_image_that_moved_or_is_gone(registry: str) -> None:
    moved, same, gone = (f"{registry}/bees/{name}:1" for name in ("moved", "same", "gone"))
    published = f"{registry}/bees/beeyard@{DIGEST}"
    bases = {moved: f"sha256:{'0' * 64}", same: DIGEST, gone: DIGEST, "own": "local"}
    catalog = load_catalog()
    lock_table = catalog.lock.model_copy(update={"bases": bases, "images": {"x-cpu": published}})
    alone = catalog.model_copy(update={"lock": lock_table, "servers": {}})
    said = locking.drift(alone, [], image_build.digest_of)
    assert len(said) == 2
    assert said[0].startswith(f"image {moved} is {DIGEST} now, locked is sha256:{'0' * 64}. Fix: `make lock-images`")
    assert f"the registry does not say what {gone} is: " in said[1]


@pytest.mark.parametrize(
    ("name", "complaint"),
    [("gone", "not found"), ("private", "401 Unauthorized"), ("broken", "500 Internal Server Error")],
)
def test_a_registry_that_has_no_answer_is_a_sentence_and_nothing_is_written(
    presets: Path, tmp_path: Path, registry: str, name: str, complaint: str
) -> None:
    base = f"{registry}/bees/{name}:1"
    code, said, text = lock(presets, tmp_path, base)
    assert code == 2
    assert said.splitlines()[-1].startswith(f"the registry does not say what {base} is: ")
    assert complaint in said
    assert "Fix: run this where it can be reached" in said
    assert base not in text


def test_a_registry_that_cannot_be_reached_is_a_sentence(presets: Path, tmp_path: Path) -> None:
    code, said, _ = lock(presets, tmp_path, "127.0.0.1:9/bees/base:1")
    assert code == 2
    assert "connection refused. Fix: run this where it can be reached" in said
