"""Real deploys onto the test hosts: pyinfra as a user calls it, presets with faults of their own, nothing mocked."""

import fcntl
import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import IO, Any, NamedTuple

import pytest
import yaml
from gguf import GGUFReader, GGUFWriter

from beeyard.catalog import PROJECT, HubFile
from beeyard.hub import lock_file
from beeyard.tiny import write_all
from tests import engine_image
from tests.engine_wheel import real_engine

STATE = engine_image.STATE
HUB_HERE, HUB_THERE = "http://127.0.0.1:2210", "http://beeyard-hub:2210"
PREFIX = {
    "systemd": "/opt/beeyard",
    "docker": "/opt/beeyard",
    "pod": "/workspace/beeyard",
    "light": "/opt/beeyard",
}

# Engines that misbehave: a shell script in the place of llama-server, the real one beside it.
HANGS = """#!/bin/sh
# Says that it loads, for ever.
case $* in *--version* | *--help*) exec "$(dirname "$0")/real-llama-server" "$@" ;; esac
while [ $# -gt 0 ]; do [ "$1" = --port ] && port=$2; shift; done
exec python3 -c "
import http.server, sys
class Loading(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_error(503)
print('loading, for ever', flush=True)
http.server.HTTPServer(('127.0.0.1', int(sys.argv[1])), Loading).serve_forever()" "$port"
"""
OLD_HELP = """#!/bin/sh
# An engine that knows no --jinja.
case $* in *--help*) "$(dirname "$0")/real-llama-server" --help | sed 's/--jinja, --no-jinja/--ninja, --no-ninja/' ;;
*) exec "$(dirname "$0")/real-llama-server" "$@" ;; esac
"""


class Deploy(NamedTuple):
    """How a deploy ended."""

    code: int
    stdout: str
    stderr: str

    @property
    def output(self) -> str:
        """All that the user saw."""
        return self.stdout + self.stderr

    @property
    def totals(self) -> dict[str, int]:
        """pyinfra's own count of operations: success (changed something), no_change, error."""
        found: dict[str, int] = json.loads(self.stdout)["results"]["totals"]
        return found

    @property
    def changed(self) -> list[str]:
        """The names of the operations that changed something."""
        return [done["name"] for done in json.loads(self.stdout)["results"]["operations"] if done["success"]]

    @property
    def would_change(self) -> list[str]:
        """The names of the operations that a dry run would have change something."""
        return [planned["name"] for planned in json.loads(self.stdout)["plan"] if planned["hosts_with_change"]]


