"""A host as far as it decides what can run there: what ``solve`` reads, and what ``--save-facts`` keeps."""

from typing import Literal

from beeyard.catalog import Strict

Provider = Literal["runpod", "vast", ""]


class Holder(Strict):
    """
    A process that has memory of a card; ``used_mib`` is None where the driver does not say (``[N/A]``).

    ``name`` is its program's file, without folder and arguments; empty where it runs outside of our container.
    """

    pid: int
    name: str
    used_mib: int | None


class Gpu(Strict):
    """One card, as nvidia-smi says it; None is what it answers with ``[N/A]`` or ``[Not Supported]``."""

    index: int
    uuid: str
    name: str
    # Empty where the driver is too old to say it.
    compute_capability: str
    memory_total_mib: int
    memory_free_mib: int
    ecc: bool | None = None
    # Whether it is cut into MIG instances.
    mig: bool = False
    power_limit_w: float | None = None
    temperature_c: int | None = None
    holders: tuple[Holder, ...] = ()


class Nvcc(Strict):
    """
    A CUDA compiler; ``architectures`` as CMake writes them: 86, 89, 120.

    ``version`` is CUDA's, as 12.8.
    """

    path: str
    version: str
    architectures: tuple[str, ...] = ()


class Gxx(Strict):
    """A C++ compiler of GCC beside the host's own, as /usr/bin/g++-13; ``version`` as 13.3.0."""

    path: str
    version: str


class DockerState(Strict):
    """
    A host's Docker Engine. ``version`` is empty where none answers, and ``silent`` then says why.

    ``root`` is where it keeps images; ``candidate`` is what apt would install.
    """

    # Empty where Docker is not installed.
    command: str = ""
    candidate: str = ""
    version: str = ""
    silent: str = ""
    compose: str = ""
    buildx: str = ""
    is_snap: bool = False
    runtimes: tuple[str, ...] = ()
    has_cdi: bool = False
    has_toolkit: bool = False
    # The classic store takes a tarball without the layers that it has; containerd's wants all of them.
    keeps_layers_apart: bool = True
    root: str = ""
    # Whether it asks registries through a proxy.
    has_proxy: bool = False


# As systemd-detect-virt calls them.
CONTAINERS = {
    "container-other", "docker", "lxc", "lxc-libvirt", "openvz", "podman", "pouch", "proot", "rkt", "systemd-nspawn"
}  # fmt: skip


class Machine(Strict):
    """
    One host. Empty text and None are what it has not, or does not say.

    ``gpu_fault`` is nvidia-smi's own sentence where it lists no card although it is there: no devices, a kernel
    module of another version than the library, an NVML error. It may come with cards, where only one of several
    fell off the bus or does not say its memory.
    """

    gpus: tuple[Gpu, ...] = ()
    has_nvidia_smi: bool = False
    gpu_fault: str = ""
    driver: str = ""
    # The newest CUDA that the driver speaks, as 12.8.
    driver_cuda: str = ""
    # The version of the loaded kernel module.
    kernel_module: str = ""
    # /dev/nvidia0, /dev/nvidia-uvm …; in WSL /dev/dxg.
    devices: tuple[str, ...] = ()
    nvccs: tuple[Nvcc, ...] = ()
    # The host compiler's version, as 12.2.0, and that of what apt would install as one.
    cxx: str = ""
    cxx_candidate: str = ""
    # Others beside it.
    gxxs: tuple[Gxx, ...] = ()
    init: Literal["systemd", "other"] = "other"
    # docker, podman, lxc, kvm, wsl, none …, as systemd-detect-virt calls it.
    virtualisation: str = "none"
    provider: Provider = ""
    # Where the provider keeps what survives a stop.
    volume: str = ""
    is_root: bool = False
    docker: DockerState = DockerState()
    memory_mib: int
    memory_available_mib: int
    # The cgroup's limit; None where there is none.
    memory_limit_mib: int | None = None
    # The hard limit of locked memory; None for unlimited.
    memlock_kib: int | None = None
    # Capabilities of the connected user: CAP_IPC_LOCK locks whatever the limit, CAP_SYS_RESOURCE raises limits.
    has_ipc_lock: bool = False
    has_sys_resource: bool = False
    cpu_flags: tuple[str, ...] = ()
    cores: int = 1
    # Bytes that are free where a path lies or will lie.
    free_bytes: dict[str, int] = {}
    # By path, a name of the file system that it shares with others.
    file_systems: dict[str, str] = {}
    kernel: str = ""
    glibc: str = ""
    distribution: str = ""
    # As 22.04 or 13, and as jammy or trixie.
    release: str = ""
    codename: str = ""
    listening: tuple[int, ...] = ()
    # None where nothing on the host knows.
    time_synchronised: bool | None = None
    # Of what a plan asked for: whether its name is known and it takes connections. What nothing there can try is
    # left out.
    reachable: dict[str, bool] = {}

    @property
    def is_contained(self) -> bool:
        """Whether the kernel, its modules and its limits are those of a machine below, as in a rented pod."""
        return self.virtualisation in CONTAINERS or bool(self.provider)
