"""Every check there is of a host that serves, each with what was found and, where it fails, a Fix. Pure."""

from collections.abc import Iterable, Mapping

from beeyard.catalog import Catalog, Strict
from beeyard.checks import gpu_faults
from beeyard.examination import GOOD, Examined, drift
from beeyard.survey import planned, solved

GIB = 2**30
PRIVATE = 0o600
# Characters of a key where others than the host itself reach the server, as a deploy makes them.
LEAST_KEY = 32
# Of a disk: what a model's update and logs need.
LEAST_FREE = 2 * GIB
MOST_RESTARTS = 3
# °C at which NVIDIA's cards of these presets throttle, or are near it.
HOT_C = 87


class Check(Strict):
    """One thing that was looked at. ``is_good`` is None where nobody there could say."""

    name: str
    is_good: bool | None
    said: str


def of_host(examined: Examined, catalog: Catalog, key_mode: int | None) -> list[Check]:
    """
    All of a host that was asked.

    :param key_mode: the mode of the host's key on this machine; None where it is not here
    """
    solution = solved(examined.survey, catalog)
    reasons = planned(examined.survey, solution, catalog, []).reasons
    found = _several("plan", reasons, "what its data asks for fits the host")
    found += _machine(examined)
    if not examined.is_deployed:
        return [*found, Check(name="server", is_good=False, said="no server was deployed here. Fix: deploy")]
    found += _server(examined)
    found += _several("drift", drift(examined, catalog, solution), "what runs is what presets and inventory say")
    found += _keys(examined, key_mode, is_reached=solution.spec is not None and solution.spec.is_reached)
    return [*found, *_flags(examined)]


def of_keys_here(modes: Mapping[str, int]) -> list[Check]:
    """The folder of keys on this machine, and every file in it, by their modes."""
    open_to_others = [f"{name} has mode {mode:04o}" for name, mode in modes.items() if mode & 0o077]
    text = f"{'; '.join(open_to_others)}: others can read keys. Fix: chmod -R go= .beeyard/keys"
    if not modes:
        return [Check(name="keys here", is_good=None, said="there are none yet")]
    good = f"{len(modes)} files and folders, this user's alone"
    return [Check(name="keys here", is_good=not open_to_others, said=text if open_to_others else good)]


def unreached(why: str) -> Check:
    """A host that could not be asked."""
    return Check(name="reached", is_good=False, said=why)


def all_good(checks: Iterable[Check]) -> bool:
    """Whether none failed; what nobody could say does not count."""
    return all(check.is_good is not False for check in checks)


def _several(name: str, faults: Iterable[str], good: str) -> list[Check]:
    found = [Check(name=name, is_good=False, said=text) for text in faults]
    return found or [Check(name=name, is_good=True, said=good)]


def _machine(examined: Examined) -> list[Check]:
    machine = examined.survey.machine
    found = []
    if machine.gpus or machine.has_nvidia_smi or machine.gpu_fault:
        module = machine.kernel_module
        faults = gpu_faults(machine)
        if module and machine.driver and module != machine.driver:
            faults.append(
                f"the loaded NVIDIA kernel module is {module}, the driver's programs {machine.driver}. Fix: reboot"
            )
        cards = ", ".join(f"{card.name}, {card.memory_total_mib} MiB" for card in machine.gpus)
        found += _several("driver", faults, f"NVIDIA {machine.driver}, CUDA {machine.driver_cuda}: {cards}")
        hot = [card for card in machine.gpus if (card.temperature_c or 0) >= HOT_C]
        said = [
            f"{card.name} is at {card.temperature_c} °C, where it slows down. Fix: see its fans and the air around "
            "it, or lower its power limit with nvidia-smi --power-limit"
            for card in hot
        ]
        known = [str(card.temperature_c) for card in machine.gpus if card.temperature_c is not None]
        found += _several("temperature", said, f"{', '.join(known)} °C") if known else []
    else:
        found.append(Check(name="driver", is_good=None, said="no NVIDIA card or driver is seen here"))
    if machine.time_synchronised is None:
        found.append(Check(name="time", is_good=None, said="nothing here knows whether its clock is synchronised"))
    else:
        late = "its clock is not synchronised. Fix: timedatectl set-ntp true, or install chrony"
        good = machine.time_synchronised
        found.append(Check(name="time", is_good=good, said="synchronised" if good else late))
    return [*found, *_space(examined)]


def _space(examined: Examined) -> list[Check]:
    spaces = {path: free for path, (_, free) in examined.running.space.items()} or examined.survey.machine.free_bytes
    short = [
        f"{path} has {free / GIB:.1f} GiB free. Fix: make prune, or give it another disk (llama_models_dir)"
        for path, free in spaces.items()
        if free < LEAST_FREE
    ]
    least = min(spaces.values(), default=None)
    if least is None:
        return [Check(name="disk", is_good=None, said="nobody could say what is free")]
    return _several("disk", short, f"{least / GIB:.1f} GiB free at least")


def _server(examined: Examined) -> list[Check]:
    running, state = examined.running, examined.state
    look = "Fix: make logs, and make deploy if it does not come back"
    if running.health == GOOD:
        health = Check(name="health", is_good=True, said=f"{state.get('title')}: /health answers 200")
    elif not state.get("pid"):
        health = Check(name="health", is_good=False, said=f"{state.get('title')} does not run. {look}")
    else:
        answer = f"/health answers {running.health}" if running.health else "it does not answer"
        health = Check(name="health", is_good=False, said=f"{state.get('title')} runs, but {answer}. {look}")
    if running.restarts is None:
        return [health]
    many = running.restarts > MOST_RESTARTS
    text = f"its keeper started it again {running.restarts} times"
    said = f"{text}. Fix: make logs shows what it said before it ended" if many else text
    return [health, Check(name="restarts", is_good=not many, said=said)]


def _keys(examined: Examined, key_mode: int | None, *, is_reached: bool) -> list[Check]:
    file = examined.running.key_file
    faults = []
    if file is None:
        faults.append("its key file is not there. Fix: deploy")
    else:
        # Below a container's user it is the group's to read, as compose.yaml of a clone has it.
        if int(file.mode, 8) & 0o077:
            faults.append(f"{file.path} has mode {file.mode}: others can read it. Fix: deploy")
        if not file.keys:
            faults.append(f"{file.path} holds no key, so anyone could use the server. Fix: deploy")
        elif file.shortest < LEAST_KEY and is_reached:
            faults.append(
                f"{file.path} has a key of {file.shortest} characters, and others reach the server. Fix: remove "
                "BEEYARD_API_KEY and that file, and deploy: a longer one is made"
            )
    faults += [
        f"the key can be read in {place}. Fix: take it out of there, make a new one, and deploy"
        for place in examined.running.key_seen_in
    ]
    if key_mode is not None and key_mode & 0o077:
        faults.append(f"the key's copy on this machine has mode {key_mode:04o}. Fix: chmod 600 .beeyard/keys/*")
    good = f"{file.path}, mode {file.mode}, of {file.owner}; it is in no argument, unit or log" if file else ""
    return _several("key", faults, good)


def _flags(examined: Examined) -> list[Check]:
    if examined.flag_faults is None:
        said = "its engine was not asked here: it is in an image, or not there"
        return [Check(name="flags", is_good=None, said=said)]
    faults = [f"{text}. Fix: deploy, which brings engine and arguments together" for text in examined.flag_faults]
    return _several("flags", faults, "the engine's own --help knows every argument that runs")
