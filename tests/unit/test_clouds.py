"""RunPod and Vast.ai: what is asked of them, by their own documents, and every way in which they may fail."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from beeyard.catalog import PRESETS, load_catalog
from beeyard.clouds import runpod, vast
from beeyard.clouds.pods import (
    Cloud,
    CloudError,
    KeyRefused,
    NoCapacity,
    NoFunds,
    Offer,
    Order,
    Unclear,
    Wish,
    moment,
)
from tests import cloud_shapes
from tests.cloud_stand_in import HOST_KEY, KEY, Clouds, Exchange, environment, offer, standing

GPUS = load_catalog([PRESETS]).gpus
PUBLIC = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIexample me@here"
SECURE_4090 = "SECURE NVIDIA GeForce RTX 4090"


def order(**more: Any) -> Order:
    given: dict[str, Any] = {
        "name": "llm", "preset": "gemma-4-31b", "image": runpod.BASE_IMAGE, "public_key": PUBLIC,
        "deadline": datetime(2026, 12, 3, 14, 0, tzinfo=UTC), **more,
    }  # fmt: skip
    return Order(**given)


def stocked() -> Clouds:
    clouds = Clouds()
    clouds.stock = {
        "NVIDIA GeForce RTX 4090": ((0.69, "High"), (0.34, "Low")),
        "NVIDIA GeForce RTX 5090": ((0.94, "Medium"), (0.0, None)),
        "NVIDIA GeForce RTX 3070": ((0.13, "High"), (0.10, "High")),
    }
    clouds.offers = [
        offer(11, 0.4),
        offer(12, 0.35, reliability=0.97),
        offer(13, 0.5, gpu_ram=12282, compute_cap=1200),
    ]
    return clouds


@pytest.fixture
def clouds(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clouds]:
    """The stand-in; whatever was asked of it is checked against the providers' documents at the end."""
    with standing(stocked()) as made:
        for key, value in environment(made).items():
            monkeypatch.setenv(key, value)
        yield made
        for exchange in made.exchanges:
            cloud_shapes.check(exchange)


def no_pause(seconds: float) -> None:
    """Wait for nothing."""


def of(name: str, key: str = KEY, answer_s: float = 5) -> Cloud:
    if name == "runpod":
        return runpod.RunPod(key, GPUS, answer_s, no_pause)
    return vast.Vast(key, answer_s, no_pause)


BOTH = pytest.mark.parametrize("name", ["runpod", "vast"])


def first(cloud: Cloud) -> Offer:
    return min(cloud.offers(Wish()), key=lambda one: one.price)


# ------------------------------------------------------------------------------------------------ what is there


def test_runpod_offers_the_cards_that_we_know_from_both_of_its_clouds(clouds: Clouds) -> None:
    found = {one.id: one for one in of("runpod").offers(Wish(cuda="12.4"))}
    assert set(found) == {SECURE_4090, "COMMUNITY NVIDIA GeForce RTX 4090", "SECURE NVIDIA GeForce RTX 5090"}
    assert found[SECURE_4090].price == 0.69
    assert found[SECURE_4090].memory_mib == 24564
    assert found[SECURE_4090].compute_capability == "8.9"
    # What is ordered as the least: what is asked for, or what the card wants.
    assert found[SECURE_4090].cuda == "12.4"
    assert found["SECURE NVIDIA GeForce RTX 5090"].cuda == "12.8"


def test_vast_is_asked_for_what_can_do_and_its_numbers_are_read(clouds: Clouds) -> None:
    (found,) = of("vast").offers(Wish(memory_mib=18000, disk_gb=130, hours=8, max_price=0.6, cuda="12.8"))
    assert (found.id, found.compute_capability, found.cuda, found.memory_mib) == ("11", "8.9", "12.8", 24564)
    (asked,) = clouds.asked("POST", "/bundles/")
    assert asked["duration"] == {"gte": 28800}
    assert asked["dph_total"] == {"lte": 0.6}
    assert asked["allocated_storage"] == 130
    wide = of("vast").offers(Wish(reliability=0.5))
    assert [one.compute_capability for one in wide] == ["8.9", "8.9", "12.0"]


@BOTH
def test_a_pod_is_rented_seen_stopped_started_and_ended(clouds: Clouds, name: str) -> None:
    cloud = of(name)
    made = cloud.create(first(cloud), order())
    cloud.admit(made, PUBLIC)
    (pod,) = cloud.pods()
    assert (pod.id, pod.name, pod.state) == (made, "llm", "running")
    assert pod.deadline == datetime(2026, 12, 3, 14, 0, tzinfo=UTC)
    assert pod.said["BEEYARD_PRESET"] == "gemma-4-31b"
    assert pod.ssh is not None
    before = pod.ssh.port
    cloud.stop(made)
    stopped = cloud.pod(made)
    assert stopped is not None
    assert (stopped.state, stopped.ssh) == ("stopped", None)
    cloud.start(made)
    again = cloud.pod(made)
    assert again is not None
    assert again.ssh is not None
    assert again.ssh.port != before
    cloud.end(made)
    assert cloud.pod(made) is None
    assert cloud.pods() == []
    cloud.end(made)  # that it is gone already is no error