# The hosts that this process may use now, each with its locked file: the Makefile runs several processes on the bed.
HELD: dict[str, IO[str]] = {}


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Wait for the hosts of a test: its mark `hosts`, and its parameter `host`."""
    wanted = {name for mark in item.iter_markers("hosts") for name in mark.args}
    if "host" in (parameters := getattr(getattr(item, "callspec", None), "params", {})):
        wanted.add(parameters["host"])
    if wanted == HELD.keys():
        return
    # What is held is given up first, and hosts are taken in one order: so two processes never wait for each other.
    while HELD:
        HELD.popitem()[1].close()
    for name in sorted(wanted):
        file = (STATE / f"{name}.host").open("w")
        fcntl.flock(file, fcntl.LOCK_EX)
        HELD[name] = file


class Bed:
    """The test hosts, and how one deploys to them and looks at them."""

    def __init__(self, presets: Path) -> None:
        self.presets = presets

    @staticmethod
    def is_ours(host: str) -> None:
        """A test that uses a host without saying so breaks another one, some day."""
        assert host in HELD, f"this test uses host {host}. Fix: mark it with pytest.mark.hosts({host!r})"

    @property
    def environment(self) -> dict[str, str]:
        """What a deploy's environment holds."""
        names = {"BEEYARD_PRESETS": str(self.presets), "HF_ENDPOINT": HUB_THERE, "PYINFRA_PROGRESS": "off"}
        return {**os.environ, **engine_image.DOCKER, **names}

    def command(self, host: str, *options: str, **data: Any) -> list[str]:
        """A deploy's command line."""
        self.is_ours(host)
        pairs = {"llama_preset": "tiny", **data}
        words = [word for key, value in pairs.items() for word in ("--data", f"{key}={value}")]
        pyinfra = [sys.executable, "-m", "pyinfra", *options, *words]
        return [*pyinfra, "inventories/testbed.py", "deploy.py", "--limit", host, "--yes", "--json"]

    def deploy(self, host: str, *options: str, env: dict[str, str] | None = None, **data: Any) -> Deploy:
        """Deploy to one host with these data, as a user would."""
        run = subprocess.run(
            self.command(host, *options, **data), check=False, capture_output=True, text=True,
            cwd=PROJECT, env={**self.environment, **(env or {})}, timeout=300,
        )  # fmt: skip
        return Deploy(run.returncode, run.stdout, run.stderr)

    def plan(self, host: str, *options: str, **data: Any) -> Deploy:
        """What `make plan` does, for one host."""
        words = [word if word != "--yes" else "--dry" for word in self.command(host, *options, **data)]
        run = subprocess.run(
            words, check=False, capture_output=True, text=True, cwd=PROJECT, env=self.environment, timeout=120
        )
        return Deploy(run.returncode, run.stdout, run.stderr)

    def rollback(self, host: str) -> Deploy:
        """What `make rollback` does, for one host."""
        self.is_ours(host)
        command = [sys.executable, "-m", "pyinfra", "--data", "llama_preset=tiny", "inventories/testbed.py"]
        run = subprocess.run(
            [*command, "rollback.py", "--limit", host, "--yes"], check=False, capture_output=True, text=True,
            cwd=PROJECT, env=self.environment, timeout=120,
        )  # fmt: skip
        return Deploy(run.returncode, run.stdout, run.stderr)

    def verify(self, host: str, *options: str, env: dict[str, str] | None = None, **data: Any) -> str:
        """What `make verify` prints of one host with these data."""
        self.is_ours(host)
        pairs = " ".join(f"{key}={value}" for key, value in data.items())
        run = subprocess.run(
            [sys.executable, "-m", "pytest", "tests/host", "-q", *options],
            check=False, capture_output=True, text=True, cwd=PROJECT, timeout=300,
            env={**self.environment, "TARGET": "testbed", "LIMIT": host, "DATA": pairs, **(env or {})},
        )  # fmt: skip
        return run.stdout

    def sh(self, host: str, script: str, check: bool = True) -> str:
        """Run a script on a host as root, over SSH."""
        self.is_ours(host)
        command = ["ssh", "-F", str(STATE / "ssh_config"), f"beeyard-{host}", script]
        run = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
        if check:
            assert run.returncode == 0, f"{script}: {run.stderr}"
        return run.stdout.strip()

    def boot(self, host: str) -> str:
        """Which boot this is: when process 1 started, in ticks of the machine's clock; empty while it is down."""
        return self.sh(host, "cut -d' ' -f22 /proc/1/stat", check=False)

    def recreate(self, *hosts: str) -> None:
        """Make hosts anew: the pod keeps its volume, the rest is gone."""
        for host in hosts:
            self.is_ours(host)
        self.up("recreate", *hosts)

    def up(self, *words: str) -> None:
        """Run up.sh."""
        script = str(PROJECT / "tests" / "testbed" / "up.sh")
        run = subprocess.run([script, *words], check=False, capture_output=True, text=True, timeout=900)
        assert run.returncode == 0, run.stderr

    def state(self, host: str) -> dict[str, Any]:
        """What the guard sees on a host."""
        found: dict[str, Any] = json.loads(self.sh(host, f"python3 {PREFIX[host]}/bin/guard.py state {PREFIX[host]}"))
        return found

    def serving(self, host: str, port: int = 8910) -> list[str]:
        """The command of whatever answers /health on the host; empty if nothing does."""
        script = (
            f"curl --fail --silent --max-time 5 http://127.0.0.1:{port}/health >/dev/null || exit 0; "
            "tr '\\0' '\\n' </proc/$(pgrep llama-server | head -n 1)/cmdline"
        )
        return self.sh(host, script).splitlines()

    def locks(self, *models: str) -> list[dict[str, Any]]:
        """What the lock of these tests says of models."""
        table = yaml.safe_load((self.presets / "lock.yaml").read_text())["models"]
        return [table[name] for name in models]

    def wipe(self, host: str) -> None:
        """Leave nothing of ours on a host."""
        self.sh(
            host,
            f"[ -f {PREFIX[host]}/bin/guard.py ] && python3 {PREFIX[host]}/bin/guard.py stop {PREFIX[host]}; "
            # What an interrupted run may have left, whose files are gone.
            "systemctl disable --now beeyard-llama-server 2>/dev/null; docker rm --force llama-server 2>/dev/null; "
            "pkill -f '[s]upervisor.supervisord'; "
            f"pkill llama-server; rm -rf {PREFIX[host]} /etc/systemd/system/beeyard-llama-server.service",
        )


