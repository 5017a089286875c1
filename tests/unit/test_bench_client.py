"""The client against a stand-in that misbehaves: each way is named in a sentence, and none gets into a figure."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest

from beeyard.bench.client import (
    Answer,
    BenchError,
    Look,
    Patience,
    Server,
    fault_of,
    proxy_note,
    read_key,
)
from beeyard.bench.record import Host, Record, Request, Variant
from beeyard.bench.run import Session, measure, run
from beeyard.bench.summary import remarks, rows, too_few
from beeyard.bench.workloads import Question
from tests.stand_in import SLOW_FIRST_S, TOKENS, Stand, stand_in

QUICK = Patience(connect_s=2, silence_s=2, answer_s=10, load_s=3, return_s=0.5)
QUESTIONS = [
    Question(workload="w", prompt=name, messages=({"role": "user", "content": name},), max_tokens=64, temperature=0.7)
    for name in ("one", "two")
]
BODY = QUESTIONS[0].body("n", 1)


def ask(stand: Stand, key: str | None = None) -> tuple[Answer, str | None]:
    with Server(stand.url, key, QUICK) as server:
        before = server.look()
        answer = server.ask(BODY)
        return answer, fault_of(answer, before, server.look())


def record_of(stand: Stand, rounds: int = 3, warm_ups: int = 1, decoding: str = "dflash") -> Record:
    with Server(stand.url, None, QUICK) as server:
        variant = Variant(name="dflash", decoding=decoding)
        return run(Session(server, QUESTIONS), variant, Host(name="here"), rounds, warm_ups)


def test_a_server_that_behaves_has_no_fault_and_its_figures_are_kept() -> None:
    with stand_in() as stand:
        answer, fault = ask(stand)
        found = record_of(stand, rounds=1)
    assert fault is None
    assert answer.pieces == TOKENS == answer.timings["predicted_n"]
    assert answer.text.startswith("word0 word1 ")
    (warm_up, one, two) = found.requests
    assert [warm_up.is_scored, one.is_scored, two.is_scored] == [False, True, True]
    assert one.completion_tokens == TOKENS
    assert (one.draft_n, one.draft_n_accepted) == (30, 20)
    assert one.accepted_per_position == (9, 7, 4)
    assert one.mean_accepted_length == 3.0
    assert one.tokens_per_step == TOKENS / (TOKENS - 20)
    assert one.latency is not None
    assert one.latency.count == TOKENS - 1 == len(one.gaps_us or ())
    assert one.latency.p50_ms <= one.latency.p95_ms <= one.latency.p99_ms <= one.latency.max_ms
    assert one.own_decode_ms is not None
    assert one.decode_ms is not None
    assert math.isclose(one.own_decode_ms, one.decode_ms, rel_tol=0.5)
    assert one.first_token_ms is not None
    assert one.first_token_ms >= 4
    assert one.nonce != two.nonce


@pytest.mark.parametrize(
    ("mode", "says"),
    [
        ("no timings", "the answer has no timings"),
        ("zero rate", "its timings say 0 for predicted_per_second"),
        ("no rate", "its timings have no predicted_per_second"),
        ("null rate", "its timings have no predicted_per_second"),
        ("zero tokens", "it has 0 tokens"),
        ("cached", "12 tokens of its prompt came from a cache"),
        ("wrong clock", "and the whole request took"),
        ("garbage", "the stream holds what is no chat answer: '{not json'"),
        ("html", "the answer is no stream of a chat: '<html>Welcome to nginx!</html>'"),
        ("early 200", 'the answer is no stream of a chat: \'{"status":"ok"}\''),
        ("loading chat", "the server answered 503: "),
        ("crash", "the stream was cut after "),
        ("ends early", f"the stream was cut after {TOKENS // 2} pieces of text"),
        ("no done", f"the stream was cut after {TOKENS} pieces of text"),
        ("error", "the server broke off: 'Compute error.'"),
        ("empty", "its text is empty"),
        ("stuck", "its text is '/' over and over"),
        ("restart", "the server was started anew"),
        ("company", f"the server decoded {TOKENS} tokens for somebody else"),
    ],
)
def test_each_way_to_misbehave_is_named_and_never_averaged_in(mode: str, says: str) -> None:
    with stand_in(mode) as stand:
        _, fault = ask(stand)
        assert fault is not None
        assert says in fault
        assert ". Fix: " in fault
        if mode == "loading chat":
            return
        found = record_of(stand, rounds=3, warm_ups=0)
    assert len(found.faulty) == 6
    assert list(found.scored("dflash")) == []
    assert all(row.decode_per_s is None and row.faulty == 3 for row in rows(found))
    assert any(text.startswith("dflash: 6 answers left out: ") for text in remarks(found))
    assert len(too_few(found)) == 2


@pytest.mark.case("POD-04")
@pytest.mark.parametrize("status", ["502", "504", "524"])
def test_a_proxy_that_gives_up_is_named_as_one_and_not_asked_again(status: str) -> None:
    with stand_in(status) as stand:
        _, fault = ask(stand)
        assert len(stand.asked) == 1
    assert fault is not None
    assert fault.startswith(f"a proxy in front of the server answered {status} after 0 s: its own time limit, the ")
    assert "server may be fine. Fix: measure past it" in fault


@pytest.mark.case("POD-04")
def test_a_proxy_that_gives_up_before_anything_is_measured_is_named_too() -> None:
    with (
        stand_in("524 health") as stand,
        Server(stand.url, None, QUICK) as server,
        pytest.raises(BenchError, match="/health: a proxy in front of the server answered 524 after"),
    ):
        server.await_ready()


@pytest.mark.case("POD-04")
def test_a_pods_proxy_is_warned_of_by_its_address() -> None:
    note = proxy_note("https://abc123-8910.proxy.runpod.net/v1")
    assert note is not None
    assert note.startswith("abc123-8910.proxy.runpod.net is a proxy in front of the pod, which gives up after")
    assert ". Fix: measure past it" in note
    assert proxy_note("http://127.0.0.1:8910") is None
    assert proxy_note("https://proxy.runpod.net.example.org") is None


def test_a_server_without_draft_counters_is_measured_and_that_is_said() -> None:
    with stand_in("no draft counters", "no drafts") as stand:
        found = record_of(stand)
    assert not found.faulty
    (one, *_) = found.scored("dflash")
    assert (one.draft_n, one.acceptance, one.drafts, one.accepted_per_position) == (None, None, None, None)
    # On a busy machine the two clocks may part, which is a remark of its own.
    said = "dflash drafted nothing, or does not say so, in 6 of 6 answers"
    assert said in remarks(found)
    assert said not in remarks(found.model_copy(update={"variants": (Variant(name="dflash", decoding="baseline"),)}))


def test_a_server_without_metrics_and_marker_is_measured_all_the_same() -> None:
    with stand_in("no metrics", "old") as stand:
        found = record_of(stand)
    assert not found.faulty
    assert {one.drafts for one in found.requests} == {None}


def test_a_slow_first_answer_is_the_warm_ups_alone() -> None:
    with stand_in("slow first") as stand:
        found = record_of(stand)
    assert (found.requests[0].first_token_ms or 0) > SLOW_FIRST_S * 1000
    assert not found.requests[0].is_scored
    (one, two) = rows(found)
    for row in (one, two):
        assert row.first_token_ms is not None
        assert row.first_token_ms.most < SLOW_FIRST_S * 1000 / 2


def test_a_model_that_still_loads_is_waited_for_even_behind_an_early_200() -> None:
    with stand_in("loading chat", times=3) as stand:
        found = record_of(stand)
        asked = len(stand.asked)
    assert not found.faulty
    assert asked == 3 + 1 + 6
    assert [one.is_scored for one in found.requests] == [False] + [True] * 6


def test_a_crash_costs_the_answer_it_met_and_no_other() -> None:
    with stand_in("crash", times=1) as stand:
        found = record_of(stand, rounds=3, warm_ups=0)
    assert [one.fault is None for one in found.requests] == [False] + [True] * 5
    assert rows(found)[0].n == 2
    assert rows(found)[1].n == 3
    assert [text.partition(",")[0] for text in too_few(found)] == ["dflash has 2 good answers to w/one out of 3"]


def test_a_restart_between_two_requests_is_named() -> None:
    with stand_in() as stand, Server(stand.url, None, QUICK) as server:
        session = Session(server, QUESTIONS)

        def between(request: object) -> None:
            if len(stand.asked) == 1:
                stand.restart()

        found = measure(session, "dflash", 1, warm_ups=0, tell=between)
        since = server.look()
        stand.process = "<__media_third__>"
        later = measure(session, "dflash", 2, warm_ups=0, since=since)
    assert [(one.is_scored, one.fault is None) for one in found] == [(True, True), (True, False), (False, True)]
    assert "started anew" in (found[1].fault or "")
    assert [(one.is_scored, one.fault is None) for one in later] == [(True, False), (False, True), (True, True)]


def test_a_server_that_goes_away_leaves_its_questions_unasked() -> None:
    with stand_in() as stand, Server(stand.url, None, QUICK) as server:
        session = Session(server, QUESTIONS)
        assert all(one.fault is None for one in measure(session, "dflash", 1))
    with Server(stand.url, None, QUICK) as server:
        found = measure(Session(server, QUESTIONS), "dflash", 2, warm_ups=0)
    assert "does not answer. Fix: " in (found[0].fault or "")
    assert "it was not asked: the server had gone" in (found[1].fault or "")


def test_a_run_that_is_stopped_keeps_the_rounds_that_were_whole() -> None:
    def stop_in(number: int) -> Callable[[Request], None]:
        def tell(request: Request) -> None:
            if request.round == number and request.prompt == "two":
                raise KeyboardInterrupt

        return tell

    with stand_in() as stand, Server(stand.url, None, QUICK) as server:
        session, variant = Session(server, QUESTIONS), Variant(name="dflash", decoding="dflash")
        found = run(session, variant, Host(name="here"), 4, tell=stop_in(3))
        with pytest.raises(BenchError, match="stopped before a round was whole"):
            run(session, variant, Host(name="here"), 4, tell=stop_in(1))
    assert {one.round for one in found.requests} == {1, 2}
    assert (found.protocol.rounds, found.protocol.order) == (2, ("dflash", "dflash"))
    assert found.notes == ("it was stopped after 2 of 4 rounds",)


def test_every_request_has_its_own_nonce_first_and_asks_for_no_cache() -> None:
    with stand_in() as stand:
        record_of(stand)
        bodies = stand.asked
    starts = [body["messages"][0]["content"].partition("\n")[0] for body in bodies]
    assert len(set(starts)) == len(bodies) == 7
    assert all(body["cache_prompt"] is False and body["stream"] is True for body in bodies)
    assert {body["seed"] for body in bodies} == {2, 3, 4}
    assert {body["temperature"] for body in bodies} == {0.7}


def test_comments_in_a_stream_are_no_text() -> None:
    with stand_in("comments") as stand:
        answer, fault = ask(stand)
    assert (fault, answer.pieces) == (None, TOKENS)


def test_a_silent_server_is_given_up_and_named() -> None:
    with stand_in("slow first") as stand, Server(stand.url, None, QUICK._replace(silence_s=0.2)) as server:
        answer = server.ask(BODY)
    assert "the server said nothing for 0 s" in (answer.fault or "")


# --- the key, and servers that cannot be asked ------------------------------------------------------


def test_the_key_goes_into_the_header_alone(tmp_path: Path) -> None:
    secret = "k" * 40
    (tmp_path / "key").write_text(f"# ours\n{secret}\nother\n")
    with stand_in(key=secret) as stand:
        answer, fault = ask(stand, read_key(tmp_path / "key"))
        assert fault is None
        assert secret not in repr(answer) + str(stand.asked)
        with Server(stand.url, secret, QUICK) as server:
            server.await_ready()
            assert secret not in repr(vars(server).get("url")) + repr(server.props())


def test_another_key_is_refused_in_a_sentence() -> None:
    with stand_in(key="k" * 40) as stand, Server(stand.url, "wrong", QUICK) as server:
        with pytest.raises(BenchError, match=r"wants another API key\. Fix: ") as caught:
            server.await_ready()
        assert "wrong" not in str(caught.value)


@pytest.mark.parametrize("content", ["", "# only a comment\n", "\n", "ké\n"])
def test_a_file_without_a_key_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "key").write_text(content, encoding="utf-8")
    with pytest.raises(BenchError, match=r"Fix: "):
        read_key(tmp_path / "key")


def test_who_cannot_be_asked_is_said() -> None:
    with stand_in() as stand:
        pass
    with Server(stand.url, None, QUICK) as server, pytest.raises(BenchError, match=r"does not answer .*Fix: deploy"):
        server.await_ready()
    with pytest.raises(BenchError, match="is no address of a server"):
        Server("127.0.0.1:8910")
    with pytest.raises(BenchError, match="holds a user's name") as caught:
        Server("http://me:verysecret@127.0.0.1:8910")
    assert "verysecret" not in str(caught.value)
    hasty = QUICK._replace(load_s=0.3)
    with stand_in("loading") as stand, Server(stand.url, None, hasty) as server, pytest.raises(BenchError) as refused:
        server.await_ready()
    assert "has been loading its model" in str(refused.value)


def test_of_a_models_path_only_its_name_is_told() -> None:
    with stand_in() as stand, Server(stand.url + "/v1/", None, QUICK) as server:
        assert server.props() == {"build_info": "b1-stand", "total_slots": 1, "model_path": "a.gguf", "n_ctx": 4096}


def test_counters_that_fall_are_another_process() -> None:
    look = Look(process="", decoded=50, task=7, drafts=5)
    assert look.is_same_process_as(look._replace(decoded=60))
    assert not look.is_same_process_as(look._replace(decoded=10))
    assert not look.is_same_process_as(look._replace(task=0))
    assert look.is_same_process_as(Look())
    assert not Look(process="a").is_same_process_as(Look(process="b"))