@BOTH
def test_only_what_carries_our_label_is_listed(clouds: Clouds, name: str) -> None:
    clouds.rent("training", {}, {}, "101")
    clouds.rent("beeyard-llm", {}, {}, "102")
    assert [pod.id for pod in of(name).pods()] == ["102"]


def test_vasts_list_is_read_to_its_end(clouds: Clouds) -> None:
    for number in range(60):
        clouds.rent(f"beeyard-n{number}", {}, {}, str(800 + number))
    assert len(of("vast").pods()) == 60


def test_runpod_ends_a_pod_itself_and_gets_what_the_preset_needs(clouds: Clouds) -> None:
    cloud = runpod.RunPod(KEY, GPUS, 5, no_pause)
    found = next(one for one in cloud.offers(Wish(cuda="12.8")) if one.id.startswith("COMMUNITY"))
    cloud.create(found, order(hf_secret="hub", idle_minutes=30))
    (asked,) = [body["variables"]["input"] for body in clouds.asked("POST", "/graphql") if body["variables"]]
    assert asked["terminateAfter"] == "2026-12-03T14:00:00Z"
    assert "stopAfter" not in asked
    assert asked["ports"] == "8910/http,22/tcp"
    assert (asked["volumeInGb"], asked["volumeMountPath"]) == (100, "/workspace")
    assert asked["supportPublicIp"] is True
    assert asked["allowedCudaVersions"] == ["12.8", "12.9", "13.0"]
    assert "/workspace/beeyard/bin/at-start" in asked["dockerArgs"]
    said = {one["key"]: one["value"] for one in asked["env"]}
    assert said["HF_TOKEN"] == "{{ RUNPOD_SECRET_hub }}"
    assert said["SSH_PUBLIC_KEY"] == PUBLIC
    assert said["BEEYARD_IDLE_MINUTES"] == "30"
    (pod,) = cloud.pods()
    assert "HF_TOKEN" not in pod.said
    assert pod.proxy_url == f"https://{pod.id}-8910.proxy.runpod.net"


def test_runpod_may_stop_it_instead_and_start_from_our_image(clouds: Clouds) -> None:
    asked = runpod.RunPod(KEY, GPUS).rental(
        of("runpod").offers(Wish(cuda="12.8"))[0],
        order(at_deadline="stop", is_our_image=True, image="ghcr.io/me/it:1"),
    )
    assert asked["stopAfter"] == "2026-12-03T14:00:00Z"
    assert "terminateAfter" not in asked
    assert "dockerArgs" not in asked


@BOTH
def test_a_port_for_tls_is_opened_where_it_is_asked_for_alone(clouds: Clouds, name: str) -> None:
    cloud = of(name)
    closed, opened = (
        clouds.rented[cloud.create(first(cloud), order(expose=expose))].asked for expose in ("tunnel", "tcp")
    )
    assert "8911" not in str(closed)
    if name == "runpod":
        assert opened["ports"] == "8910/http,22/tcp,8911/tcp"
    else:
        assert opened["env"]["-p 8911:8911"] == "1"
    for one, port in zip(clouds.rented.values(), (31910, 31911), strict=True):
        one.tls_port = port
    assert [pod.tls_at for pod in cloud.pods()] == ["", "127.0.0.1:31911"]


def test_a_network_volume_is_taken_by_its_name_where_it_lies(clouds: Clouds) -> None:
    clouds.volumes = [{"id": "agv6w2qcg7", "name": "models", "size": 150, "dataCenterId": "EU-RO-1"}]
    cloud = runpod.RunPod(KEY, GPUS, 5, no_pause)
    made = cloud.create(first(cloud), order(network_volume="models"))
    asked = clouds.rented[made].asked
    assert (asked["networkVolumeId"], asked["dataCenterId"]) == ("agv6w2qcg7", "EU-RO-1")
    assert "volumeInGb" not in asked
    (pod,) = cloud.pods()
    assert (pod.network_volume, pod.disk_gb) == ("models", 0)
    (kept,) = cloud.kept()
    assert "models (150 GB" in kept.what
    assert kept.dollars_a_month == pytest.approx(10.5)
    with pytest.raises(CloudError, match=r"0 network volumes called 'other'; it has models .*Fix: name one"):
        cloud.create(first(cloud), order(network_volume="other"))


