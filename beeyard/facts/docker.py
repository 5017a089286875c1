"""Facts about a host's Docker Engine and its images."""

import json
from pathlib import Path
from typing import Any, TypedDict

from pyinfra.api import FactBase, FactProcessError, QuoteString, StringCommand

from beeyard import machine_lines
from beeyard.machine import DockerState
from beeyard.probes import DockerProbe

ENGINE = Path(__file__).with_suffix(".sh").read_text()
# One script, so that the host is asked once. A missing thing is an empty value, never an error.
PROBE = rf"""
{ENGINE}
echo "candidate=$(apt-cache policy docker.io 2>/dev/null | sed -n 's/^ *Candidate: *//p')"
echo "codename=$(. /etc/os-release && echo "$VERSION_CODENAME")"
echo "distribution=$(. /etc/os-release && echo "$ID")"
docker_engine 20
exit 0
"""


class DockerEngine(FactBase[DockerProbe]):
    """Returns what decides whether a host can run containers of ours."""

    def command(self) -> StringCommand:
        """One command for all of it."""
        return StringCommand("sh -c", QuoteString(PROBE))

    def process(self, output: list[str]) -> DockerProbe:
        """Read the lines that PROBE prints."""
        found = dict(line.split("=", 1) for line in output if "=" in line)
        try:
            engine = machine_lines.docker(found) or DockerState(version="")
            driver_status = json.dumps(machine_lines.docker_info(found).get("DriverStatus") or [])
            return DockerProbe(
                command=found["command"],
                is_snap=engine.is_snap,
                candidate=found["candidate"].replace("(none)", ""),
                distribution=found["distribution"],
                codename=found["codename"],
                has_toolkit=bool(found["toolkit"]),
                compose=engine.compose,
                buildx=found.get("buildx", ""),
                version=engine.version,
                silent=engine.silent,
                runtimes=list(engine.runtimes),
                has_cdi=engine.has_cdi,
                root=engine.root,
                # The classic store takes a tarball without the layers that it has; containerd's wants all of them.
                keeps_layers_apart="io.containerd.snapshotter" not in driver_status,
                free_bytes=engine.free_bytes,
            )
        except (KeyError, ValueError) as error:
            raise FactProcessError(f"unexpected Docker probe: {output!r}") from error


class ImageState(TypedDict):
    """An image of a Docker Engine: its ID, its labels, and its layers' digests, the base's first."""

    id: str
    labels: dict[str, str]
    layers: list[str]


class ImageStates(FactBase[dict[str, ImageState]]):
    """Returns those of the given images that the host's Docker Engine has, by the names that they were asked by."""

    default = dict

    def command(self, references: list[str]) -> StringCommand:
        """One command for all of them; none where there is no Docker."""
        script = (
            "command -v docker >/dev/null || exit 0; for name do "
            "if state=$(docker image inspect --format '{{json .}}' \"$name\" 2>/dev/null); "
            'then echo "$name=$state"; fi; done'
        )
        return StringCommand("sh -c", QuoteString(script), "look", *(QuoteString(name) for name in references))

    def process(self, output: list[str]) -> dict[str, ImageState]:
        """A line an image."""
        try:
            return {name: image_state(json.loads(text)) for name, text in (line.split("=", 1) for line in output)}
        except (KeyError, ValueError) as error:
            raise FactProcessError(f"unexpected image states: {output!r}") from error


class ImageHelp(FactBase[str]):
    """Returns what ``llama-server --help`` says in an image; empty where it says nothing."""

    default = str

    def command(self, reference: str) -> StringCommand:
        """Run it once, with nothing around it."""
        run = "docker run --rm --network none --read-only --cap-drop ALL --entrypoint /opt/llama/llama-server"
        return StringCommand(run, QuoteString(reference), "--help 2>/dev/null || true")

    def process(self, output: list[str]) -> str:
        """As it is."""
        return "\n".join(output)


class ImageLayers(FactBase[list[list[str]]]):
    """Returns the layers of every image that the host's Docker Engine has, each image's base first."""

    default = list

    def command(self) -> StringCommand:
        """Ask for all of them at once."""
        script = (
            "docker image ls --quiet --no-trunc | sort -u | "
            "xargs --no-run-if-empty docker image inspect --format '{{json .RootFS.Layers}}'"
        )
        return StringCommand("sh -c", QuoteString(script))

    def process(self, output: list[str]) -> list[list[str]]:
        """A JSON list a line; null for an image without layers."""
        return [json.loads(line) or [] for line in output]


def image_state(inspected: dict[str, Any]) -> ImageState:
    """What ``docker image inspect`` says, as far as we want to know it."""
    return ImageState(
        id=inspected["Id"],
        labels=inspected["Config"].get("Labels") or {},
        layers=inspected["RootFS"].get("Layers") or [],
    )
