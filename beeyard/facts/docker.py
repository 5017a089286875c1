"""Facts about a host's Docker Engine and its images."""

import json
from pathlib import Path
from typing import Any, TypedDict

from pyinfra.api import FactBase, QuoteString, StringCommand

from beeyard import machine_lines
from beeyard.facts.errors import not_understood
from beeyard.machine import DockerState

ENGINE = Path(__file__).with_suffix(".sh").read_text()


class DockerEngine(FactBase[DockerState]):
    """Returns what decides whether a host can run containers of ours."""

    def command(self) -> StringCommand:
        """One command for all of it."""
        return StringCommand("sh -c", QuoteString(f"{ENGINE}\ndocker_engine 20\nexit 0"))

    def process(self, output: list[str]) -> DockerState:
        """Read the lines that docker.sh prints."""
        try:
            return machine_lines.docker(dict(line.split("=", 1) for line in output if "=" in line))
        except ValueError as error:
            raise not_understood("Docker", f"{error} in {output!r}") from None


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
        except (KeyError, ValueError):
            raise not_understood("its images", repr(output)) from None


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
