"""From nothing to a pod that lets us in, and back to nothing: real SSH to a stand-in of a pod, faults included."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from beeyard.catalog import PRESETS, PROJECT, Catalog, FileLock, Gguf, load_catalog
from beeyard.clouds import needs, shell, story
from beeyard.clouds.ending import then_down
from beeyard.clouds.pods import Cloud, CloudError, NoCapacity, Offer, Order, Unclear, Wish
from beeyard.clouds.runpod import BASE_IMAGE, RunPod
from beeyard.clouds.story import Patience, Teller
from beeyard.clouds.vast import Vast
from tests import headers
from tests.cloud_shapes import check
from tests.cloud_stand_in import HOST_KEY, KEY, Clouds, Rented, environment, offer, standing
from tests.needs import program
from tests.ssh_stand_in import Sshd, listening


@pytest.fixture(autouse=True)
def _ssh() -> None:
    program("ssh", "openssh-client")


CATALOG = load_catalog([PRESETS])
QUICK = Patience(start_s=8, appear_s=1, gone_s=1, every_s=0.1)
BOTH = pytest.mark.parametrize("name", ["runpod", "vast"])


class World:
    """Both providers, a pod's sshd, and what the user was told and asked."""

    def __init__(self, clouds: Clouds, sshd: Sshd) -> None:
        self.clouds, self.sshd = clouds, sshd
        self.told: list[str] = []
        self.questions: list[str] = []
        self.answer = True
        self.teller = Teller(self.told.append, self.asked)

    def asked(self, question: str) -> bool:
        self.questions.append(question)
        return self.answer

    def cloud(self, name: str, answer_s: float = 5) -> Cloud:
        gpus = CATALOG.gpus
        return RunPod(KEY, gpus, answer_s, quickly) if name == "runpod" else Vast(KEY, answer_s, quickly)

    def up(self, name: str, patience: Patience = QUICK, **more: Any) -> Any:
        cloud = self.cloud(name, more.pop("answer_s", 5))
        wanted = order(**more)
        judged = needs.judge(cloud.offers(Wish(reliability=0.5)), CATALOG, wanted, None)
        return story.up(cloud, wanted, judged.choices, self.teller, patience)

    def says(self) -> str:
        return "\n".join(self.told)


def quickly(seconds: float) -> None:
    time.sleep(min(seconds, 0.02))


def order(**more: Any) -> Order:
    given: dict[str, Any] = {
        "name": "llm", "preset": "tiny", "image": BASE_IMAGE, "public_key": shell.public_key(),
        "deadline": datetime.now(UTC) + timedelta(hours=8), **more,
    }  # fmt: skip
    return Order(**given)


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("key") / "id_ed25519"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(file)], check=True)
    return file


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, key: Path) -> Iterator[World]:
    monkeypatch.setenv("BEEYARD_SSH_KEY", str(key))
    monkeypatch.setattr(shell, "STATE", tmp_path / "state")
    public = key.with_name("id_ed25519.pub").read_text()
    with standing() as clouds, listening(tmp_path / "pod", public) as sshd:
        for name, value in environment(clouds).items():
            monkeypatch.setenv(name, value)
        clouds.stock = {"NVIDIA GeForce RTX 4090": ((0.69, "High"), (0.34, "Low"))}
        clouds.offers = [offer(11, 0.4), offer(12, 0.5)]
        clouds.ports = iter([sshd.port] * 100)

        def container(rented: Rented) -> None:
            """What the provider gives to the container, as its start script leaves it."""
            sshd.environment = {
                **rented.env, "RUNPOD_POD_ID": rented.id, "RUNPOD_API_KEY": HOST_KEY, "BEEYARD_WATCH_EVERY": "0.2",
                "RUNPOD_API_URL": f"{clouds.url}/v1",
            } if "gpuTypeId" in rented.asked else {
                **rented.env, "CONTAINER_ID": rented.id, "CONTAINER_API_KEY": HOST_KEY, "VAST_URL": clouds.url,
                "BEEYARD_WATCH_EVERY": "0.2",
            }  # fmt: skip

        clouds.on_start = container
        clouds.on_end = lambda rented: end_watcher(tmp_path / "pod")
        yield World(clouds, sshd)
        end_watcher(tmp_path / "pod")
        for exchange in clouds.exchanges:
            check(exchange)


