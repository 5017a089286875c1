"""`beeyard pods` and the live inventories as people call them: processes of their own against the stand-in."""

import contextlib
import io
import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from beeyard.catalog import PROJECT
from beeyard.clouds import shell
from beeyard.clouds.inventory import hosts, parsed
from beeyard.clouds.pods import CloudError
from tests.cloud_shapes import check
from tests.cloud_stand_in import HOST_KEY, KEY, Clouds, environment, offer, standing
from tests.ssh_stand_in import Sshd, listening

BOTH = pytest.mark.parametrize("name", ["runpod", "vast"])


class Ran(NamedTuple):
    """How a command ended."""

    code: int
    stdout: str
    stderr: str

    @property
    def output(self) -> str:
        return self.stdout + self.stderr


class Place:
    """The stand-ins, and commands that see them."""

    def __init__(self, clouds: Clouds, sshd: Sshd, folder: Path, key: Path) -> None:
        self.clouds, self.sshd, self.folder = clouds, sshd, folder
        secrets = {"RUNPOD_API_KEY", "VAST_API_KEY"}
        here = {name: value for name, value in os.environ.items() if name not in secrets}
        self.environment = {
            **here, **environment(clouds), "BEEYARD_SSH_KEY": str(key), "BEEYARD_CLOUDS_STATE": str(folder / "state"),
            "BEEYARD_POD_WAIT": "1", "COLUMNS": "200", "PYINFRA_PROGRESS": "off",
        }  # fmt: skip

    def beeyard(self, *words: str, **env: str) -> Ran:
        """Run `beeyard pods …`; its arguments are all that others on this machine see."""
        return self.run([sys.executable, "-m", "beeyard.cli", "pods", *words], **env)

    def by_pyinfra(self, name: str, **env: str) -> Ran:
        """Have pyinfra read an inventory, with its group's data."""
        return self.run(
            [sys.executable, "-m", "pyinfra", f"inventories/{name}.py", "debug-inventory", "--json"], **env
        )

    def inventory(self, name: str, **env: str) -> Ran:
        """What an inventory file calls, in this process."""
        given = {key: value for key, value in {**self.environment, **env}.items() if value}
        out, err, code = io.StringIO(), io.StringIO(), 0
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(shell, "STATE", self.folder / "state")
            for key in {*env, *environment(self.clouds)}:
                patched.delenv(key, raising=False)
            for key, value in given.items():
                patched.setenv(key, value)
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                try:
                    print(json.dumps([{"name": host, "data": data} for host, data in hosts(name)]))
                except SystemExit as left:
                    code = int(str(left.code))
        assert KEY not in out.getvalue() + err.getvalue()
        return Ran(code, out.getvalue(), err.getvalue())

    def hosts(self, name: str, **env: str) -> dict[str, dict[str, Any]]:
        return _hosts(self.inventory(name, **env))

    def run(self, command: list[str], **env: str) -> Ran:
        given = {name: value for name, value in {**self.environment, **env}.items() if value}
        ran = subprocess.run(
            command, check=False, cwd=PROJECT, capture_output=True, text=True, env=given, timeout=60,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert KEY not in ran.stdout + ran.stderr
        assert "Traceback" not in ran.stderr, ran.stderr
        return Ran(ran.returncode, ran.stdout, ran.stderr)

    def rent(self, label: str, pod_id: str, hours: float = 8, **env: str) -> None:
        deadline = datetime.now(UTC) + timedelta(hours=hours)
        said = {"BEEYARD_PRESET": "tiny", "BEEYARD_DEADLINE": f"{deadline:%Y-%m-%dT%H:%M:%SZ}", "OTHER": "secret"}
        asked = {"ports": "8910/http,22/tcp", "volumeInGb": 100, "disk": 130}
        self.clouds.rent(label, asked, {**said, **env}, pod_id)


def _hosts(ran: Ran) -> dict[str, dict[str, Any]]:
    assert ran.code == 0, ran.output
    return {host["name"]: host["data"] for host in json.loads(ran.stdout)}


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("key") / "id_ed25519"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(file)], check=True)
    return file


@pytest.fixture
def place(tmp_path: Path, key: Path) -> Iterator[Place]:
    public = key.with_name("id_ed25519.pub").read_text()
    with standing() as clouds, listening(tmp_path / "pod", public) as sshd:
        clouds.stock = {"NVIDIA GeForce RTX 4090": ((0.69, "High"), (0.34, "Low"))}
        clouds.offers = [offer(11, 0.4), offer(12, 0.5)]
        clouds.ports = iter([sshd.port] * 100)
        yield Place(clouds, sshd, tmp_path, key)
        # The watcher goes with the container, which here is this machine.
        status = sshd.folder / "run" / "beeyard-watch.json"
        if status.exists():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(json.loads(status.read_text())["pid"]), signal.SIGTERM)
        for exchange in clouds.exchanges:
            check(exchange)


