"""The commands that measure: `beeyard bench`, `compare`, `tune`, `report`."""

import shlex
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from beeyard import measured, space
from beeyard.bench import against, claims, record, run, summary, terminal, together, tried, turns
from beeyard.bench import report as bench_report
from beeyard.bench.agreement import GreedyServer
from beeyard.bench.client import Server
from beeyard.bench.gpu import Sampler
from beeyard.bench.markdown import as_markdown
from beeyard.bench.workloads import Question, questions
from beeyard.catalog import PROJECT, Catalog, CatalogError, load_catalog, preset_folders
from beeyard.clouds import ending
from beeyard.commands.options import Data, Limit, Price, RecordFile, Seed, TargetName, Url, WarmUps, Workloads
from beeyard.comparing import Switching, as_it_was, in_order, may_be_changed, one_host, way_back
from beeyard.hosts import Target, pairs
from beeyard.images import sandbox_images
from beeyard.survey import Survey

app = typer.Typer()
NOT_MEASURED = 6
REGRESSED = 6
# Where records go that no --out names.
BENCH = PROJECT / ".beeyard" / "bench"


@app.command()
def bench(
    target: Annotated[
        str | None, typer.Argument(metavar="[TARGET]", help="An inventory with the server's host; none: --url alone.")
    ] = None,
    url: Url = None,
    key_file: Annotated[Path | None, typer.Option("--key-file", help="Its API key.")] = None,
    workload: Workloads = None,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="How often each prompt is asked.")] = 3,
    warm_ups: WarmUps = 1,
    seed: Seed = 1,
    out: RecordFile = None,
    limit: Limit = None,
    data: Data = None,
    name: Annotated[str, typer.Option("--variant", help="What a server of --url alone is called.")] = "server",
    price: Price = None,
    smi: Annotated[
        str | None, typer.Option("--smi", help="What asks its nvidia-smi, as 'ssh attic nvidia-smi'.")
    ] = None,
    with_text: Annotated[bool, typer.Option("--text/--no-text", help="Whether answers go into the record.")] = True,
    with_gaps: Annotated[
        bool, typer.Option("--gaps/--no-gaps", help="Whether every gap between tokens does.")
    ] = True,
) -> None:
    """Measure the server that runs: speed by prompt, drafts accepted, faults; 6 if too few answers were good."""
    catalog = load_catalog()
    console = terminal.console()
    with ExitStack() as stack:
        if target is None:
            who = measured.by_address(url, key_file)
        else:
            host = one_host(Target(target, pairs(data), limit or []))
            who = _reached(stack, host, catalog, url, key_file)
        server, asked, notes = _asked(stack, who, workload, catalog)
        variant, here = who.variant(name, server.props()), who.host(price)
        session = run.Session(server, asked, seed=seed, keeps_text=with_text, keeps_gaps=with_gaps)
        watch = shlex.split(smi) if smi else who.smi
        sampler = Sampler(watch, session.began, lambda: who.own_pids, lambda: variant.name) if watch else None
        with terminal.Progressing(console, len(asked) * rounds) as progress:
            found = run.run(session, variant, here, rounds, warm_ups, sampler, progress.tell, [*who.notes, *notes])
    file = out or BENCH / f"{here.name}-{variant.name}-{found.began:%Y%m%dT%H%M%SZ}.json"
    record.save(found, file)
    terminal.show(found, console)
    typer.echo(f"record: {file}")
    raise typer.Exit(NOT_MEASURED if summary.too_few(found) else 0)


def _reached(
    stack: ExitStack, host: Survey, catalog: Catalog, url: str | None, key_file: Path | None = None
) -> measured.Measured:
    """Who is measured on a host, and a way to its server for as long as the stack is open."""
    address = stack.enter_context(measured.reached(host, catalog, url))
    return measured.of_host(host, catalog, address, key_file)


def _asked(
    stack: ExitStack, who: measured.Measured, workload: list[str] | None, catalog: Catalog
) -> tuple[Server, list[Question], list[str]]:
    """Its server, ready; what it is asked; and what that leaves out."""
    server = stack.enter_context(Server(who.url, who.key))
    server.await_ready()
    names = list(catalog.workloads) if workload and "all" in workload else workload or ["guide"]
    return server, *questions(catalog.workloads, names, server.count_tokens, server.props().get("n_ctx"))