def end_watcher(folder: Path) -> None:
    """A container that ends takes its processes along."""
    status = folder / "run" / "beeyard-watch.json"
    if status.exists():
        pid = int(json.loads(status.read_text())["pid"])
        status.unlink()
        command = Path(f"/proc/{pid}/cmdline")
        if command.exists() and b"watch.py" in command.read_bytes():
            os.kill(pid, signal.SIGTERM)


def until(condition: Any, limit_s: float = 8) -> bool:
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.05)
    return False


# -------------------------------------------------------------------------------------------------- it works


@BOTH
def test_a_pod_is_there_when_ssh_lets_us_in_and_its_watcher_runs(world: World, name: str) -> None:
    world.clouds.unready = 3
    pod = world.up(name)
    assert (pod.state, pod.ssh.port) == ("running", world.sshd.port)
    assert "starting" in world.says()
    assert "the watcher runs, until 20" in world.says()
    (question,) = world.questions
    assert "for $0.3" in question or "for $0.4" in question
    assert (world.sshd.prefix / "bin" / "at-start").stat().st_mode & 0o777 == 0o755
    watched = shell.watcher(pod)
    assert watched is not None
    assert watched["told"] == "watching"


@BOTH
def test_a_second_up_rents_nothing(world: World, name: str) -> None:
    first = world.up(name)
    second = world.up(name)
    assert first.id == second.id
    assert len(world.clouds.rented) == 1
    assert len(world.questions) == 1
    assert "nothing is rented" in world.says()


def test_two_at_the_same_time_rent_one(world: World) -> None:
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append(world.up("vast"))) for _ in range(2)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(20)
    assert len(found) == 2
    assert len(world.clouds.rented) == 1


def test_who_loses_a_race_with_another_machine_ends_his_own(world: World) -> None:
    def elsewhere(rented: Rented) -> None:
        world.clouds.rented["100"] = Rented("100", "beeyard-llm", rented.asked, rented.env, port=rented.port)

    world.clouds.on_start = elsewhere
    with pytest.raises(CloudError, match=r"somebody else rented llm at the same time \(100\)\. Fix: "):
        world.up("vast")
    assert set(world.clouds.rented) == {"100"}


@BOTH
def test_the_way_back_ends_it_and_says_what_goes_on_costing(world: World, name: str) -> None:
    world.clouds.volumes = [{"id": "v1", "name": "models", "size": 100, "dataCenterId": "EU-RO-1"}]
    cloud, pod = world.cloud(name), world.up(name)
    other = world.clouds.rent("beeyard-other", {}, {}, "900")
    story.end_and_prove(cloud, [pod], world.teller, QUICK)
    assert set(world.clouds.rented) == {other.id}
    assert f"llm ({pod.id}) is gone: {name} lists it no more" in world.told
    assert "still there: other (900), running" in world.told
    costs = "goes on costing: network volume models (100 GB, EU-RO-1), about $7.00 a month"
    assert (costs in world.told) == (name == "runpod")


@BOTH
def test_stopped_it_is_started_again_where_it_is_now(world: World, name: str) -> None:
    cloud, pod = world.cloud(name), world.up(name)
    story.stop(cloud, pod, world.teller)
    assert "go on costing until" in world.says()
    end_watcher(world.sshd.folder)
    with pytest.raises(CloudError, match=r"is there already, and it is stopped\. Fix: .beeyard pods start"):
        world.up(name)
    again = story.start(cloud, story.find(cloud, "llm"), world.teller, QUICK)
    assert again.state == "running"
    assert shell.watcher(again) is not None


# --------------------------------------------------------------------------------------- what goes wrong, renting


def test_no_is_no(world: World) -> None:
    world.answer = False
    with pytest.raises(story.Declined):
        world.up("vast")
    assert world.clouds.rented == {}


@BOTH
def test_an_offer_that_is_gone_meanwhile_makes_way_for_the_next_dearer_one_after_another_yes(
    world: World, name: str
) -> None:
    world.clouds.lost = {"COMMUNITY NVIDIA GeForce RTX 4090", "11"}
    pod = world.up(name)
    assert pod.state == "running"
    assert len(world.questions) == 2