# ----------------------------------------------------------------------------------------------- inventories


@BOTH
def test_an_inventory_has_the_pods_where_they_are_now(place: Place, name: str) -> None:
    place.rent("beeyard-llm", "101")
    place.rent("training", "102")
    found = _hosts(place.by_pyinfra(name))
    assert set(found) == {"llm"}
    data = found["llm"]
    assert (data["ssh_hostname"], data["ssh_port"], data["ssh_user"]) == ("127.0.0.1", place.sshd.port, "root")
    assert (data["llama_preset"], data["llama_prefix"]) == ("tiny", "/workspace/beeyard")
    assert (data["provider"], data["pod_id"]) == (name, "101")
    assert data["price"] > 0
    assert data["ssh_known_hosts_file"].endswith(f"known_hosts-{name}-101")
    assert data["llama_bind"] == "127.0.0.1"
    assert "secret" not in json.dumps(found)
    wanted = "https://101-8910.proxy.runpod.net" if name == "runpod" else ""
    assert data["proxy_url"] == wanted


@BOTH
def test_it_asks_once_and_remembers_that_for_seconds(place: Place, name: str) -> None:
    place.rent("beeyard-llm", "101")
    first, second = place.hosts(name), place.hosts(name)
    assert first == second
    assert len(place.clouds.exchanges) == 1
    remembered = place.folder / "state" / f"pods-{name}.json"
    assert remembered.stat().st_mode & 0o777 == 0o600
    assert "secret" not in remembered.read_text()
    assert KEY not in remembered.read_text()


@BOTH
def test_a_port_that_changed_is_seen(place: Place, name: str) -> None:
    place.rent("beeyard-llm", "101")
    place.hosts(name)
    place.clouds.rented["101"].port = 31111
    (place.folder / "state" / f"pods-{name}.json").unlink()
    assert place.hosts(name)["llm"]["ssh_port"] == 31111


@BOTH
def test_a_pod_that_starts_is_waited_for(place: Place, name: str) -> None:
    place.rent("beeyard-llm", "101")
    place.clouds.rented["101"].unready = 2
    assert set(place.hosts(name, BEEYARD_POD_WAIT="20")) == {"llm"}


@BOTH
@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"unready": 1000}, "llm is still starting. Fix: try again, or wait longer (BEEYARD_POD_WAIT=SECONDS)"),
        ({"is_running": False}, "llm is stopped. Fix: `beeyard pods start"),
        ({"gpus": 0}, "llm has no GPU since it started again. Fix: `beeyard pods down"),
    ],
)
def test_a_pod_that_cannot_be_deployed_to_is_one_sentence(
    place: Place, name: str, change: dict[str, Any], sentence: str
) -> None:
    place.rent("beeyard-llm", "101")
    for key, value in change.items():
        setattr(place.clouds.rented["101"], key, value)
    ran = place.inventory(name)
    assert ran.code != 0
    assert sentence in ran.stderr


def test_a_pod_without_port_22_is_one_sentence(place: Place) -> None:
    place.clouds.rent("beeyard-llm", {"ports": "8910/http"}, {}, "101")
    place.clouds.rented["101"].unready = 1000
    ran = place.inventory("runpod")
    assert "llm cannot be reached: it was made without port 22/tcp. Fix: `beeyard pods down runpod llm`" in ran.stderr


@BOTH
def test_none_and_another_one_are_told(place: Place, name: str) -> None:
    assert f"{name} has no pod of ours. Fix: rent one, as in `beeyard pods up" in place.inventory(name).stderr
    place.rent("beeyard-llm", "101")
    (place.folder / "state" / f"pods-{name}.json").unlink()
    said = place.inventory(name, BEEYARD_POD="other").stderr
    assert f"{name} has no pod 'other' of ours; it has llm. Fix: " in said


@BOTH
def test_of_several_all_are_meant_or_the_named_one(place: Place, name: str) -> None:
    place.rent("beeyard-a", "101")
    place.rent("beeyard-b", "102")
    ran = place.inventory(name)
    assert f"{name} has 2 pods: a, b. For one alone: BEEYARD_POD=a" in ran.stderr
    assert set(place.hosts(name, BEEYARD_POD="b")) == {"b"}
    place.clouds.rented["102"].is_running = False
    (place.folder / "state" / f"pods-{name}.json").unlink()
    ran = place.inventory(name)
    assert "left out: b is stopped" in ran.stderr
    assert [host["name"] for host in json.loads(ran.stdout)] == ["a"]


def test_two_of_one_name_are_refused(place: Place) -> None:
    place.rent("beeyard-a", "101")
    place.rent("beeyard-a", "102")
    assert "vast has several pods called a: 101, 102. Fix: end those" in place.inventory("vast").stderr