@pytest.fixture(scope="session")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Bed:
    """The test hosts, up, and presets for the faults that tests want."""
    presets = tmp_path_factory.mktemp("presets")
    made = Bed(presets)
    made.up()
    # Several processes of the Makefile share the Hub.
    with (STATE / "filling").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        write_all(PROJECT / ".beeyard" / "tiny")
        _fill_hub(STATE / "hub")
    _write_presets(presets, STATE / "hub")
    return made


@pytest.fixture(scope="module")
def light(bed: Bed) -> str:
    """The light host, with nothing of ours on it."""
    (STATE / "hub" / "faults.json").unlink(missing_ok=True)
    bed.wipe("light")
    return "light"


def _fill_hub(hub: Path) -> None:
    repository = hub / "models" / "beeyard" / "tiny"
    repository.mkdir(parents=True, exist_ok=True)
    for name in ("tiny-qwen3.gguf", "tiny-qwen3-dflash.gguf"):
        content = (PROJECT / ".beeyard" / "tiny" / name).read_bytes()
        if not (repository / name).exists() or (repository / name).read_bytes() != content:
            (repository / name).write_bytes(content)
    if not (repository / "split-00001-of-00003.gguf").exists():
        _split(repository / "tiny-qwen3.gguf", repository / "split.gguf", tensors=20)
    (repository / ".revision").write_text("1234567890abcdef1234567890abcdef12345678")
    releases = hub / "releases"
    releases.mkdir(exist_ok=True)
    for name, wrapper in (("good", None), ("cuda", None), ("hangs", HANGS), ("old-help", OLD_HELP)):
        if not (releases / f"{name}.tar.gz").exists():
            _write_release(releases / f"{name}.tar.gz", wrapper)


def _split(source: Path, dest: Path, tensors: int) -> None:
    """Write a model anew as several files, as large ones come: DEST's name with -00001-of-0000N."""
    reader = GGUFReader(source)
    architecture = reader.get_field("general.architecture")
    assert architecture is not None
    writer = GGUFWriter(dest, architecture.contents(), split_max_tensors=tensors)
    for name, field in reader.fields.items():
        if not name.startswith(("GGUF.", "general.architecture")):
            kind, *of = field.types
            writer.add_key_value(name, field.contents(), kind, of[-1] if of else None)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write_release(file: Path, wrapper: str | None) -> None:
    beside = file.with_suffix(".new")
    with tarfile.open(beside, "w:gz", compresslevel=1) as archive:
        for own, content in real_engine():
            _add(archive, "real-llama-server" if wrapper and own == "llama-server" else own, content)
        if wrapper:
            _add(archive, "llama-server", wrapper.encode())
    beside.replace(file)


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), 0o755
    archive.addfile(entry, io.BytesIO(content))