@BOTH
def test_when_all_offers_are_gone_nothing_is_rented(world: World, name: str) -> None:
    card = "NVIDIA GeForce RTX 4090"
    world.clouds.lost = {f"COMMUNITY {card}", f"SECURE {card}", "11", "12"}
    with pytest.raises(NoCapacity, match=r"2 offers of .* were gone .*Fix: "):
        world.up(name)
    assert world.clouds.rented == {}


@BOTH
def test_an_order_whose_answer_is_lost_is_found_by_its_label(world: World, name: str) -> None:
    world.clouds.fail("POST", "/graphql mutation", is_done=True, silent_s=30.0, times=1)
    world.clouds.fail("PUT", "/asks/", is_done=True, silent_s=30.0, times=1)
    pod = world.up(name, answer_s=0.5)
    assert list(world.clouds.rented) == [pod.id]
    assert "looking for beeyard-llm" in world.says()


@BOTH
def test_an_order_that_nobody_knows_of_is_told_as_that(world: World, name: str) -> None:
    world.clouds.fail("POST", "/graphql mutation", status=500)
    world.clouds.fail("PUT", "/asks/", status=500)
    with pytest.raises(Unclear, match=rf"whether llm was rented is not known: .* Fix: see `beeyard pods list {name}"):
        world.up(name)
    assert len(world.questions) == 1


@BOTH
def test_a_pod_that_never_starts_is_ended_again(world: World, name: str) -> None:
    world.clouds.unready = 10_000
    with pytest.raises(CloudError, match=r"llm did not start in .* minutes \(starting\)\. Fix: rent anew"):
        world.up(name, Patience(start_s=0.5, gone_s=1, every_s=0.1))
    assert world.clouds.rented == {}


def test_a_pod_that_lets_us_not_in_is_ended_again(world: World) -> None:
    world.sshd.public_key = "ssh-ed25519 AAAAother"
    with pytest.raises(CloudError, match=r"did not start .*Permission denied"):
        world.up("vast", Patience(start_s=1, gone_s=1, every_s=0.1))
    assert world.clouds.rented == {}


def test_a_pod_without_a_watcher_is_ended_again(world: World) -> None:
    world.clouds.on_start = lambda rented: None  # nothing tells the watcher its deadline
    with pytest.raises(CloudError, match=r"no watcher runs in llm, so nothing would end it\. Fix: "):
        world.up("vast")
    assert world.clouds.rented == {}


@BOTH
def test_an_api_that_stumbles_while_a_pod_starts_is_no_reason_to_give_it_up(world: World, name: str) -> None:
    world.clouds.fail("GET", r"/v1/pods/|/v0/instances/", status=500, times=6)
    assert world.up(name).state == "running"


def test_a_pod_that_comes_back_without_a_card_is_stopped_again(world: World) -> None:
    cloud, pod = world.cloud("runpod"), world.up("runpod")
    story.stop(cloud, pod, world.teller)
    world.clouds.gpus_after_start = 0
    with pytest.raises(CloudError, match=r"came up with no GPU: .* Fix: `beeyard pods down runpod llm`"):
        story.start(cloud, pod, world.teller, QUICK)
    assert world.clouds.rented[pod.id].is_running is False


def test_a_pod_whose_time_is_over_is_not_started_to_end_at_once(world: World) -> None:
    cloud = world.cloud("vast")
    late = {"BEEYARD_DEADLINE": "2026-01-01T00:00:00Z"}
    made = world.clouds.rent("beeyard-old", {}, late, "500")
    made.is_running = False
    with pytest.raises(CloudError, match=r"deadline was or is 2026-01-01 00:00 UTC.*Fix: `beeyard pods down"):
        story.start(cloud, story.find(cloud, "old"), world.teller, QUICK)
    assert made.is_running is False


@BOTH
def test_what_is_not_ours_is_never_touched_even_by_its_id(world: World, name: str) -> None:
    cloud = world.cloud(name)
    world.clouds.rent("training", {}, {}, "300")
    theirs = cloud.pod("300")
    assert theirs is not None
    for deed in (
        lambda: story.end_and_prove(cloud, [theirs], world.teller, QUICK),
        lambda: story.stop(cloud, theirs, world.teller),
        lambda: story.start(cloud, theirs, world.teller, QUICK),
    ):
        with pytest.raises(CloudError, match=r"300 is called 'training', .*it is not ours\. Fix: "):
            deed()
    assert world.clouds.rented["300"].is_running
    assert not [one for one in world.clouds.exchanges if one.method in ("DELETE", "PUT")]


