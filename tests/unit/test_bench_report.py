"""The report: the statistics' own figures in every form, nothing hostile in any, what is missing named."""

import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from beeyard.bench import claims as published
from beeyard.bench import record as records
from beeyard.bench import terminal
from beeyard.bench.against import against, verdict_of
from beeyard.bench.charts import charts
from beeyard.bench.configuration import arguments, beside_decoding
from beeyard.bench.markdown import as_markdown
from beeyard.bench.page import as_page
from beeyard.bench.record import Asked, Card, GpuSample, Host, Model, Protocol, Record, RecordError, Request, Variant
from beeyard.bench.report import Report, report_of, said_of
from beeyard.bench.run import latency
from beeyard.bench.statistics import overall, percentiles, speedup, typical
from beeyard.bench.together import together
from beeyard.catalog import PRESETS, load_catalog
from beeyard.cli import app
from tests.real_server import spec_of
from tests.records import record, request

BASELINE = Variant(name="baseline", decoding="baseline", argv=("server", "-m", "a.gguf", "--temp", "0.7"))
DFLASH = Variant(
    name="dflash", decoding="dflash",
    argv=("server", "-m", "a.gguf", "--spec-type", "draft-dflash", "--temp", "0.7"),
)  # fmt: skip
MTP = Variant(name="mtp", decoding="mtp")
SPEEDS = {
    ("baseline", "kv"): (40.0, 41.0, 39.0, 40.5, 40.2),
    ("baseline", "list"): (40.0, 40.3, 39.6, 40.1, 39.9),
    ("dflash", "kv"): (150.0, 140.3, 158.1, 149.2, 152.7, 147.1, 155.9, 143.4),
    ("dflash", "list"): (30.0, 31.0, 29.5, 30.2, 30.4),
    ("mtp", "kv"): (70.0, 72.0, 71.0, 69.0, 73.0),
}
HOSTILE = "<img src=x onerror=alert(1)>\"'&|`*_[x](http://e.example)$\\alpha$\x1b[31m\u202e@somebody\n# x"


def prompts(*names: str) -> tuple[Asked, ...]:
    return tuple(
        Asked(workload="guide", prompt=name, sha256="0" * 64, max_tokens=64, temperature=0.7) for name in names
    )


def answers(variant: str, prompt: str, speeds: tuple[float, ...], **more: object) -> list[Request]:
    drafts: dict[str, object] = {} if variant == "baseline" else {"draft_n": 70, "draft_n_accepted": 40}
    gaps = [0.01 * place for place in range(1, 6)]
    given: dict[str, object] = {
        "completion_tokens": 60, "wall_ms": 2000.0, "gaps_us": tuple(int(gap * 1e6) for gap in gaps),
        "latency": latency(gaps), **drafts, **more,
    }  # fmt: skip
    return [
        request(variant=variant, prompt=prompt, round=number, decode_per_s=speed, **given)
        for number, speed in enumerate(speeds, 1)
    ]


def made(*names: str, more: tuple[Request, ...] = (), **fields: object) -> Record:
    known = {one.name: one for one in (BASELINE, DFLASH, MTP)}
    requests = [one for (who, what), found in SPEEDS.items() if who in names for one in answers(who, what, found)]
    return record(
        *requests, *more,
        **{"variants": tuple(known[name] for name in names), "prompts": prompts("kv", "list"),
           "protocol": Protocol(rounds=5, warm_ups=1, nonce="-".join(names), seed=11), **fields},
    )  # fmt: skip


def report(*found: Record, base: str | None = None) -> Report:
    return report_of(together([(f"{place}.json", one) for place, one in enumerate(found)]), base)


def on_terminal(found: Report) -> str:
    out = io.StringIO()
    terminal.show_report(found, Console(file=out, width=200))
    return out.getvalue()


