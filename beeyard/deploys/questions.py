"""
What a deploy's operations will ask of a host, so that it is asked in one command.

An operation whose question is missing here asks by itself: that takes longer, and is not wrong.
"""

from beeyard.carried import supervisor
from beeyard.deploys.front import front_questions
from beeyard.deploys.host_spec import Plan
from beeyard.deploys.prepare import needs_pip, packages_of, tools_of
from beeyard.deploys.serve import definition_of
from beeyard.dialects import argv
from beeyard.facts.docker import DockerEngine, ImageStates
from beeyard.facts.files import FileStates
from beeyard.facts.host import InstalledPackages, KernelSettings, PackageVersion
from beeyard.facts.model_files import ModelFileStates
from beeyard.facts.pythons import PipWorks
from beeyard.facts.seen import Question, asked
from beeyard.facts.servers import EngineFiles, EngineHelp, Executable, ServerState
from beeyard.facts.users import UserExists
from beeyard.operations.file_set import Item
from beeyard.operations.kernel_settings import LIMITS_FILE, SYSCTL_FILE


def questions(plan: Plan) -> list[Question]:
    """In the order of deploy.py."""
    return [*_prepare(plan), *_engine(plan), *_models(plan), *_serve(plan), *front_questions(plan)]


def _prepare(plan: Plan) -> list[Question]:
    spec, wanted = plan.spec, list[Question]()
    if plan.machine.is_root and plan.probe["has_apt"]:
        wanted.append(asked(InstalledPackages, packages=packages_of(plan)))
    if plan.machine.is_root and spec.user is not None and spec.image is None:
        wanted.append(asked(UserExists, user=spec.user))
    wanted.append(_files(tools_of(plan)))
    if spec.runtime == "supervisor":
        wanted.append(asked(FileStates, paths=[str(spec.prefix / "lib" / supervisor().name)]))
    if plan.machine.is_root:
        wanted += [asked(FileStates, paths=[SYSCTL_FILE]), asked(FileStates, paths=[LIMITS_FILE])]
        wanted += [asked(KernelSettings, names=list(spec.sysctl))] if spec.sysctl else []
    return wanted


def _engine(plan: Plan) -> list[Question]:
    spec, wanted = plan.spec, list[Question]()
    if needs_pip(plan) and not plan.is_here:
        wanted.append(asked(PipWorks, python=plan.python_with_pip))
    artefact = spec.engine.artefact
    if spec.image is not None:
        wanted += [asked(DockerEngine), asked(ImageStates, references=[spec.image.reference])]
    elif artefact.kind == "debian":
        wanted += [asked(PackageVersion, package=artefact.package), asked(Executable, path=artefact.binary)]
    elif not spec.engine_is_held:
        wanted.append(asked(EngineFiles, tool=plan.engine_tool, directory=str(spec.engine_dir)))
    return wanted


def _models(plan: Plan) -> list[Question]:
    pieces = [pair for file in plan.spec.model_files for pair in plan.spec.pieces_of(file)]
    return [asked(ModelFileStates, fetch=plan.fetch, files=[(str(path), piece.sha256)]) for path, piece in pieces]


def _serve(plan: Plan) -> list[Question]:
    spec = plan.spec
    wanted = [asked(FileStates, paths=[str(spec.api_key_file)]), _files(definition_of(plan))]
    if spec.image is None:
        wanted.append(asked(EngineHelp, binary=argv(spec)[0]))
    return [*wanted, asked(ServerState, guard=plan.guard, prefix=str(spec.prefix))]


def _files(items: list[Item]) -> Question:
    return asked(FileStates, paths=[item.path for item in items])
