"""`beeyard lock`: asks upstream what files and engines are, writes it down, and says later whether that holds."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from beeyard import forge, hub
from beeyard.catalog import (
    PROJECT,
    Catalog,
    CatalogError,
    EngineLock,
    FileLock,
    HubFile,
    LocalFile,
    Strict,
)
from beeyard.lockfile import add_engine, add_model, local_lock
from beeyard.spec import every_variant

AT_ONCE = 8  # questions to a Hub


class Wanted(NamedTuple):
    """What is to be locked: models and engines, by name; and engines whose tarball is named by hand."""

    models: list[str]
    engines: list[str]
    by_hand: list[str]


def wanted(catalog: Catalog, names: Iterable[str]) -> Wanted:
    """
    Models and engines that presets, or models and engines themselves, name. No name means every preset.

    :raises CatalogError: a name that is none of them.
    """
    models: dict[str, None] = {}
    engines: dict[str, None] = {}
    by_hand: dict[str, None] = {}
    for name in list(names) or list(catalog.servers):
        if name in catalog.servers:
            for spec in every_variant({"llama_preset": name}, catalog):
                models |= dict.fromkeys(file.name for file in spec.model_files)
                (engines if spec.engine.asset else by_hand)[spec.engine_name] = None
        elif name in catalog.models:
            models[name] = None
        elif name in catalog.engines:
            engines[name] = None
        else:
            known = ", ".join(sorted({*catalog.servers, *catalog.models, *catalog.engines}))
            raise CatalogError(f"no preset, model or engine {name!r} in presets/. Fix: use one of {known}")
    # What a package index or a distribution has is pinned by them, and by hand.
    released, named = (
        [name for name in table if catalog.engines[name].artefact.kind == "release"] for table in (engines, by_hand)
    )
    return Wanted(list(models), released, [name for name in named if name not in engines])


def lock(catalog: Catalog, names: Iterable[str], file: Path) -> Iterator[str]:
    """
    Ask for everything, then write it all into the lock; a sentence for each entry.

    :raises CatalogError: every reason at once why something cannot be locked; then nothing was written.
    """
    models, engines, by_hand = wanted(catalog, names)
    asked = [name for name in models if isinstance(catalog.models[name].source, HubFile | LocalFile)]
    found = _all([partial(model_lock, catalog, name) for name in asked])
    built = _all([partial(forge.release_file, name, catalog.engines[name]) for name in engines])
    errors = [text for text in [*found, *built] if isinstance(text, str)]
    if errors:
        raise CatalogError("\n".join(errors))
    for name, entry in zip(asked, found, strict=True):
        assert isinstance(entry, FileLock)  # noqa: S101 -- no error is left
        add_model(file, name, entry)
        yield _told(name, entry, catalog.lock.models.get(name))
    for name, entry in zip(engines, built, strict=True):
        assert isinstance(entry, EngineLock)  # noqa: S101
        add_engine(file, name, entry)
        yield _told(name, entry, catalog.lock.engines.get(name))
    for name in models:
        if name not in asked:
            yield f"{name} comes from a {catalog.models[name].source.kind}, which its own entry pins: left as it is"
    for name in by_hand:
        if name not in catalog.lock.engines:
            yield f"engine {name} is not locked: it names no file of a release. Fix: `beeyard lock {name}` lists them"


def model_lock(catalog: Catalog, name: str) -> FileLock:
    """
    What a model's file is now.

    :raises CatalogError: in one sentence, why that cannot be said.
    """
    source = catalog.models[name].source
    match source:
        case HubFile():
            return hub.lock_file(source)
        case LocalFile(path=path):
            return local_lock(PROJECT / path)
        case _:
            raise CatalogError(
                f"model {name!r} comes from a {source.kind}, which nobody can be asked about. "
                "Fix: write its size and sha256 into the lock yourself"
            )


def drift(catalog: Catalog, names: Iterable[str], digest_of: Callable[[str], str] | None = None) -> list[str]:
    """
    What upstream no longer is as the lock says, a sentence each; what is not locked at all, too.

    :param digest_of: asks a registry what an image's name stands for now; None leaves images out. With names, they
        are left out, too.
    """
    names = list(names)
    models, engines, _ = wanted(catalog, names)
    questions: list[Callable[[], str | None]] = []
    questions += [partial(_model_drift, catalog, name) for name in models]
    questions += [partial(_engine_drift, catalog, name) for name in engines]
    if digest_of is not None and not names:
        bases = [(name, locked) for name, locked in catalog.lock.bases.items() if locked != "local"]
        # A published image is locked without the tag that it had: it is asked for by its digest, whether it is there.
        bases += [(reference, reference.partition("@")[2]) for reference in catalog.lock.images.values()]
        questions += [partial(_image_drift, name, locked, digest_of) for name, locked in bases]
    return [text for text in _all(questions) if isinstance(text, str)]


def _image_drift(name: str, locked: str, digest_of: Callable[[str], str]) -> str | None:
    now = digest_of(name)
    if now == locked:
        return None
    return f"image {name} is {now} now, locked is {locked}. Fix: `make lock-images` to take it, or keep yours"


def _model_drift(catalog: Catalog, name: str) -> str | None:
    source, locked = catalog.models[name].source, catalog.lock.models.get(name)
    if locked is None:
        return f"{name} is not locked. Fix: run `beeyard lock {name}`"
    if not isinstance(source, HubFile) or locked.revision is None:
        return None
    # First whether what hosts fetch is still there, then whether the branch has gone on.
    pinned = hub.lock_file(source.model_copy(update={"revision": locked.revision}))
    if _content(pinned) != _content(locked):
        return (
            f"{name}: the file of commit {locked.revision} is not what the lock says. Fix: run `beeyard lock {name}`"
        )
    now = hub.lock_file(source)
    if _content(now) == _content(locked):
        return None
    return (
        f"{name}: {source.repository} at {source.revision} has another file since {(now.revision or '')[:12]}: "
        f"{now.size} bytes, locked are {locked.size}. Fix: run `beeyard lock {name}` to take it, or keep yours"
    )


def _engine_drift(catalog: Catalog, name: str) -> str | None:
    locked = catalog.lock.engines.get(name)
    if locked is None:
        return f"engine {name} is not locked. Fix: run `beeyard lock {name}`"
    if catalog.engines[name].tag is None:  # its tarball was locked by hand
        return None
    now = forge.release_file(name, catalog.engines[name])
    if now.sha256 == locked.sha256:
        return None
    return (
        f"engine {name}: its release's file is another one now, sha256 {now.sha256}. Fix: find out why, then lock it"
    )


def _content(lock: FileLock) -> list[tuple[int, str]]:
    return [(lock.size, lock.sha256), *((part.size, part.sha256) for part in lock.parts)]


def _all(questions: list[Callable[[], Any]]) -> list[Any]:
    """The answers in order; a sentence in the place of one that failed."""

    def answer(question: Callable[[], Any]) -> Any:
        try:
            return question()
        except CatalogError as error:
            return str(error)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(answer, questions))


def _told(name: str, entry: FileLock | EngineLock, before: Strict | None) -> str:
    if before == entry:
        return f"{name} is locked as it is"
    what = "locked" if before is None else "locked anew"
    return f"{what} {name}: {entry.size} bytes, sha256 {entry.sha256}"