def test_vast_gets_a_watcher_with_the_order_and_no_open_port(clouds: Clouds) -> None:
    cloud = vast.Vast(KEY, 5, no_pause)
    made = cloud.create(first(cloud), order())
    cloud.admit(made, PUBLIC)
    asked = clouds.rented[made].asked
    assert asked["disk"] == 130
    assert len(asked["onstart"]) < vast.LONGEST_START
    assert not any("-p" in key for key in asked["env"])
    assert clouds.asked("POST", "/ssh/") == [{"ssh_key": PUBLIC}]


@pytest.mark.parametrize(
    ("more", "sentence"),
    [({"network_volume": "x"}, "no network volume"), ({"hf_secret": "hub"}, "keeps secrets for the whole account")],
)
def test_what_vast_has_not_is_refused_before_anything_is_rented(
    clouds: Clouds, more: dict[str, str], sentence: str
) -> None:
    with pytest.raises(CloudError, match=f"{sentence}.*Fix: "):
        of("vast").create(first(of("vast")), order(**more))
    assert clouds.rented == {}


def test_vasts_states_are_told_apart() -> None:
    def state(actual: str | None, intended: str = "running") -> str:
        return vast._state(vast._Instance(id=1, actual_status=actual, intended_status=intended))

    assert [state(one) for one in (None, "loading", "created", "running")] == [*["starting"] * 3, "running"]
    assert [state(one) for one in ("exited", "unknown", "offline")] == ["lost"] * 3
    assert [state(one, "stopped") for one in ("exited", "stopped", None)] == ["stopped"] * 3


def test_an_instance_without_a_port_of_its_own_is_reached_by_vasts_proxy() -> None:
    found = vast._address(vast._Instance(id=1, ssh_host="ssh4.vast.ai", ssh_port=10600, ports={}))
    assert found is not None
    assert (found.host, found.port) == ("ssh4.vast.ai", 10600)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"ports": ["8910/http"]}, "without port 22/tcp"),
        ({"ports": ["22/tcp"], "portMappings": {"22": 1}, "publicIp": ""}, "no public address"),
        ({"ports": ["22/tcp"], "portMappings": {"80": 1}, "publicIp": "192.0.2.1"}, "port 22 is not mapped"),
        ({"ports": ["22/tcp"], "portMappings": None, "publicIp": None}, ""),
    ],
)
def test_a_runpod_that_can_never_be_reached_is_told_from_one_that_starts(more: dict[str, Any], why: str) -> None:
    pod = runpod._pod(runpod._Pod(id="a", name="beeyard-a", desiredStatus="RUNNING", **more))
    assert pod.state == "starting"
    assert why in pod.unreachable
    assert bool(why) == bool(pod.unreachable)


@pytest.mark.parametrize("text", ["2024-07-12T19:14:40.144Z", "2024-07-12 19:14:40.144 +0000 UTC"])
def test_both_of_runpods_ways_to_write_a_time_are_read(text: str) -> None:
    assert moment(text) == datetime(2024, 7, 12, 19, 14, 40, 144000, tzinfo=UTC)


@pytest.mark.parametrize("text", ["", "yesterday", "2024-07-12T19:14:40"])
def test_what_is_no_time_is_none(text: str) -> None:
    assert moment(text) is None


def test_money_spent_is_price_and_time_and_nothing_while_stopped(clouds: Clouds) -> None:
    cloud = of("runpod")
    cloud.create(first(cloud), order())
    (pod,) = cloud.pods()
    running = pod.model_copy(update={"started": datetime.now(UTC) - timedelta(hours=2), "price": 0.5})
    assert running.spent == pytest.approx(1.0, abs=0.01)
    assert running.model_copy(update={"state": "stopped"}).spent is None
    assert cloud.spent([pod]) == {pod.id: 0.25}


# ----------------------------------------------------------------------------------------------------- what fails


@BOTH
@pytest.mark.parametrize(
    ("status", "answer", "kind", "words"),
    [
        (401, {"error": "auth_error", "msg": "Invalid user key"}, KeyRefused, "does not take this API key"),
        (403, {"message": "forbidden"}, KeyRefused, "does not take this API key"),
        (402, {"msg": "pay first"}, NoFunds, "wants money first"),
        (400, {"msg": "Your account balance is too low"}, NoFunds, "wants money first"),
        (404, {"message": "nothing"}, CloudError, "knows nothing there"),
        (400, {"detail": "bad thing"}, CloudError, "refuses with 400 .bad thing"),
        (429, "API requests too frequent", CloudError, "asked too often"),
        (500, {"title": "oops"}, Unclear, "fails with 500"),
    ],
)
def test_every_refusal_is_a_sentence_with_a_fix(
    clouds: Clouds, name: str, status: int, answer: Any, kind: type[CloudError], words: str
) -> None:
    clouds.fail("GET", r"/pods|/instances/", status=status, answer=answer)
    with pytest.raises(kind, match=f"{words}.*Fix: ") as caught:
        of(name).pods()
    assert KEY not in str(caught.value)