@app.command()
def compare(
    target: TargetName,
    variants: Annotated[
        str, typer.Option("--variants", help="Of its preset, with commas, as baseline,dflash.")
    ] = "baseline,dflash",
    workload: Workloads = None,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Turns of each variant.")] = 5,
    warm_ups: WarmUps = 1,
    seed: Seed = 1,
    cool_s: Annotated[
        float, typer.Option("--cool-down", min=0, help="Seconds that the card may cool after each switch.")
    ] = 0,
    with_agreement: Annotated[
        bool, typer.Option("--agreement/--no-agreement", help="Whether words at temperature 0 are compared.")
    ] = True,
    with_tests: Annotated[
        bool, typer.Option("--tests/--no-tests", help="Whether the code in answers is tried, in a sandbox here.")
    ] = True,
    out: RecordFile = None,
    html: Annotated[Path | None, typer.Option("--html", help="The report as one page, too.")] = None,
    limit: Limit = None,
    data: Data = None,
    url: Url = None,
    price: Price = None,
    then_down: Annotated[
        bool, typer.Option("--then-down", help="End the rented pod afterwards, whatever happened.")
    ] = False,
) -> None:
    """Switch a host through variants in turns, and say what each brings; the one that was there serves at the end."""
    catalog, console = load_catalog(), terminal.console()
    where = Target(target, pairs(data), limit or [])
    switching = Switching(where, catalog, tell=lambda text: terminal.say(console, text))
    with ExitStack() as stack:
        # First of all: a rented pod ends also where nothing comes of it.
        pod = limit[0] if limit else None
        stack.enter_context(ending.then_down(target, pod, switching.tell, is_wanted=then_down))
        host = one_host(where)
        names = in_order(host, [name for name in variants.split(",") if name], catalog)
        stack.enter_context(as_it_was(switching, host, way_back(where, host, catalog)))
        served = switching.bring(names[0])
        who = _reached(stack, served, catalog, url)
        switching.server, asked, notes = _asked(stack, who, workload, catalog)
        session = run.Session(switching.server, asked, seed=seed)
        sampler = (
            Sampler(who.smi, session.began, lambda: switching.own_pids, lambda: switching.now) if who.smi else None
        )
        agreeing = None
        if with_agreement:
            greedy = stack.enter_context(GreedyServer(who.url, who.key))
            agreeing = turns.Agreeing(greedy, {f"{one.workload}/{one.prompt}": one.messages for one in asked})
        with terminal.Progressing(console, len(asked) * rounds * len(names)) as progress:
            found = turns.in_turns(
                session, names, rounds, switching, who.host(price), warm_ups=warm_ups, pause_s=cool_s,
                agreeing=agreeing, sampler=sampler, tell=progress.tell, notes=[*who.notes, *notes],
            )  # fmt: skip
        file = out or BENCH / f"{found.host.name}-{'-'.join(names)}-{found.began:%Y%m%dT%H%M%SZ}.json"
        record.save(found, file)
    if with_tests:
        found = tried.with_tests(
            found, preset_folders(), sandbox_images(catalog), lambda one: terminal.say(console, tried.said_of(one))
        )
        record.save(found, file)
    report = bench_report.report_of(together.together([(str(file), found)]), names[0], claims.load_claims())
    terminal.show_report(report, console)
    if html is not None:
        _write_page(html, report, None)
    typer.echo(f"record: {file}")
    raise typer.Exit(NOT_MEASURED if summary.too_few(found) else 0)