@BOTH
def test_a_pod_that_does_not_go_away_is_told(world: World, name: str) -> None:
    cloud = world.cloud(name)
    world.clouds.rent("beeyard-llm", {}, {}, "400")
    world.clouds.fail("DELETE", r"/400", status=200)
    with pytest.raises(CloudError, match=r"still lists them: they may go on costing\. Fix: end them in the"):
        story.end_and_prove(cloud, cloud.pods(), world.teller, QUICK)


def test_one_of_several_must_be_named(world: World) -> None:
    cloud = world.cloud("vast")
    with pytest.raises(CloudError, match=r"vast has no pod of ours\. Fix: "):
        story.find(cloud, None)
    world.clouds.rent("beeyard-a", {}, {}, "1")
    assert story.find(cloud, None).name == "a"
    world.clouds.rent("beeyard-b", {}, {}, "2")
    with pytest.raises(CloudError, match=r"2 pods: a \(1\), b \(2\)\. Fix: name one"):
        story.find(cloud, None)
    assert story.find(cloud, "2").name == "b"


# -------------------------------------------------------------------------------------------------- whatever happens


@BOTH
def test_a_pod_is_down_after_the_block_however_it_ends(world: World, name: str) -> None:
    cloud = world.cloud(name)
    world.clouds.rent("beeyard-llm", {}, {}, "600")
    with pytest.raises(ZeroDivisionError), story.down_whatever_happened(cloud, None, world.teller, QUICK):
        raise ZeroDivisionError
    assert world.clouds.rented == {}


def test_an_api_that_fails_is_asked_again_to_end_it(world: World) -> None:
    cloud = world.cloud("vast")
    world.clouds.rent("beeyard-llm", {}, {}, "600")
    world.clouds.fail("DELETE", "/instances/", status=500, times=6)
    with story.down_whatever_happened(cloud, None, world.teller, QUICK):
        pass
    assert world.clouds.rented == {}


def test_a_pod_that_could_not_be_ended_is_told_over_everything_else(world: World) -> None:
    cloud = world.cloud("vast")
    world.clouds.rent("beeyard-llm", {}, {"BEEYARD_DEADLINE": "2026-12-03T14:00:00Z"}, "600")
    world.clouds.fail("DELETE", "/instances/", status=500)
    with (
        pytest.raises(CloudError, match=r"llm \(600\) could not be ended .* its deadline is 2026-12-03 14:00 UTC"),
        story.down_whatever_happened(cloud, None, world.teller, QUICK),
    ):
        raise ZeroDivisionError


def test_a_command_may_end_its_pod_and_only_a_rented_one(world: World) -> None:
    world.clouds.rent("beeyard-llm", {}, {}, "600")
    world.clouds.rent("beeyard-other", {}, {}, "601")
    with then_down("vast", "llm", world.told.append, is_wanted=False):
        pass
    assert len(world.clouds.rented) == 2
    with (
        pytest.raises(CloudError, match=r"homelab is none of runpod, vast\. Fix: "),
        then_down("homelab", None, print),
    ):
        raise AssertionError
    with pytest.raises(ZeroDivisionError), then_down("vast", "llm", world.told.append):
        raise ZeroDivisionError
    assert set(world.clouds.rented) == {"601"}
    assert "ending llm (600), whatever happened" in world.told