@BOTH
def test_without_a_key_it_says_how_to_get_one(place: Place, name: str) -> None:
    ran = place.by_pyinfra(name, RUNPOD_API_KEY="", VAST_API_KEY="")
    assert ran.code != 0
    assert f"there is no {name.upper()}_API_KEY in the environment. Fix: make a key at https://" in ran.stderr
    assert place.clouds.exchanges == []


@BOTH
def test_one_pod_by_its_address_needs_no_key(place: Place, name: str) -> None:
    ran = place.by_pyinfra(name, RUNPOD_API_KEY="", VAST_API_KEY="", BEEYARD_SSH="root@192.0.2.7:22022")
    found = _hosts(ran)
    data = found["pod"]
    assert (data["ssh_hostname"], data["ssh_port"], data["ssh_user"]) == ("192.0.2.7", 22022, "root")
    assert (data["llama_prefix"], data["llama_preset"]) == ("/workspace/beeyard", "gemma-4-31b")
    assert place.clouds.exchanges == []


def test_an_api_that_fails_for_a_moment_does_not_stop_a_deploy(place: Place) -> None:
    place.rent("beeyard-llm", "101")
    first = place.hosts("vast")
    remembered = place.folder / "state" / "pods-vast.json"
    known = json.loads(remembered.read_text())
    remembered.write_text(json.dumps({**known, "at": known["at"] - 60}))
    place.clouds.fail("GET", "/instances/", status=503)
    ran = place.inventory("vast")
    assert "Until then, what was known 6" in ran.stderr
    assert {host["name"]: host["data"] for host in json.loads(ran.stdout)} == first


def test_exposed_by_the_proxy_a_pod_binds_for_it(place: Place) -> None:
    place.rent("beeyard-llm", "101", BEEYARD_EXPOSE="proxy")
    assert place.hosts("runpod")["llm"]["llama_bind"] == "0.0.0.0"


@BOTH
def test_exposed_by_tls_a_pod_is_told_where_the_world_finds_it(place: Place, name: str) -> None:
    asked = {"ports": "8910/http,22/tcp,8911/tcp", "disk": 130}
    rented = place.clouds.rent("beeyard-llm", asked, {"BEEYARD_EXPOSE": "tcp", "-p 8911:8911": "1"}, "101")
    data = place.hosts(name)["llm"]
    # The provider gave it none, which a deploy says.
    assert (data["llama_expose"], data.get("llama_expose_at"), data.get("llama_bind")) == ("tcp", None, None)
    rented.tls_port = 31911
    (place.folder / "state" / f"pods-{name}.json").unlink()
    assert place.hosts(name)["llm"]["llama_expose_at"] == "127.0.0.1:31911"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("root@192.0.2.7:22022", ("root", "192.0.2.7", 22022)),
        ("192.0.2.7:22022", ("root", "192.0.2.7", 22022)),
        ("me@pod.example", ("me", "pod.example", 22)),
        ("root@[2001:db8::1]:2222", ("root", "2001:db8::1", 2222)),
        ("[2001:db8::1]", ("root", "2001:db8::1", 22)),
        ("2001:db8::1", ("root", "2001:db8::1", 22)),
    ],
)
def test_an_address_is_read(text: str, found: tuple[str, str, int]) -> None:
    address = parsed(text)
    assert (address.user, address.host, address.port) == found


