"""`beeyard export`: the same spec for what is not ours. `beeyard.cli` takes it up."""

from pathlib import Path
from typing import Annotated

import typer

from beeyard.catalog import CatalogError, load_catalog
from beeyard.exporting import FORMATS, Wish, written
from beeyard.exporting import export as files_of
from beeyard.render import CLONE_PRESET

DEFAULT = Wish(CLONE_PRESET)


def export(
    name: Annotated[str, typer.Argument(metavar="FORMAT", help=", ".join(FORMATS))],
    preset: Annotated[str, typer.Option("--preset", help="A server of presets/servers.yaml.")] = CLONE_PRESET,
    variant: Annotated[str | None, typer.Option("--variant", help="One of its variants; else its default.")] = None,
    engine: Annotated[str | None, typer.Option("--engine", help="Another engine than the preset's.")] = None,
    image: Annotated[
        str | None, typer.Option("--image", help="Its image by digest; else that of presets/lock.yaml.")
    ] = None,
    fetch_image: Annotated[
        str | None, typer.Option("--fetch-image", help="The image that fetches models, by digest.")
    ] = None,
    card: Annotated[str | None, typer.Option("--card", help="A card of presets/gpus.yaml.")] = None,
    url: Annotated[
        list[str] | None, typer.Option("--url", help="Where the server answers; of several, as often as wanted.")
    ] = None,
    prefix: Annotated[str, typer.Option("--prefix", help="Where Beeyard lives on the host.")] = DEFAULT.prefix,
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="Where it listens.")] = DEFAULT.port,
    replicas: Annotated[int, typer.Option("--replicas", min=1, help="Servers at most.")] = DEFAULT.replicas,
    prometheus: Annotated[
        str, typer.Option("--prometheus", help="Its address inside the cluster, for KEDA.")
    ] = DEFAULT.prometheus,
    out: Annotated[
        Path | None, typer.Option("--out", help="The folder to write to; else one file is printed.")
    ] = None,
) -> None:
    """Write a preset's server for Kubernetes, Quadlet, clouds, switchers and clients; no secret is in it."""
    wish = Wish(
        preset,
        variant,
        engine,
        image,
        fetch_image,
        card,
        tuple(url or DEFAULT.urls),
        prefix,
        port,
        replicas,
        prometheus,
    )  # fmt: skip
    files = {file: written(file, text) for file, text in files_of(name, wish, load_catalog()).items()}
    if out is None:
        if len(files) > 1:
            raise CatalogError(f"{name} is {len(files)} files. Fix: name a folder for them with --out")
        typer.echo(next(iter(files.values())), nl=False)
        return
    for file, text in files.items():
        place = out / file
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text, encoding="utf-8")
        except OSError as error:
            raise CatalogError(f"{place}: {error.strerror}. Fix: name a folder that can be written") from error
        typer.echo(f"written: {place}", err=True)