PROGRAM = """
import sys, time
from beeyard.clouds import story
from beeyard.clouds.vast import Vast
say = lambda text: print(text, flush=True)
cloud, patience = Vast({key!r}), story.Patience(every_s=0.1)
with story.down_whatever_happened(cloud, None, story.Teller(say, lambda question: True), patience):
    say("working")
    time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_ends_the_pod_first(world: World, number: signal.Signals) -> None:
    world.clouds.rent("beeyard-llm", {}, {}, "600")
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(key=KEY)], cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    assert program.stdout is not None
    assert program.stdout.readline() == "working\n"
    program.send_signal(number)
    said, errors = program.communicate(timeout=20)
    assert world.clouds.rented == {}
    assert "llm (600) is gone" in said
    assert program.returncode == (128 + number if number is not signal.SIGINT else -number), errors


UP = """
import sys
from datetime import datetime, timedelta, UTC
from beeyard.catalog import load_catalog
from beeyard.clouds import needs, shell, story
from beeyard.clouds.pods import Order, Wish
from beeyard.clouds.vast import Vast
from tests.needs import program
say = lambda text: print(text, flush=True)
cloud, catalog = Vast({key!r}), load_catalog()
deadline = datetime.now(UTC) + timedelta(hours=8)
order = Order(name="llm", preset="tiny", image="i", public_key=shell.public_key(), deadline=deadline)
choices = needs.judge(cloud.offers(Wish()), catalog, order, None).choices
story.up(cloud, order, choices, story.Teller(say, lambda question: True), story.Patience(every_s=0.1))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_while_a_pod_starts_leaves_none_behind(world: World, number: signal.Signals, tmp_path: Path) -> None:
    world.clouds.unready = 10_000
    program = subprocess.Popen(
        [sys.executable, "-c", UP.format(key=KEY)], cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, env={**os.environ, "BEEYARD_CLOUDS_STATE": str(tmp_path / "state")},
    )  # fmt: skip
    assert program.stdout is not None
    assert program.stdout.readline() == "llm: starting\n"
    assert len(world.clouds.rented) == 1
    program.send_signal(number)
    said, _ = program.communicate(timeout=20)
    assert world.clouds.rented == {}
    assert "is gone" in said


# --------------------------------------------------------------------------------------- the watcher, in the pod


@BOTH
def test_at_its_deadline_the_pod_ends_itself_with_its_own_key(world: World, name: str) -> None:
    world.up(name, deadline=datetime.now(UTC) + timedelta(seconds=3))
    world.clouds.keys.clear()
    assert until(lambda: not world.clouds.rented)
    assert f"Bearer {HOST_KEY}" in world.clouds.keys


@BOTH
def test_a_pod_that_may_not_end_itself_stops_itself(world: World, name: str) -> None:
    pod = world.up(name, deadline=datetime.now(UTC) + timedelta(seconds=3))
    world.clouds.fail("DELETE", "/", status=403)
    assert until(lambda: not world.clouds.rented[pod.id].is_running)


@BOTH
def test_it_may_be_stopped_instead_so_that_its_disk_stays(world: World, name: str) -> None:
    pod = world.up(name, deadline=datetime.now(UTC) + timedelta(seconds=3), at_deadline="stop")
    assert until(lambda: not world.clouds.rented[pod.id].is_running)
    assert not [one for one in world.clouds.exchanges if one.method == "DELETE"]


def test_an_instance_that_nobody_ever_reached_ends_itself_by_what_vast_starts(world: World) -> None:
    cloud = world.cloud("vast")
    made = cloud.create(cloud.offers(Wish())[0], order(deadline=datetime.now(UTC) + timedelta(seconds=2)))
    asked = world.clouds.rented[made].asked
    hook = world.sshd.prefix / "bin" / "at-start"
    hook.parent.mkdir(parents=True)
    hook.write_text(f"#!/bin/sh\ntouch {world.sshd.prefix}/served-again\n")
    hook.chmod(0o755)
    # As Vast.ai runs it: with the container's environment, by a shell, at every start.
    subprocess.run(
        ["sh", "-c", asked["onstart"].replace("/workspace/beeyard", str(world.sshd.prefix))], check=True, timeout=20,
        env={
            "PATH": os.environ["PATH"], "BEEYARD_PREFIX": str(world.sshd.prefix),
            "BEEYARD_RUN": str(world.sshd.folder / "run"), **world.sshd.environment,
        },
    )  # fmt: skip
    assert (world.sshd.prefix / "bin" / "watch.py").read_bytes() == shell.WATCH.read_bytes()
    assert (world.sshd.prefix / "served-again").exists()
    assert until(lambda: not world.clouds.rented)


# ------------------------------------------------------------------------------------------------ what a preset needs


def judged(preset: str, offers: list[Offer], catalog: Catalog = CATALOG, **more: Any) -> needs.Judged:
    return needs.judge(offers, catalog, order(preset=preset, **more), None)


def an_offer(**more: Any) -> Offer:
    given: dict[str, Any] = {
        "cloud": "vast", "id": "1", "gpu": "RTX 4090", "compute_capability": "8.9", "memory_mib": 24564, "price": 0.4,
        "cuda": "12.8", **more,
    }  # fmt: skip
    return Offer(**given)