def _write_presets(presets: Path, hub: Path) -> None:
    release = {"repository": "test", "dialect": "llama.cpp", "flags": "llama.cpp-b10068", "accelerator": "cpu"}
    engines = {
        name: {**release, "title": f"test engine {name}", "packages": ["libgomp1"], "artefact": {"kind": "release"}}
        for name in ("good", "hangs", "old-help")
    }
    engines["good-too"] = {**engines["good"], "title": "test engine good-too"}  # another engine in the same tarball
    # The same engine, said to be for a GPU: the gate must see through it.
    engines["cuda"] = {**engines["good"], "title": "test engine cuda", "accelerator": "cuda"}
    settings = {"context": 4096, "gpu_layers": 0}
    ngram_that_never_drafts = {"kind": "ngram", "type": "ngram-simple", "size_n": 900}
    servers = {
        "broken": {
            "model": "tiny-gemma4", "engine": "llama.cpp-wheel", "default_variant": "baseline", "settings": settings,
            "variants": {
                "baseline": {"decoding": {"kind": "baseline"}},
                # No drafter, which its lock does not tell: the server dies while it loads.
                "dies": {"decoding": {"kind": "dflash", "draft_model": "no-drafter"}},
                "hangs": {"decoding": {"kind": "baseline"}, "engine": "hangs", "settings": {"load_timeout_s": 4}},
                "never-drafts": {"decoding": ngram_that_never_drafts},
                "unknown-flag": {"decoding": {"kind": "baseline"}, "engine": "old-help"},
            },
        },
        "gpu": {
            "model": "tiny-gemma4", "engine": "cuda", "default_variant": "baseline", "settings": {"context": 4096},
            "variants": {"baseline": {"decoding": {"kind": "baseline"}}},
        },
        "stuck": {
            "model": "tiny-stuck", "engine": "llama.cpp-wheel", "default_variant": "baseline", "settings": settings,
            "variants": {"baseline": {"decoding": {"kind": "baseline"}}},
        },
        "split": {
            "model": "hub-split", "engine": "good", "default_variant": "baseline", "settings": settings,
            "variants": {"baseline": {"decoding": {"kind": "baseline"}}},
        },
        "from-hub": {
            "model": "hub-qwen3", "engine": "good", "default_variant": "dflash", "settings": settings,
            "variants": {
                "baseline": {"decoding": {"kind": "baseline"}},
                "dflash": {"decoding": {"kind": "dflash", "draft_model": "hub-qwen3-dflash"}},
            },
        },
    }  # fmt: skip
    files = {"qwen3": "tiny-qwen3", "qwen3-dflash": "tiny-qwen3-dflash", "split": "split-00001-of-00003"}
    sources = {
        f"hub-{name}": {"kind": "hub", "repository": "beeyard/tiny", "file": f"{file}.gguf"}
        for name, file in files.items()
    }
    os.environ["HF_ENDPOINT"] = HUB_HERE
    try:
        locks = {name: lock_file(HubFile.model_validate(source)) for name, source in sources.items()}
    finally:
        del os.environ["HF_ENDPOINT"]
    unread = locks["hub-qwen3"].model_copy(update={"gguf": None, "revision": None})
    locks["no-drafter"] = unread
    lock = {
        "models": {name: found.model_dump(exclude_none=True) for name, found in locks.items()},
        "engines": {
            name: _release_lock(hub / "releases" / f"{name.removesuffix('-too')}.tar.gz") for name in engines
        },
    }
    image = engine_image.TABLES
    (of_image,) = image["engines"].values()
    images = {name: {**of_image, "title": f"test engine {name}"} for name in ("image-hangs", "image-old-help")}
    images["image-cuda"] = {**of_image, "title": "test engine image-cuda", "accelerator": "cuda"}
    tables = {
        "engines": {**engines, **image["engines"], **images},
        "images": image["images"],
        "servers": servers,
        "models": {
            "no-drafter": {"source": {"kind": "path", "path": ".beeyard/tiny/tiny-qwen3.gguf"}},
            **{name: {"source": source} for name, source in sources.items()},
        },
        "lock": {**lock, **image["lock"]},
    }
    for name, table in tables.items():
        (presets / f"{name}.yaml").write_text(yaml.safe_dump(table))


def _release_lock(file: Path) -> dict[str, Any]:
    content = file.read_bytes()
    return {
        "url": f"{HUB_THERE}/releases/{file.name}",
        "size": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
    }
