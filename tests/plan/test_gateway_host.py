"""A gateway's files and units on its host, put there by its operations; HAProxy checks its configuration for real."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from beeyard.certificates import public_ssh_key, tunnel_key
from beeyard.facts.units import OwnService
from beeyard.gateway import Backend, Gateway, GatewaySettings, authorized_key, files
from beeyard.operations import gateways
from beeyard.operations.file_set import Directory, File
from tests.gateways import USER_KEYS, haproxy
from tests.needs import program
from tests.operations import Failed
from tests.plan.conftest import Apply
from tests.plan.test_machine import asked
from tests.real_server import KEY

CADDY = {"package": "caddy", "config": "/etc/caddy/Caddyfile"}
SYSTEMCTL = """#!/bin/sh
# Keeps in files what systemd would keep, and writes down what it was told.
state={folder}
echo "$*" >>$state/told
command=$1; shift
for unit do
    case $unit in -*) continue ;; esac
    case $command in
    is-active) test -e $state/$unit && echo active || echo inactive ;;
    is-enabled) test -e $state/$unit && echo enabled || echo disabled ;;
    enable) touch $state/$unit ;;
    disable) rm -f $state/$unit ;;
    esac
done
"""


def test_a_gateway_is_put_in_place_once_and_a_fault_leaves_it_as_it_was(
    apply: Apply, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, etc, units = tmp_path / "systemd", tmp_path / "etc", tmp_path / "units"
    for folder in (kept, units, tmp_path / "bin"):
        folder.mkdir()
    (tmp_path / "bin" / "systemctl").write_text(SYSTEMCTL.format(folder=kept))
    (tmp_path / "bin" / "systemctl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{Path(haproxy()).parent}:{os.environ['PATH']}")
    backends = (Backend(name="s0", address="127.0.0.1", port=1, slots=1),)
    gateway = Gateway(name="door", preset="tiny", settings=GatewaySettings(prefix=str(etc)), backends=backends)
    content = files(gateway, gateway.places, USER_KEYS, KEY)
    config = File(gateway.places.config, content.pop("haproxy.cfg").encode(), "600")
    items = [
        Directory(str(etc), "700"),
        *(File(f"{etc}/{name}", one.encode(), "600") for name, one in content.items()),
    ]
    words: dict[str, Any] = {
        "items": items,
        "main": "main.service",
        "ours": ["tunnel-", "front.service"],
        "units_dir": str(units),
    }
    words["units"] = [File(f"{units}/main.service", b"[Unit]\n"), File(f"{units}/tunnel-a.service", b"[Unit]\n")]
    apply(gateways.serving, config=config, **words)
    assert {file.name: file.stat().st_mode & 0o777 for file in etc.iterdir()} == dict.fromkeys(
        ("haproxy.cfg", "homes.map", "inner.map", "limits.map", "users.map"), 0o600
    )
    assert apply(gateways.serving, config=config, **words) == 0
    # A key more is a reload, no restart.
    more = [*items[:-1], File(f"{etc}/users.map", b"AA eve\n", "600")]
    (kept / "told").unlink()
    apply(gateways.serving, config=config, **{**words, "items": more})
    told = (kept / "told").read_text()
    assert "reload main.service" in told
    assert "restart" not in told
    assert "enable" not in told.replace("is-enabled", "")
    # What Caddy reads, too; and its unit goes where it is no longer wanted.
    front = [*words["units"], File(f"{units}/front.service", b"[Unit]\n")]
    faced = {**words, "units": front, "reloads": {"front.service": f"{etc}/Caddyfile"}}
    apply(gateways.serving, config=config, **{**faced, "items": [*more, File(f"{etc}/Caddyfile", b"one\n", "600")]})
    (kept / "told").unlink()
    apply(gateways.serving, config=config, **{**faced, "items": [*more, File(f"{etc}/Caddyfile", b"two\n", "600")]})
    assert "reload front.service\n" in (kept / "told").read_text()
    assert "restart" not in (kept / "told").read_text()
    apply(gateways.serving, config=config, **{**words, "items": more})
    assert not (units / "front.service").exists()
    # What HAProxy refuses does not take the place of what runs.
    with pytest.raises(Failed):
        apply(
            gateways.serving, config=config._replace(content=b"frontend x\n  nonsense\n"), **{**words, "items": more}
        )
    assert Path(config.path).read_bytes() == config.content
    # A tunnel that is no longer wanted goes.
    fewer = {**words, "items": more, "units": words["units"][:1]}
    apply(gateways.serving, config=config, **fewer)
    assert [file.name for file in units.iterdir()] == ["main.service"]
    assert not (kept / "tunnel-a.service").exists()


def test_a_monitors_changed_unit_is_started_anew(
    apply: Apply, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, etc, units = tmp_path / "systemd", tmp_path / "etc", tmp_path / "units"
    for folder in (kept, units, tmp_path / "bin"):
        folder.mkdir()
    (tmp_path / "bin" / "systemctl").write_text(SYSTEMCTL.format(folder=kept))
    (tmp_path / "bin" / "systemctl").chmod(0o755)
    monkeypatch.setenv(
        "PATH", f"{tmp_path}/bin:{Path(program('promtool', 'prometheus')).parent}:{os.environ['PATH']}"
    )
    words: dict[str, Any] = {
        "items": [Directory(str(etc), "700")], "main": "main.service", "ours": ["watch-"], "units_dir": str(units),
        "check": "promtool check config", "restarts": True,
    }  # fmt: skip

    def put(port: int, config: bytes = b"global: {}\n") -> int:
        unit = File(f"{units}/main.service", f"[Service]\nExecStart=/usr/bin/prometheus :{port}\n".encode())
        return apply(gateways.serving, config=File(f"{etc}/prometheus.yml", config, "600"), units=[unit], **words)

    put(9090)
    (kept / "told").unlink()
    put(9091, b"global: {scrape_interval: 5s}\n")
    told = (kept / "told").read_text()
    assert "restart main.service" in told
    assert "reload main.service" not in told
    assert put(9091, b"global: {scrape_interval: 5s}\n") == 0
    with pytest.raises(Failed):
        put(9091, b"scrape_config: nonsense\n")
    assert b"nonsense" not in (etc / "prometheus.yml").read_bytes()


def test_a_tunnels_key_is_let_in_once_and_beside_others(apply: Apply, tmp_path: Path) -> None:
    file = tmp_path / ".ssh" / "authorized_keys"
    file.parent.mkdir()
    file.write_text("ssh-ed25519 AAAAmine me\n")
    line = authorized_key(public_ssh_key(tunnel_key(tmp_path / "key")), 8910)
    assert apply(gateways.let_in, line=line, path=str(file)) == 1
    assert apply(gateways.let_in, line=line, path=str(file)) == 0
    # Another port: its line is replaced.
    other = line.replace(":8910", ":8911")
    apply(gateways.let_in, line=other, path=str(file))
    assert file.read_text() == f"ssh-ed25519 AAAAmine me\n{other}\n"


def test_a_caddy_is_the_users_own_if_it_runs_and_its_file_is_not_the_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program("caddy", "caddy")
    kept, root, binaries = tmp_path / "systemd", tmp_path / "root", tmp_path / "bin"
    for folder in (kept, binaries, root / "etc" / "caddy", root / "var/lib/dpkg/info", root / "var/lib/dpkg/updates"):
        folder.mkdir(parents=True)
    # The real dpkg with what it knows of this machine's package, and that package's file in a place of our own.
    for file in Path("/var/lib/dpkg/info").glob("caddy.*"):
        shutil.copy(file, root / "var/lib/dpkg/info")
    shutil.copy("/etc/caddy/Caddyfile", root / "etc/caddy")
    status = root / "var/lib/dpkg/status"
    status.write_text(subprocess.check_output(["dpkg", "--status", "caddy"], text=True))
    for name, text in (
        ("systemctl", SYSTEMCTL.format(folder=kept)),
        ("dpkg", f'#!/bin/sh\nexec /usr/bin/dpkg --root={root} "$@"\n'),
    ):
        (binaries / name).write_text(text)
        (binaries / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{binaries}:{os.environ['PATH']}")

    assert asked(CADDY, OwnService) is False
    (kept / "caddy.service").touch()
    assert asked(CADDY, OwnService) is False  # as the package starts it
    (root / "etc/caddy/Caddyfile").write_text("bees.example.org\n")
    assert asked(CADDY, OwnService) is True
    (kept / "caddy.service").unlink()
    assert asked(CADDY, OwnService) is False
    (kept / "caddy.service").touch()
    status.write_text("")
    assert asked(CADDY, OwnService) is True  # of no package
