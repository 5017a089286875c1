"""The image of a real engine, built by Dockerfile.cuda, and containers of it."""

import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import pytest
import yaml
from docker.models.containers import Container
from docker.models.images import Image

from beeyard.catalog import PROJECT
from beeyard.tiny import write_all
from tests import engine_image

KEY = "a-key-of-these-tests-and-of-nothing-else"
MEMLOCK = 8 * 2**20  # what this machine's hard limit may be


@pytest.fixture(scope="session")
def presets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("presets")
    for name, table in engine_image.TABLES.items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(table))
    return folder


@pytest.fixture(scope="session")
def client() -> Iterator[docker.DockerClient]:
    made = docker.DockerClient(base_url=engine_image.DOCKER["DOCKER_HOST"], timeout=120)
    yield made
    made.close()


@pytest.fixture(scope="session")
def image(client: docker.DockerClient, presets: Path) -> Image:
    return client.images.get(engine_image.GIVEN or engine_image.build(presets))


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a container mounts: the tiny models, and a key."""
    made = tmp_path_factory.mktemp("mounted")
    write_all(PROJECT / ".beeyard" / "tiny")
    for file in (PROJECT / ".beeyard" / "tiny").glob("*.gguf"):
        (made / file.name).write_bytes(file.read_bytes())
    (made / "key").write_text(KEY + "\n")
    for parent in (made, *list(made.parents)[:2]):
        parent.chmod(0o755)
    return made


class Servers:
    """Containers of the image, each gone at the end of its test."""

    def __init__(self, client: docker.DockerClient, image: Image, folder: Path) -> None:
        self.client, self.image, self.folder = client, image, folder
        self.started: list[Container] = []

    def start(self, *arguments: str, **options: Any) -> Container:
        """One as locked up as compose has it, serving the tiny model."""
        port = options.pop("port", 8910)
        model = options.pop("model", "tiny-gemma4.gguf")
        words = ["-m", f"/mounted/{model}", "--host", "0.0.0.0", "--port", str(port), "--ctx-size", "4096"]
        words += ["--api-key-file", "/mounted/key", *arguments]
        limit = docker.types.Ulimit(name="memlock", soft=MEMLOCK, hard=MEMLOCK)
        confined: dict[str, Any] = {
            "read_only": True, "cap_drop": ["ALL"], "security_opt": ["no-new-privileges:true"],
            "tmpfs": {"/tmp": "size=64m"}, "ulimits": [limit], "labels": {"beeyard.test": "1"},
            "volumes": {str(self.folder): {"bind": "/mounted", "mode": "ro"}},
        }  # fmt: skip
        made = self.client.containers.run(self.image, words, detach=True, **{**confined, **options})
        self.started.append(made)
        return made

    def remove(self) -> None:
        """All of them."""
        for container in self.started:
            container.remove(force=True, v=True)


@pytest.fixture
def servers(client: docker.DockerClient, image: Image, folder: Path) -> Iterator[Servers]:
    made = Servers(client, image, folder)
    yield made
    made.remove()


def wait_for(seconds: float, what: Any) -> bool:
    """Whether a question is answered with yes in time."""
    deadline = time.monotonic() + seconds
    while not what():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def health(container: Container) -> str:
    container.reload()
    return str(container.attrs["State"]["Health"]["Status"])


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