@pytest.mark.parametrize("text", ["root@", "@host", "host:ssh", "host:0", "host:99999", "ssh root@host -p 22"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(CloudError, match=r"BEEYARD_SSH is .* Fix: write it as root@ADDRESS:PORT"):
        parsed(text)


# ------------------------------------------------------------------------------------------------- beeyard pods


@BOTH
def test_offers_are_shown_and_nothing_is_rented(place: Place, name: str) -> None:
    ran = place.beeyard("offers", name, "tiny")
    assert ran.code == 0, ran.output
    assert ran.stdout.index("0.3" if name == "runpod" else "0.4") < ran.stdout.index(
        "0.6" if name == "runpod" else "0.5"
    )
    assert place.clouds.rented == {}


@BOTH
def test_what_no_offer_can_run_is_3_with_the_reason(place: Place, name: str) -> None:
    ran = place.beeyard("offers", name, "tiny", "--disk", "15")
    assert ran.code == 3
    assert "and 15 are asked for. Fix: --disk 21" in ran.stderr


@BOTH
def test_from_nothing_to_a_pod_and_back(place: Place, name: str) -> None:
    def container(rented: Any) -> None:
        url, pod = place.clouds.url, rented.id
        theirs = {"RUNPOD_POD_ID": pod, "RUNPOD_API_KEY": HOST_KEY, "RUNPOD_API_URL": f"{url}/v1"}
        if name == "vast":
            theirs = {"CONTAINER_ID": pod, "CONTAINER_API_KEY": HOST_KEY, "VAST_URL": url}
        place.sshd.environment = {**rented.env, **theirs, "BEEYARD_WATCH_EVERY": "0.2"}

    place.clouds.on_start = container
    ran = place.beeyard("up", name, "tiny", "--yes", "--hours", "2")
    assert ran.code == 0, ran.output
    assert f"deploy:  make deploy TARGET={name}" in ran.stdout
    assert f"tunnel:  ssh -N -L 8910:127.0.0.1:8910 -p {place.sshd.port} root@127.0.0.1" in ran.stdout
    again = place.beeyard("up", name, "tiny", "--yes")
    assert "nothing is rented" in again.stdout
    assert len(place.clouds.rented) == 1
    (row,) = json.loads(place.beeyard("list", name, "--json").stdout)
    assert (row["name"], row["state"]) == ("llm", "running")
    assert 7000 < row["seconds_left"] <= 7200
    assert row["spent"] > 0
    assert "1 h 59 min" in place.beeyard("list").stdout
    line = place.beeyard("ssh", name, "--print").stdout.split()
    said = place.run([*line, "cat /workspace/beeyard/bin/at-start"])
    assert "Written by `beeyard pods`" in said.stdout, said
    down = place.beeyard("down", name, "--yes")
    assert down.code == 0, down.output
    assert "deleted, with 1" in down.stdout
    assert f"is gone: {name} lists it no more" in down.stdout
    assert place.clouds.rented == {}


@BOTH
@pytest.mark.parametrize("deed", ["up", "down", "stop"])
def test_without_a_terminal_and_without_yes_nothing_is_done(place: Place, name: str, deed: str) -> None:
    if deed != "up":
        place.rent("beeyard-llm", "101")
    ran = place.beeyard(deed, name, *(["tiny"] if deed == "up" else []))
    assert ran.code == 7
    assert "Nobody can answer here. Fix: run it in a terminal, or add --yes" in ran.stderr
    assert not [one for one in place.clouds.exchanges if one.method in ("PUT", "DELETE") or one.path.endswith("stop")]


def test_no_at_a_terminal_is_no(place: Place) -> None:
    place.rent("beeyard-llm", "101")
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "beeyard.cli", "pods", "down", "vast"], cwd=PROJECT, env=place.environment,
        stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    ) as program:  # fmt: skip
        os.write(ours, b"n\n")
        said, _ = program.communicate(timeout=30)
    os.close(ours)
    os.close(theirs)
    assert "nothing was ended" in said
    assert set(place.clouds.rented) == {"101"}


def test_down_without_pods_says_so_and_what_goes_on_costing(place: Place) -> None:
    place.clouds.volumes = [{"id": "v1", "name": "models", "size": 100, "dataCenterId": "EU-RO-1"}]
    ran = place.beeyard("down", "runpod", "--yes")
    assert ran.code == 0
    assert "goes on costing: network volume models (100 GB, EU-RO-1), about $7.00 a month" in ran.stdout
    assert "vast has nothing of ours left" in place.beeyard("down", "vast").stdout


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("up", "runpod", "tiny", "--expose", "all"), "there is no --expose all. Fix: one of tunnel, proxy, tcp"),
        (("up", "vast", "tiny", "--expose", "proxy"), "vast has no HTTPS proxy of its own"),
        (("up", "vast", "tiny", "--name", "My Pod"), "name is 'My Pod'"),
        (("down", "aws"), "no cloud 'aws'"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_asked(
    place: Place, words: tuple[str, ...], sentence: str
) -> None:
    ran = place.beeyard(*words)
    assert ran.code in (2, 7)
    assert sentence in ran.stderr
    assert "Fix: " in ran.stderr
    assert not [one for one in place.clouds.exchanges if one.method != "GET"]


@BOTH
def test_refusals_of_the_cloud_end_with_7(place: Place, name: str) -> None:
    place.clouds.fail("GET", "/", status=402)
    ran = place.beeyard("list", name)
    assert ran.code == 7
    assert "wants money first" in ran.stderr
    assert "Fix: add credit" in ran.stderr


def test_keys_are_in_no_argument_list(place: Place) -> None:
    """The stand-in looks at every process of ours while it is asked."""
    seen: list[bytes] = []

    def look(rented: Any) -> None:
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                seen.append((folder / "cmdline").read_bytes())
            except OSError:
                continue

    place.clouds.on_end = look
    place.rent("beeyard-llm", "101")
    place.beeyard("down", "vast", "--yes")
    assert any(b"beeyard.cli" in words for words in seen)
    assert not any(KEY.encode() in words for words in seen)
