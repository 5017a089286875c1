"""The whole story of a rented pod, as `make pod-demo` tells it: a stand-in's API, real containers, a real server."""

import json
from collections.abc import Iterator

import pytest

from tests import cloud_shapes
from tests.pod_demo import NAME, Demo, stage
from tests.testbed.conftest import Bed


@pytest.fixture(scope="module")
def demo(bed: Bed) -> Iterator[Demo]:
    with stage() as made:
        yield made


def test_from_nothing_to_an_answer_and_back_with_a_restart_between(demo: Demo) -> None:
    up = demo.pods("up", "runpod", "tiny", "--name", NAME, "--expose", "tcp", "--yes")
    assert up.code == 0, up.output
    assert "TLS:     https://127.0.0.1:" in up.output
    deploy = demo.deploy()
    assert deploy.code == 0, deploy.output
    assert "tunnel: ssh -N -L 8910:127.0.0.1:8910" in deploy.output
    answer = demo.ask()
    assert "drafted tokens accepted" in answer.output, answer.output
    by_tls = demo.ask_by_tls()
    assert "drafted tokens accepted" in by_tls.output, by_tls.output
    (before,) = json.loads(demo.pods("list", "runpod", "--json").output)

    assert demo.pods("stop", "runpod", "--yes").code == 0
    assert demo.pods("start", "runpod").code == 0
    (after,) = json.loads(demo.pods("list", "runpod", "--json").output)
    assert after["id"] == before["id"]
    assert after["ssh"] != before["ssh"]
    # Nobody deployed: the start command alone brought it back, its packages and its user included.
    for again in (demo.ask(), demo.ask_by_tls()):
        assert "drafted tokens accepted" in again.output, again.output
    changed, seconds = demo.changed()
    assert changed == 0
    assert seconds < 60

    down = demo.pods("down", "runpod", "--yes")
    assert "is gone: runpod lists it no more" in down.output, down.output
    assert demo.clouds.rented == {}
    for exchange in demo.clouds.exchanges:
        cloud_shapes.check(exchange)
