"""Where a host's model files may come from before the preset's own address: its ``llama_model_source``."""

from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple
from urllib.parse import quote

from pyinfra import host

from beeyard.catalog import PROJECT, CatalogError
from beeyard.operations.sent import HereFile, PeerFile
from beeyard.spec import ModelFile, ServerSpec, host_settings

PEER = "host:"


class FirstSource(NamedTuple):
    """An address, or a file that is sent; neither where the preset's own address is the first."""

    mirror: str | None = None
    sent: HereFile | PeerFile | None = None


def first_source(spec: ServerSpec, path: PurePosixPath, size: int) -> FirstSource:
    """
    Where to look first for a model file of the current host.

    :param path: where it goes on the host
    :param size: in bytes; a file here of another size is another file
    """
    source = spec.model_source
    if source is None:
        return FirstSource()
    if source.startswith(("http://", "https://")):
        return FirstSource(mirror=f"{source.rstrip('/')}/{quote(path.parent.name)}/{quote(path.name)}")
    if source.startswith(PEER):
        peer = named_peer(source)
        if peer is None:
            return FirstSource()
        return FirstSource(sent=PeerFile(peer.name, str(_models_dir(peer) / path.parent.name / path.name)))
    places = [Path(PROJECT, source, *names) for names in ((path.parent.name, path.name), (path.name,))]
    found = next((str(place) for place in places if place.is_file() and place.stat().st_size == size), None)
    return FirstSource(sent=HereFile(found) if found else None)


def is_sent(spec: ServerSpec, file: ModelFile) -> bool:
    """
    Whether this machine or another host of the inventory has a model file for the current one, all of it.

    :raises CatalogError: there is no such host, or it has its models from another one itself
    """
    pieces = spec.pieces_of(file)
    return bool(pieces) and all(first_source(spec, path, piece.size).sent for path, piece in pieces)


def named_peer(source: str | None) -> Any:
    """
    The other host of the inventory that ``host:NAME`` names; None for anything else, and for the current host.

    :raises CatalogError: if there is no such host, or it has its models from another one itself
    """
    if source is None or not source.startswith(PEER):
        return None
    name = source.removeprefix(PEER)
    everyone = {other.name: other for other in host.state.inventory}
    if name not in everyone:
        raise CatalogError(
            f"llama_model_source names host {name!r}, which the inventory has not: {', '.join(sorted(everyone))}. "
            "Fix: correct the name"
        )
    if name == host.name:
        return None
    its_own = host_settings(everyone[name].data.dict()).model_source
    if its_own is not None and its_own.startswith(PEER) and its_own != source:
        raise CatalogError(
            f"llama_model_source names host {name!r}, which has its models from {its_own} itself. "
            f"Fix: set llama_model_source to {its_own}"
        )
    return everyone[name]


def _models_dir(peer: Any) -> PurePosixPath:
    settings = host_settings(peer.data.dict())
    return PurePosixPath(PROJECT) / settings.models_dir if settings.models_dir else settings.prefix / "models"
