"""A host's line of `beeyard status`: rates from counters, states, and what nobody says stays empty."""

from typing import Any

import pytest

from beeyard.catalog import PRESETS, load_catalog
from beeyard.commands.status import lasted
from beeyard.examination import Examined
from beeyard.status import of_host, unreached
from tests.unit.test_examination import examined

CATALOG = load_catalog([PRESETS])


def counting(tokens: float, seconds: float, **more: float) -> Examined:
    counters = {"tokens_predicted_total": tokens, "tokens_predicted_seconds_total": seconds, **more}
    return examined(running={"counters": counters, "slots": 1, "busy": 1})


def test_the_rate_is_since_the_look_before_where_something_was_decoded_since() -> None:
    first, second = counting(100, 4), counting(160, 5)
    assert (of_host(first, CATALOG).tokens_per_s, of_host(first, CATALOG).since) == (25, "start")
    found = of_host(second, CATALOG, first)
    assert (found.tokens_per_s, found.since) == (60, "look")
    # Nothing was decoded since; or it was started anew, and counts from zero again.
    assert of_host(first, CATALOG, first).since == "start"
    assert (of_host(first, CATALOG, second).tokens_per_s, of_host(first, CATALOG, second).since) == (25, "start")
    assert of_host(counting(0, 0), CATALOG).tokens_per_s is None


def test_acceptance_is_of_its_metrics_else_of_its_log() -> None:
    drafted = {"spec_decode_num_draft_tokens_total": 200.0, "spec_decode_num_accepted_tokens_total": 150.0}
    assert of_host(counting(1, 1, **drafted), CATALOG).acceptance == 0.75
    logged = examined(running={"log_accepted": 3, "log_drafted": 4})
    assert of_host(logged, CATALOG).acceptance == 0.75
    assert of_host(examined(), CATALOG).acceptance is None


def test_queue_slots_cards_and_price_are_told() -> None:
    seen = counting(1, 1, requests_deferred=3)
    priced = seen.survey.model_copy(update={"price_per_hour": 0.34})
    found = of_host(seen.model_copy(update={"survey": priced}), CATALOG)
    assert (found.queued, found.busy, found.slots, found.price_per_hour) == (3, 1, 1, 0.34)
    assert (found.vram_used_mib, found.vram_total_mib) == (24576 - 24124, 24576)
    assert (found.preset, found.variant, found.engine) == ("tiny", "dflash", "llama.cpp-wheel")
    assert found.is_well


@pytest.mark.parametrize(
    ("state", "health", "said"),
    [
        ({}, 200, "serving"),
        ({}, 503, "loading"),
        ({}, 0, "silent"),
        ({"pid": 0}, 0, "stopped"),
        ({"current": None}, 0, "not deployed"),
    ],
)
def test_a_host_is_in_one_state(state: dict[str, Any], health: int, said: str) -> None:
    found = of_host(examined(state=state, running={"health": health}), CATALOG)
    assert found.state == said
    assert found.is_well is (said == "serving")


def test_a_server_that_drifted_is_not_well_though_it_serves() -> None:
    found = of_host(examined(llama_port=8911), CATALOG)
    assert (found.state, found.is_well) == ("serving", False)


def test_a_host_that_is_not_reached_says_why() -> None:
    said = "    [attic] No route\n    [attic] Could not connect. Fix: check that it is up\n    [cellar] fine\n"
    assert unreached("attic", said).why == "Could not connect. Fix: check that it is up"
    assert unreached("loft", said).why == "it did not answer. Fix: see that it is up"
    assert unreached("loft", "x.PyinfraError: No such private key file: k\n").why.endswith("key file: k")


@pytest.mark.parametrize(
    ("seconds", "said"), [(0.4, "0s"), (61, "1m1s"), (3600, "1h0m"), (273700, "3d4h"), (59, "59s")]
)
def test_a_time_is_told_in_two_units(seconds: float, said: str) -> None:
    assert lasted(seconds) == said