def test_offers_are_sorted_by_price_then_by_reliability(world: World) -> None:
    offers = [
        an_offer(id="1", price=0.5),
        an_offer(id="2", price=0.4, reliability=0.9),
        an_offer(id="3", price=0.4, reliability=0.99),
    ]
    assert [choice.offer.id for choice in judged("tiny", offers).choices] == ["3", "2", "1"]
    (best, *_) = judged("tiny", offers).choices
    assert best.solution.spec is not None
    assert best.solution.spec.runtime == "supervisor"


def test_what_a_deploy_would_refuse_is_not_rented(world: World) -> None:
    found = judged("gemma-4-31b", [an_offer()])
    assert found.choices == []
    error = needs.nothing_fits(found, "vast", "gemma-4-31b")
    assert isinstance(error, needs.DoesNotFit)
    assert "none of 1 offers of vast can run gemma-4-31b" in str(error)
    assert "is not in presets/lock.yaml. Fix: " in str(error)


def locked_gemma() -> Catalog:
    """The presets with the guide's pair locked, as it is where the Hub can be reached."""

    def lock(header: Gguf, size: int, digit: str) -> FileLock:
        same_words = header.model_copy(update={"vocabulary": "89fd7bb9f623774c"})
        return FileLock(size=size, sha256=digit * 64, revision="0" * 40, gguf=same_words)

    models = {
        "gemma-4-31b-it-q4_k_s": lock(headers.GEMMA.header, 17_700_000_000, "a"),
        "gemma-4-31b-it-dflash-q5_k_m": lock(headers.GEMMA_DRAFT.header, 1_040_000_000, "b"),
    }
    more = CATALOG.lock.model_copy(update={"models": {**CATALOG.lock.models, **models}})
    return CATALOG.model_copy(update={"lock": more})


def test_from_our_image_every_card_is_taken_that_it_is_for_and_that_is_large_enough(world: World) -> None:
    catalog = locked_gemma()
    start = needs.our_image(catalog, "gemma-4-31b", None, "ghcr.io/me/it:1", None)
    assert start.cuda == "12.8"
    wish = needs.wish(catalog, "gemma-4-31b", None, start, 130, 8)
    assert wish.memory_mib == (17_700_000_000 + 1_040_000_000) // 2**20
    offers = [
        an_offer(id="4090"),
        an_offer(id="3090", compute_capability="8.6", memory_mib=24576, price=0.2),
        an_offer(id="3060", compute_capability="8.6", memory_mib=12288, price=0.1),
        an_offer(id="5090", compute_capability="12.0", memory_mib=32607),
        an_offer(id="old", cuda="11.8"),
    ]
    found = needs.judge(offers, catalog, order(preset="gemma-4-31b", cuda=start.cuda), start.held)
    assert [choice.offer.id for choice in found.choices] == ["3090", "4090"]
    reasons = "\n".join(found.against)
    assert "of GPU memory, and 12288 are free" in reasons
    assert "holds beellama-v0.4.3 for architectures 86, 89; the card here is 120" in reasons
    assert "the driver speaks CUDA 11.8, and runpod/pytorch" in reasons
    assert all("Fix: " in reason for reason in found.against)


def test_without_our_image_an_engine_without_a_tarball_is_not_paid_for(world: World) -> None:
    found = needs.judge([an_offer()], locked_gemma(), order(preset="gemma-4-31b"), None)
    ((reason, _),) = found.against.items()
    assert "engine 'beellama-v0.4.3' has no tarball in presets/lock.yaml. Fix: " in reason


def test_an_image_for_the_cpu_is_none_for_a_preset_that_wants_a_card(world: World) -> None:
    with pytest.raises(CloudError, match=r"image variant cpu is for cpu, and gemma-4-31b wants cuda\. Fix: "):
        needs.our_image(CATALOG, "gemma-4-31b", None, "ghcr.io/me/it:1", "cpu")


def test_a_disk_that_is_too_small_is_told_with_the_size_that_is_not(world: World) -> None:
    found = judged("tiny", [an_offer()], disk_gb=15)
    ((reason, _),) = found.against.items()
    assert reason.endswith("and 15 are asked for. Fix: --disk 21")