@BOTH
@pytest.mark.parametrize("status", [429, 500, 502])
def test_reads_are_asked_again(clouds: Clouds, name: str, status: int) -> None:
    clouds.fail("GET", r"/pods|/instances/", status=status, times=3)
    assert of(name).pods() == []


@BOTH
def test_a_wrong_key_is_never_shown(clouds: Clouds, name: str) -> None:
    secret = "rpa_SOMETHING0ELSE"
    clouds.fail("GET", r"/pods|/instances/", status=401, answer={"msg": f"key {secret} is unknown"})
    with pytest.raises(KeyRefused, match=r"key \*\*\* is unknown") as caught:
        of(name, secret).pods()
    assert secret not in repr(caught.value)
    assert caught.value.__cause__ is None


@BOTH
def test_an_api_that_hangs_is_left(clouds: Clouds, name: str) -> None:
    clouds.fail("GET", r"/pods|/instances/", silent_s=30)
    with pytest.raises(Unclear, match=r"gave no answer within 0.1 s\. Fix: "):
        of(name, answer_s=0.1).pods()


def test_an_api_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VAST_URL", "http://127.0.0.1:9")
    with pytest.raises(Unclear, match=r"Vast\.ai's API cannot be reached \(.*refused.*\)\. Fix: "):
        of("vast").pods()


@BOTH
@pytest.mark.parametrize("how", [{"status": 500}, {"silent_s": 30.0}])
def test_an_order_whose_answer_is_lost_is_never_sent_twice(clouds: Clouds, name: str, how: dict[str, Any]) -> None:
    cloud = of(name, answer_s=0.2)
    found = first(cloud)
    clouds.fail("POST", "/graphql mutation", is_done=True, **how)
    clouds.fail("PUT", "/asks/", is_done=True, **how)
    with pytest.raises(Unclear):
        cloud.create(found, order())
    assert len(clouds.rented) == 1


@BOTH
def test_an_order_that_was_too_early_is_sent_again(clouds: Clouds, name: str) -> None:
    cloud = of(name)
    found = first(cloud)
    clouds.fail("POST", "/graphql mutation", status=429, times=1)
    clouds.fail("PUT", "/asks/", status=429, times=1)
    assert cloud.create(found, order()) in clouds.rented


@BOTH
def test_an_offer_that_is_gone_is_told_as_such(clouds: Clouds, name: str) -> None:
    cloud = of(name)
    found = first(cloud)
    clouds.lost = {found.id}
    with pytest.raises(NoCapacity, match="Fix: take another offer"):
        cloud.create(found, order())
    assert clouds.rented == {}


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("There are no longer any instances available with enough disk space.", NoCapacity),
        ("There are not enough free GPUs on the host machine to start this pod.", NoCapacity),
        ("Your balance is too low", NoFunds),
        ("Unauthorized", KeyRefused),
        ("imageName is required", CloudError),
    ],
)
def test_graphqls_errors_come_with_status_200(clouds: Clouds, text: str, kind: type[CloudError]) -> None:
    found = first(of("runpod"))
    clouds.fail("POST", "/graphql mutation", status=200, answer={"errors": [{"message": text}], "data": None})
    with pytest.raises(kind, match="Fix: ") as caught:
        of("runpod").create(found, order())
    assert type(caught.value) is kind


@BOTH
@pytest.mark.parametrize(
    "answer", [{"instances": "none"}, [{"id": 1}], [{"id": "a", "desiredStatus": "DANCING", "env": {"S": "secret"}}]]
)
def test_an_answer_in_another_shape_is_told_without_what_is_in_it(clouds: Clouds, name: str, answer: Any) -> None:
    clouds.fail("GET", r"/v1/pods|/api/v1/instances/", status=200, answer=answer)
    with pytest.raises(CloudError, match=r"another shape than it did.*Fix: ") as caught:
        of(name).pods()
    assert "secret" not in str(caught.value)


@BOTH
def test_the_key_travels_in_one_header_alone(clouds: Clouds, name: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    cloud = of(name)
    cloud.create(first(cloud), order())
    cloud.pods()
    assert set(clouds.keys) == {f"Bearer {KEY}"}
    assert KEY not in caplog.text
    assert KEY not in str([(one.path, one.query, one.body) for one in clouds.exchanges])
    assert HOST_KEY not in caplog.text
    assert KEY not in repr(vars(cloud))


def test_runpods_document_was_looked_at_where_it_is() -> None:
    if cloud_shapes.OPENAPI is None:
        pytest.skip("no data/runpod-openapi.json in a folder beside this clone")
    bad = Exchange("GET", "/v1/pods", {"colour": ["red"]}, None, 200, [])
    with pytest.raises(AssertionError, match="colour"):
        cloud_shapes.check(bad)