@app.command()
def tune(
    target: TargetName,
    variant: Annotated[str | None, typer.Option("--variant", help="Of its preset; else the inventory's.")] = None,
    minutes: Annotated[float, typer.Option("--minutes", min=1, help="How long it may take in all.")] = 60,
    trials: Annotated[
        int, typer.Option("--trials", min=1, help="How many trials at most, with those of before.")
    ] = 40,
    cost: Annotated[
        float | None, typer.Option("--cost", min=0, help="US dollars that it may cost; with --price.")
    ] = None,
    price: Price = None,
    workload: Workloads = None,
    tokens: Annotated[int, typer.Option("--tokens", min=32, help="Of an answer, at most.")] = 400,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Turns of the comparison at the end.")] = 5,
    seed: Seed = 1,
    limit: Limit = None,
    data: Data = None,
    url: Url = None,
) -> None:
    """Search what makes a variant fastest on a host, prove the gain, and write a preset that keeps it."""
    from beeyard import tuning  # noqa: PLC0415 - its optimiser takes half a second, which others need not wait

    catalog, console = load_catalog(), terminal.console()
    limits = tuning.Limits(minutes * 60, trials, cost, price)
    where = Target(target, {**pairs(data), **({"llama_variant": variant} if variant else {})}, limit or [])
    host = one_host(where)
    may_be_changed(host, catalog)
    switching = Switching(where, catalog)
    with as_it_was(switching, host, way_back(where, host, catalog)), ExitStack() as stack:
        where.deploy({})
        served = one_host(where)
        who = _reached(stack, served, catalog, url)
        assert who.spec is not None, "a host of an inventory has a spec"  # noqa: S101
        server, asked, notes = _asked(stack, who, workload, catalog)
        asked = [replace(one, max_tokens=min(one.max_tokens, tokens)) for one in asked]
        kept = BENCH.parent / "tune" / f"{who.name}-{who.spec.preset}-{who.spec.variant}"
        search = tuning.Tuning(
            switching, served, who.spec, asked, server, who, kept / "trials.log", limits, rounds, seed,
            tell=lambda text: terminal.say(console, text),
        )  # fmt: skip
        for text in (*notes, *(f"tried: {knob.name}, {knob.choices}" for knob in search.knobs)):
            terminal.say(console, text)
        best = search.search()
        found = search.prove(best) if search.data(best) else None
    if found is None:
        terminal.say(
            console, f"{who.spec.variant} as it is was the fastest of all that was tried. Nothing is to be kept"
        )
        return
    file = BENCH / f"{who.name}-tuned-{found.began:%Y%m%dT%H%M%SZ}.json"
    record.save(found, file)
    report = bench_report.report_of(together.together([(str(file), found)]), who.spec.variant)
    terminal.show_report(report, console)
    name = who.spec.variant + tuning.TUNED
    remark = f"{space.said(space.changed(best, search.knobs))}\n{report.comparisons[0].verdict}\nRecord: {file.name}"
    _write(kept / "servers.yaml", space.preset(who.spec, search.data(best), name, catalog, remark))
    typer.echo(f"record: {file}")
    total = report.comparisons[0].total
    if total is None or not total.is_faster:
        typer.echo(f"no gain is proven: keep {who.spec.variant} as it is, or search longer, on a quieter machine")
    else:
        typer.echo(f"to keep it: BEEYARD_PRESETS={kept} make deploy TARGET={target} DATA=llama_variant={name}")


@app.command("report")
def show_report(
    records: Annotated[list[Path], typer.Argument(metavar="RECORD…", help="Files of `beeyard bench`.")],
    markdown: Annotated[
        Path | None, typer.Option("--markdown", help="Write it as Markdown, too; -: to standard output instead.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option("--html", help="Write it as one page, too, that needs no network.")
    ] = None,
    base: Annotated[
        str | None, typer.Option("--base", help="The variant to compare with; else the one that does not draft.")
    ] = None,
    old: Annotated[
        list[Path] | None, typer.Option("--against", help="An older record: 6 if something became slower.")
    ] = None,
    threshold: Annotated[
        float, typer.Option("--threshold", min=0, max=1, help="How much slower is a regression; 0.05: 5 %.")
    ] = against.THRESHOLD,
    with_claims: Annotated[
        bool,
        typer.Option("--claims/--no-claims", help="Whether published figures of the same model stand beside it."),
    ] = True,
) -> None:
    """Report on records, together: speed-ups, rates, drafts, gaps, cost, heat, configurations, faults."""
    found = together.together([(str(file), record.load(file)) for file in records])
    text = bench_report.report_of(found, base, claims.load_claims() if with_claims else None)
    before = together.together([(str(file), record.load(file)) for file in old or []]) if old else None
    change = against.against(found, before, threshold) if before else None
    console = terminal.console()
    if markdown == Path("-"):
        typer.echo(as_markdown(text, change), nl=False)
    else:
        terminal.show_report(text, console)
        if change is not None:
            terminal.show_against(change, console)
    if markdown is not None and markdown != Path("-"):
        _write(markdown, as_markdown(text, change))
    if html is not None:
        _write_page(html, text, change)
    if change is not None and change.regressions:
        typer.echo(against.verdict_of(change), err=True)
        raise typer.Exit(REGRESSED)


def _write_page(file: Path, report: bench_report.Report, change: against.Against | None) -> None:
    from beeyard.bench.page import as_page  # noqa: PLC0415 - matplotlib takes a second, which others need not wait

    _write(file, as_page(report, change))


def _write(file: Path, text: str) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CatalogError(f"{file}: {error.strerror}. Fix: name a file that can be written") from error
    typer.echo(f"written: {file}", err=True)