class Page(HTMLParser):
    """What a browser would make of it: tags, attributes, text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


# --- figures --------------------------------------------------------------------------------------


def test_every_form_has_the_figures_of_the_statistics() -> None:
    found = report(made("baseline", "dflash", "mtp"))
    kv = speedup(SPEEDS["baseline", "kv"], SPEEDS["dflash", "kv"], seed=11)
    pairs = [(SPEEDS["baseline", name], SPEEDS["dflash", name]) for name in ("kv", "list")]
    rate = typical(SPEEDS["dflash", "kv"], seed=11)
    wanted = [said_of(kv), said_of(overall(pairs, seed=11)), said_of(rate, 1)]
    (drafted, _) = found.comparisons
    assert (drafted.by_prompt["guide", "kv"], drafted.total) == (kv, overall(pairs, seed=11))
    assert found.line("dflash", ("guide", "kv")).decode == rate
    assert rate != typical(SPEEDS["dflash", "kv"], seed=8), "these speeds would not tell a seed from another"
    assert wanted[0] == f"{kv.ratio:.2f} ({kv.low:.2f} to {kv.high:.2f})"
    markdown = as_markdown(found).replace("\\", "")
    for text in (on_terminal(found), markdown, Page(as_page(found)).text):
        for figure in wanted:
            assert figure in text


def test_the_baseline_is_compared_with_wherever_it_stands_and_another_can_be_named() -> None:
    turned = made("dflash", "baseline", "mtp")
    assert [(one.before, one.after) for one in report(turned).comparisons] == [
        ("baseline", "dflash"), ("baseline", "mtp"),
    ]  # fmt: skip
    assert [one.before for one in report(turned, base="mtp").comparisons] == ["mtp", "mtp"]
    with pytest.raises(RecordError, match=r"no variant 'x'.*Fix: --base is one of dflash, baseline, mtp"):
        report(turned, base="x")


def test_slower_is_said_in_those_words_with_what_to_try() -> None:
    slow = record(
        *answers("baseline", "kv", SPEEDS["baseline", "kv"]), *answers("dflash", "kv", SPEEDS["dflash", "list"]),
        prompts=prompts("kv"), variants=(BASELINE, DFLASH),
    )  # fmt: skip
    (one,) = report(slow).comparisons
    assert one.is_slower
    assert one.verdict.startswith("DFlash is slower here: 0.75 (")
    assert any("draft_max" in text for text in one.advice)
    assert any("make switch VARIANT=baseline" in text for text in one.advice)
    for text in (on_terminal(report(slow)), as_markdown(report(slow)), as_page(report(slow))):
        assert "DFlash is slower here" in text
        assert "VARIANT=baseline" in text


def test_a_prompt_on_which_it_is_slower_is_named_though_it_is_faster_overall() -> None:
    (one,) = report(made("baseline", "dflash")).comparisons
    assert one.verdict.startswith("DFlash is faster here")
    assert one.more == (f"DFlash is slower here on guide/list ({said_of(one.by_prompt['guide', 'list'])}).",)
    assert one.advice


@pytest.mark.parametrize(
    ("drafted", "accepted", "words"),
    [(0, 0, "Nothing was drafted"), (100, 4, "Only 4.0% of the drafted"), (100, 30, "30.0% of the drafted")],
)
def test_what_to_try_follows_from_what_was_accepted(drafted: int, accepted: int, words: str) -> None:
    slow = record(
        *answers("baseline", "kv", (40.0, 40.0, 40.0)),
        *answers("dflash", "kv", (30.0, 30.0, 30.0), draft_n=drafted, draft_n_accepted=accepted),
        prompts=prompts("kv"), variants=(BASELINE, DFLASH),
    )  # fmt: skip
    (one,) = report(slow).comparisons
    assert one.advice[0].startswith(words)


def test_an_interval_around_one_is_no_clear_difference() -> None:
    same = record(
        *answers("baseline", "kv", (38.0, 40.0, 42.0)), *answers("dflash", "kv", (37.0, 41.0, 42.5)),
        prompts=prompts("kv"), variants=(BASELINE, DFLASH),
    )  # fmt: skip
    (one,) = report(same).comparisons
    assert "makes no clear difference here" in one.verdict
    assert one.advice == ()


def test_gaps_cost_and_positions_are_of_good_answers() -> None:
    bad = request(variant="dflash", prompt="kv", wall_ms=9e9, completion_tokens=1, fault="cut. Fix: see its log")
    drafts = {"drafts": 10, "accepted_per_position": (8, 4, 2)}
    uncounted = answers("dflash", "kv", (80.0,), wall_ms=1000.0, accepted_per_position=(9, 9, 9))
    priced = record(
        *answers("baseline", "kv", (40.0,) * 3), *answers("dflash", "kv", (80.0,) * 3, wall_ms=1000.0, **drafts),
        *uncounted, bad,
        prompts=prompts("kv"), variants=(BASELINE, DFLASH), host=Host(name="pod", price_per_hour=0.36),
    )  # fmt: skip
    found = report(priced)
    # 60 tokens in 2 s are 108,000 an hour.
    assert [(one.tokens_per_hour, one.per_million) for one in found.costs] == [
        pytest.approx((108_000, 0.36 / 0.108)), pytest.approx((216_000, 0.36 / 0.216)),
    ]  # fmt: skip
    (places,) = found.positions
    assert (places.variant, places.drafts, places.shares) == ("dflash", 30, (0.8, 0.4, 0.2))
    gaps = [10.0, 20.0, 30.0, 40.0, 50.0]
    every = [percentiles(gaps * answers, (0.5, 0.95)) for answers in (3, 4)]
    assert [one.gaps for one in found.delays] == [15, 20]
    assert [value for one in found.delays for value in (one.p50, one.p95)] == pytest.approx([*every[0], *every[1]])
    assert [(one.variant, one.rounds, one.text) for one in found.faults] == [
        ("dflash", (1,), "cut. Fix: see its log")
    ]
    for text in (on_terminal(found), as_markdown(found), Page(as_page(found)).text):
        assert "cut. Fix: see its log" in text
        assert "3.33 USD" in text


# --- what is missing ------------------------------------------------------------------------------


def test_one_variant_has_no_comparison_and_every_other_part() -> None:
    found = report(made("dflash"))
    assert found.comparisons == ()
    page = Page(as_page(found))
    assert "Tokens a second" in page.text
    assert "Speed-up" not in page.text
    assert "What differs" not in page.text
    assert {chart.title for chart in charts(found)} == {"Tokens a second", "Accepted drafts", "Gaps between tokens"}


def test_without_a_single_good_answer_it_says_so() -> None:
    broken = record(
        request(prompt="kv", fault="cut. Fix: see its log"), prompts=prompts("kv"), variants=(BASELINE, DFLASH)
    )
    found = report(broken)
    assert "nothing to compare" in found.comparisons[0].verdict
    assert charts(found) == []
    for text in (on_terminal(found), as_markdown(found), Page(as_page(found)).text):
        assert "cut. Fix: see its log" in text
        assert "not asked" in text


def test_without_gaps_the_answers_own_percentiles_stand_there() -> None:
    found = report(record(*answers("dflash", "kv", (80.0,) * 3, gaps_us=None), prompts=prompts("kv")))
    (delays,) = found.delays
    assert (delays.curve, delays.gaps) == ((), 15)
    assert delays.p50 == pytest.approx(30)
    assert "Gaps between tokens" not in {chart.title for chart in charts(found)}
    assert "medians of the answers' own percentiles" in as_markdown(found).replace("\\", "")


def test_heat_is_drawn_where_there_are_samples_with_a_value() -> None:
    samples = tuple(
        GpuSample(at_s=float(at), index=0, variant="dflash", temperature_c=60 + at % 7) for at in range(1000)
    )
    seen = {chart.title: chart.svg for chart in charts(report(made("dflash", gpu_samples=samples)))}
    assert "Temperature over time" in seen
    assert "Power over time" not in seen
    assert "60 to 66" in seen["Temperature over time"]
    assert len(seen["Temperature over time"]) < 20_000


# --- several records ------------------------------------------------------------------------------


def test_records_of_one_variant_each_are_compared_with_a_remark() -> None:
    found = report(made("baseline"), made("dflash"))
    alone = report(made("baseline", "dflash"))
    assert found.comparisons == alone.comparisons
    assert any("not in turns" in text for text in found.remarks)
    assert not any("good answers to" in text and "out of 0" in text for text in found.remarks)


def test_variants_of_one_name_are_told_apart() -> None:
    cellar = made("dflash", host=Host(name="cellar", cards=(Card(index=0, name="RTX 3090"),)))
    again = cellar.model_copy(update={"protocol": cellar.protocol.model_copy(update={"nonce": "z"})})
    both = together([("a", made("dflash")), ("b", cellar), ("c", again)])
    assert [one.name for one in both.record.variants] == ["dflash@attic", "dflash@cellar #1", "dflash@cellar #2"]
    assert both.hosts["dflash@cellar #2"].name == "cellar"
    assert any("more than one machine (attic, cellar)" in text for text in both.notes)
    assert len({one.variant for one in both.record.requests}) == 3


def test_the_same_run_twice_and_other_questions_of_one_name_are_refused() -> None:
    with pytest.raises(RecordError, match=r"a and b are one run\. Fix"):
        together([("a", made("dflash")), ("b", made("dflash"))])
    other = (prompts("kv")[0].model_copy(update={"sha256": "1" * 64}), prompts("list")[0])
    with pytest.raises(RecordError, match=r"a and b ask guide/kv with other words.*Fix"):
        together([("a", made("dflash")), ("b", made("baseline", prompts=other))])


# --- configurations -------------------------------------------------------------------------------


def test_arguments_are_read_as_flags_with_values_and_keys_are_hidden() -> None:
    words = ("/x/server", "-m", "a.gguf", "--jinja", "--temp", "-1.5", "--api-key", "S3CRET", "-np", "1")
    assert arguments(words) == {
        "program": "/x/server", "-m": "a.gguf", "--jinja": "set", "--temp": "-1.5", "--api-key": "(not shown)",
        "-np": "1",
    }  # fmt: skip
    assert arguments(("s", "--api-key=S3CRET")) == {"program": "s", "--api-key": "(not shown)"}


def test_what_differs_beside_decoding_is_said_and_marked() -> None:
    assert beside_decoding(BASELINE, DFLASH) == []
    warmer = DFLASH.model_copy(update={"argv": (*DFLASH.argv[:-1], "1.0")})
    found = report(made("baseline", "dflash", variants=(BASELINE, warmer)))
    assert any("differ in more than decoding (--temp)" in text for text in found.remarks)
    assert "<mark>1.0</mark>" in as_page(found)
    differing = {one.name: one.values for one in found.settings if one.differs and one.section == "arguments"}
    assert differing == {"--spec-type": ("", "draft-dflash"), "--temp": ("0.7", "1.0")}


def test_with_mtp_another_file_is_how_it_decodes_and_is_said() -> None:
    other = Model(name="with-heads.gguf", sha256="f" * 64)
    mtp = DFLASH.model_copy(update={"name": "mtp", "decoding": "mtp", "model": other})
    assert beside_decoding(BASELINE, mtp) == []
    assert beside_decoding(BASELINE, DFLASH.model_copy(update={"model": other})) == ["model"]
    found = report(made("baseline", "mtp", variants=(BASELINE, mtp)))
    assert any("baseline and mtp are of two files (" in text and "with-heads.gguf" in text for text in found.remarks)
    assert not any("differ in more than decoding" in text for text in found.remarks)


# --- hostile text ---------------------------------------------------------------------------------


def hostile() -> Report:
    variants = (
        Variant(name="baseline", title=HOSTILE, argv=("s", "--x", "</style><script>alert(2)</script>")),
        Variant(name=HOSTILE, decoding="dflash", argv=("s", "--x", HOSTILE), props={HOSTILE: HOSTILE}),
    )
    asked = (Asked(workload=HOSTILE, prompt=HOSTILE, sha256="0" * 64, max_tokens=64, temperature=0.7),)
    requests = [
        request(
            variant=who.name, workload=HOSTILE, prompt=HOSTILE, round=number, decode_per_s=50.0 - 10 * place,
            completion_tokens=60, fault=f"{HOSTILE}. Fix: x" if number == 4 else None,
        )
        for place, who in enumerate(variants)
        for number in range(1, 5)
    ]  # fmt: skip
    return report(record(*requests, prompts=asked, variants=variants, host=Host(name=HOSTILE), notes=(HOSTILE,)))


def test_nothing_that_a_record_says_becomes_markup_of_the_page() -> None:
    page = Page(as_page(hostile()))
    tags = {tag for tag, _ in page.tags}
    assert not tags & {"script", "img", "iframe", "link", "object", "a"}
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    assert "<img src=x onerror=alert(1)>" in page.text
    assert not re.search(r"[\x00-\x08\x0b-\x1f\u202e]", page.text)


def test_a_name_is_never_set_as_mathematics() -> None:
    named = record(*answers("dflash", "$\\alpha$", (80.0,) * 3), prompts=prompts("$\\alpha$"))
    assert all("guide/$\\alpha$" in chart.svg for chart in charts(report(named)) if "prompt" in chart.svg)
    assert "\N{GREEK SMALL LETTER ALPHA}" not in as_page(report(named))


def test_nothing_that_a_record_says_becomes_a_mark_of_markdown_or_a_terminals_command() -> None:
    markdown = as_markdown(hostile())
    assert not re.search(r"(?<!\\)[\[`<>]", markdown)
    assert "@somebody" not in markdown
    assert not re.search(r"^# x", markdown, re.MULTILINE)
    tables = [line for line in markdown.splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in tables if "times" not in line} <= {3, 4, 9}
    assert "\x1b" not in on_terminal(hostile())


def test_the_page_asks_nobody_for_anything() -> None:
    text = as_page(report(made("baseline", "dflash")))
    page = Page(text)
    assert not any(name in attributes for _, attributes in page.tags for name in ("src", "href"))
    assert "default-src 'none'" in text
    assert "@import" not in text
    assert "url(http" not in text
    assert "prefers-color-scheme: dark" in text
    links = [value for _, attributes in page.tags for name, value in attributes.items() if name == "xlink:href"]
    assert all(value and value.startswith("#") for value in links)
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert {value.removeprefix("#") for value in links if value} <= set(ids)
    assert not re.search(r"#0[0-9a]0[0-9]0[0-9]", text), "a colour that the style sheet does not know"


# --- against an older record ----------------------------------------------------------------------


def changed(record: Record, share: float, prompt: str = "kv") -> Record:
    return record.model_copy(
        update={
            "requests": tuple(
                one.model_copy(update={"decode_per_s": (one.decode_per_s or 0) * share})
                if one.prompt == prompt
                else one
                for one in record.requests
            )
        }
    )


@pytest.mark.parametrize(("share", "threshold", "regressed"), [
    (0.80, 0.05, True), (0.98, 0.05, False), (0.80, 0.25, False), (1.3, 0.05, False),
])  # fmt: skip
def test_slower_by_more_than_the_threshold_is_a_regression(share: float, threshold: float, regressed: bool) -> None:
    old = made("dflash")
    found = against(together([("new", changed(old, share))]), together([("old", old)]), threshold)
    assert [one.prompt for one in found.regressions] == (["kv"] if regressed else [])
    assert verdict_of(found).startswith("1 of 2 rates are worse" if regressed else "No regression")
    ratio = next(one.ratio for one in found.changes if one.prompt == "kv")
    assert ratio == speedup(SPEEDS["dflash", "kv"], [it * share for it in SPEEDS["dflash", "kv"]], seed=11)


def test_a_lower_median_within_its_chance_is_no_regression() -> None:
    old = record(*answers("dflash", "kv", (60.0, 100.0, 140.0)), prompts=prompts("kv"))
    new = record(*answers("dflash", "kv", (50.0, 90.0, 130.0)), prompts=prompts("kv"))
    assert against(together([("new", new)]), together([("old", old)])).regressions == ()


def test_a_prompt_that_no_longer_has_a_good_answer_is_a_regression() -> None:
    old = record(*answers("dflash", "kv", (60.0, 61.0, 62.0)), prompts=prompts("kv"))
    new = record(request(prompt="kv", fault="cut. Fix: see"), prompts=prompts("kv"))
    found = against(together([("new", new)]), together([("old", old)]))
    assert [(one.prompt, one.after) for one in found.regressions] == [("kv", None)]


def test_records_with_nothing_in_common_are_no_silent_success() -> None:
    with pytest.raises(RecordError, match=r"no variant and prompt in common.*Fix"):
        against(together([("new", made("mtp"))]), together([("old", made("baseline"))]))


def test_another_machine_engine_or_prompt_is_said() -> None:
    old = made("baseline", "dflash", host=Host(name="cellar", driver="570"))
    new = made("baseline", host=Host(name="attic", driver="580"), prompts=prompts("kv", "list"))
    notes = " ".join(against(together([("new", new)]), together([("old", old)])).notes)
    assert "baseline ran on another machine before (cellar, now attic)" in notes
    assert "the driver was 570, and is 580" in notes
    assert "dflash is in the older record alone" in notes


# --- the command ----------------------------------------------------------------------------------


def test_the_command_writes_what_is_asked_and_exits_with_6_on_a_regression(tmp_path: Path) -> None:
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    records.save(made("baseline", "dflash"), old)
    records.save(changed(made("baseline", "dflash"), 0.8), new)
    run = CliRunner()
    done = run.invoke(
        app, ["report", str(old), "--html", str(tmp_path / "a.html"), "--markdown", str(tmp_path / "a.md")]
    )
    assert done.exit_code == 0, done.output
    assert "DFlash is faster here" in done.output
    assert (tmp_path / "a.html").read_text().startswith("<!doctype html>")
    assert "DFlash is faster here" in (tmp_path / "a.md").read_text()
    worse = run.invoke(app, ["report", str(new), "--against", str(old), "--markdown", "-"])
    assert worse.exit_code == 6
    assert "4 rates are worse" in worse.output.replace("\\", "")
    assert run.invoke(app, ["report", str(new), "--against", str(old), "--threshold", "0.3"]).exit_code == 0


# --- claims ---------------------------------------------------------------------------------------


def test_published_figures_are_claims_with_a_source_and_no_records() -> None:
    found = published.load_claims()
    catalog = load_catalog([PRESETS])
    for source in found.sources:
        assert source.preset in catalog.servers
        for claim in source.claims:
            if claim.workload:
                assert claim.prompt is None or claim.prompt in catalog.workloads[claim.workload].prompts
            if claim.speedup and claim.speedup_to is None:
                assert claim.drafted_per_s / claim.base_per_s == pytest.approx(claim.speedup, abs=0.011)
    with pytest.raises(RecordError, match="no record of a benchmark"):
        records.load(published.CLAIMS)
    assert json.loads(published.CLAIMS.read_text())["kind"] == "claims"


def test_claims_stand_beside_the_same_model_alone_and_are_called_claims() -> None:
    spec = spec_of("gemma-4-31b", "dflash")
    gemma = DFLASH.model_copy(update={"preset": spec.preset})
    found = together([("x", made("dflash", variants=(gemma,)))])
    shown = report_of(found, claims=published.load_claims())
    assert {one.source.card for one in shown.claims} == {"RTX 4090", "RTX 3090"}
    for text in (on_terminal(shown), as_markdown(shown), Page(as_page(shown)).text):
        assert "Claims, not measurements" in text
        assert "130 to 153" in text
    assert report_of(together([("x", made("dflash"))]), claims=published.load_claims()).claims == ()
