"""The command `beeyard`: what can be seen and prepared without a host. A usage error or a bad preset exits with 2."""

import json
import shlex
import shutil
import sys
import time
from pathlib import Path
from typing import Annotated

import httpx
import typer
from rich.console import Console
from rich.table import Table

from beeyard import image_build, locking, survey
from beeyard import newest as newest_engine
from beeyard.catalog import PRESETS, PROJECT, Catalog, CatalogError, load_catalog, pick
from beeyard.clouds.needs import DoesNotFit
from beeyard.clouds.pods import CloudError
from beeyard.commands import bench, doctor, drift, export, logs, pods, status
from beeyard.commands.options import Data, Limit
from beeyard.dialects import argv
from beeyard.hosts import Target, pairs
from beeyard.images import (
    GRAFANA_IMAGE,
    PROMETHEUS_IMAGE,
    SANDBOX_IMAGE,
    SBOM_SCANNER,
    architecture,
    builds,
    published_name,
)
from beeyard.lockfile import add_base, add_image
from beeyard.plan import report
from beeyard.render import CLONE_PRESET, clone_compose, define, rendered_files
from beeyard.spec import ANY_HOST, Runtime, ServerSpec, every_variant, resolve
from beeyard.trust import trusted

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False)
app.add_typer(bench.app)
app.add_typer(pods.app, name="pods")
for command in (
    status.status, doctor.doctor, logs.logs, drift.drift, drift.drift_timer, export.export,
):  # fmt: skip
    app.command()(command)
USAGE = 2
DOES_NOT_FIT = 3
CHECK_FAILED = 4
CLOUD_REFUSED = 7

Preset = Annotated[str, typer.Argument(metavar="SERVER", help="A server of presets/servers.yaml.")]
VariantName = Annotated[str, typer.Argument(metavar="VARIANT", help="One of its variants.")]
EngineName = Annotated[str | None, typer.Option("--engine", help="Another engine than the preset's.")]
Prefix = Annotated[str, typer.Option("--prefix", help="Where Beeyard lives on the host.")]


@app.command("argv")
def show_argv(
    server: Preset,
    variant: VariantName,
    engine: EngineName = None,
    prefix: Prefix = "/opt/beeyard",
    shell: Annotated[bool, typer.Option("--shell", help="As one quoted command.")] = False,
) -> None:
    """Print the arguments that a host would run, one a line."""
    words = argv(_spec(server, variant, engine, prefix))
    typer.echo(shlex.join(words) if shell else "\n".join(words))


@app.command()
def render() -> None:
    """Write compose.yaml, docker-bake.hcl and Grafana's dashboard anew from presets, templates and code."""
    catalog = load_catalog([PRESETS])
    for name, text in rendered_files(catalog).items():
        changed = (PROJECT / name).read_text() != text if (PROJECT / name).exists() else True
        (PROJECT / name).write_text(text)
        typer.echo(f"{name} {'written' if changed else 'is as it should be'}")


@app.command("compose")
def show_compose(server: Preset) -> None:
    """Print the compose.yaml that would serve another preset from a clone."""
    typer.echo(clone_compose(load_catalog(), server), nl=False)


@app.command()
def image(
    variant: Annotated[
        str | None,
        typer.Argument(metavar="[VARIANT]", help="One of presets/images.yaml; else by this machine's cards."),
    ] = None,
    engine: Annotated[str | None, typer.Option("--engine", help="One that has a commit; else the usual one.")] = None,
    card: Annotated[
        str | None, typer.Option("--card", help="A card of presets/gpus.yaml, instead of those here.")
    ] = None,
    architectures: Annotated[str, typer.Option("--architectures", help="Instead of a card's, as 86;89.")] = "",
    jobs: Annotated[str, typer.Option("--jobs", help="Compilers at a time; auto: by cores and memory.")] = "auto",
    source: Annotated[Path | None, typer.Option("--source", help="A checkout, instead of the commit.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Every variant.")] = False,
    pod: Annotated[bool, typer.Option("--pod", help="The one that a rented pod starts from, with sshd.")] = False,
) -> None:
    """Build the image of an engine on this machine."""
    catalog = load_catalog()
    engine = engine or catalog.servers[CLONE_PRESET].engine
    if every:
        tags = image_build.build_all(catalog, engine, jobs)
    else:
        named = [architecture(pick(catalog.gpus, card, "card").compute_capability)] if card else []
        wanted = [name for name in architectures.split(";") if name] or named
        tags = [image_build.build(catalog, engine, variant, wanted, jobs, source, pod=pod)]
    for tag in tags:
        typer.echo(image_build.inspect(tag))


@app.command()
def publish(
    variant: Annotated[str, typer.Argument(metavar="VARIANT", help="One of presets/images.yaml.")],
    to: Annotated[str, typer.Option("--to", help="The repository, as ghcr.io/OWNER/NAME.")],
    engine: Annotated[str | None, typer.Option("--engine", help="One that has a commit; else the usual one.")] = None,
    jobs: Annotated[str, typer.Option("--jobs", help="Compilers at a time; auto: by cores and memory.")] = "auto",
    version: Annotated[str, typer.Option("--version", help="Of this project, as v1.2.3; ends the tag.")] = "",
    pod: Annotated[bool, typer.Option("--pod", help="The one that a rented pod starts from.")] = False,
) -> None:
    """Build an engine's image, push it with SBOM and provenance, and print its line for presets/lock.yaml."""
    catalog = load_catalog()
    engine = engine or catalog.servers[CLONE_PRESET].engine
    reference = image_build.publish(catalog, engine, variant, jobs, to, version, pod=pod)
    if pod:
        typer.echo("Published. What a pod's template names:", err=True)
        typer.echo(reference)
        return
    typer.echo("Published. What pulls it, below `images:` in presets/lock.yaml:", err=True)
    typer.echo(f"  {engine}-{variant}: {reference}")


@app.command()
def newest(
    engine: Annotated[
        str | None, typer.Argument(metavar="[ENGINE]", help="One of those; none: list them, as JSON.")
    ] = None,
    jobs: Annotated[str, typer.Option("--jobs", help="Compilers at a time; auto: by cores and memory.")] = "auto",
) -> None:
    """Build an engine's newest commit for the CPU, and compare its flags with those that we know; 1 if they broke."""
    catalog = load_catalog()
    if engine is None:
        typer.echo(json.dumps(newest_engine.candidates(catalog)))
        return
    known = pick(catalog.engines, engine, "engine")
    commit = newest_engine.newest_commit(known.repository)
    typer.echo(f"{engine}: {known.repository} is at {commit}")
    trial = newest_engine.with_commit(catalog, engine, commit)
    tag = image_build.build(trial, newest_engine.trial_name(engine), "cpu", (), jobs, None)
    typer.echo(image_build.inspect(tag))
    found = newest_engine.compare(trial, engine, image_build.flags_of_image(tag))
    for line in (*found.news, *found.breaks):
        typer.echo(line)
    if found.breaks:
        typer.echo(
            f"{engine}'s newest commit breaks what we know of it. Fix: add it to presets/engines.yaml with a flag "
            "table of its own, and follow the change in beeyard/dialects.py",
            err=True,
        )
        raise typer.Exit(1)


@app.command("lock-images")
def lock_images(
    file: Annotated[Path, typer.Option("--file", help="The lock to write.")] = PROJECT / "presets" / "lock.yaml",
    published: Annotated[
        str | None, typer.Option("--from", help="Lock the engines' images of this repository instead.")
    ] = None,
) -> None:
    """Ask the registries for the digests of the images that we build on or use; write them down."""
    catalog = load_catalog()
    if published is not None:
        _lock_published(catalog, published, file)
        return
    names = {base for variant in catalog.images.values() for base in (variant.build_base, variant.server_base)}
    for name in sorted(names | {SBOM_SCANNER, SANDBOX_IMAGE, PROMETHEUS_IMAGE, GRAFANA_IMAGE}):
        if catalog.lock.bases.get(name) == "local":
            typer.echo(f"{name} is one of your own: left as it is")
            continue
        digest = image_build.digest_of(name)
        add_base(file, name, digest)
        typer.echo(f"locked {name}: {digest}")
    typer.echo(f"Now run `make render`, look at {file.name}, compose.yaml and docker-bake.hcl, and commit them.")


def _lock_published(catalog: Catalog, repository: str, file: Path) -> None:
    found = 0
    for build in builds(catalog):
        try:
            digest = image_build.digest_of(published_name(build, repository, ""))
        except CatalogError as error:
            typer.echo(error, err=True)
            continue
        found += 1
        add_image(file, f"{build.engine_name}-{build.variant_name}", f"{repository}@{digest}")
        typer.echo(f"locked {build.engine_name}-{build.variant_name}: {digest}")
    if not found:
        raise CatalogError(f"{repository} has no image of these engines. Fix: `make publish TO={repository}` first")
    typer.echo(f"Look at {file.name} and commit it.")


@app.command()
def unit(
    server: Preset,
    variant: VariantName,
    engine: EngineName = None,
    prefix: Prefix = "/opt/beeyard",
    runtime: Annotated[str, typer.Option("--runtime", help="systemd, supervisor or compose.")] = "systemd",
) -> None:
    """Print the unit, program or compose file that a host would get."""
    typer.echo(define(_spec(server, variant, engine, prefix, runtime)).definition, nl=False)


@app.command()
def plan(
    target: Annotated[
        str | None, typer.Argument(metavar="[TARGET]", help="An inventory, as homelab; none with --facts.")
    ] = None,
    data: Data = None,
    limit: Limit = None,
    facts: Annotated[Path | None, typer.Option("--facts", help="Plan from such a file, without the hosts.")] = None,
    save_facts: Annotated[Path | None, typer.Option("--save-facts", help="Keep what the hosts said.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, every value with its reason.")] = False,
) -> None:
    """Say what hosts would run, and all that stands against it; 3 if something does. Changes nothing."""
    given = pairs(data)
    if facts is not None:
        seen, unseen = survey.load(_read(facts), str(facts)), 0
    elif target is not None:
        seen, unseen = _surveyed(Target(target, given, limit or []))
    else:
        raise CatalogError(
            "plan for whom? Fix: name an inventory, as in `beeyard plan homelab`, or a file with --facts"
        )
    if save_facts is not None:
        save_facts.write_text(survey.dump(seen))
    catalog = load_catalog()
    plans = {}
    for host in seen:
        host = host.model_copy(update={"data": {**host.data, **given}})  # noqa: PLW2901
        plans[host.name] = survey.planned(host, survey.solved(host, catalog), catalog, [])
    if as_json:
        typer.echo(json.dumps({name: found.model_dump(mode="json") for name, found in plans.items()}, indent=1))
    else:
        for name, found in plans.items():
            for line in (*report(found), *(f"no: {reason}" for reason in found.reasons)):
                typer.echo(f"[{name}] {line}")
    raise typer.Exit(unseen if all(found.fits for found in plans.values()) else DOES_NOT_FIT)


def _surveyed(target: Target) -> tuple[list[survey.Survey], int]:
    """What the hosts say, and how it ended, as some may not answer: that is shown."""
    seen, code, said = target.surveyed()
    if code:
        typer.echo(said, err=True, nl=False)
    if not seen:
        raise typer.Exit(code or 1)
    return seen, code


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except OSError as error:
        raise CatalogError(f"{file}: {error.strerror}. Fix: name a file that --save-facts wrote") from error


@app.command()
def presets() -> None:
    """List servers, variants, engines, and what of them is locked."""
    catalog = load_catalog()
    table = Table("server", "variant", "engine", "model", "locked")
    for name, server in catalog.servers.items():
        for spec in every_variant({"llama_preset": name}, catalog):
            default = " (default)" if spec.variant == server.default_variant else ""
            table.add_row(
                name, spec.variant + default, spec.engine_name, spec.model.name, "no" if spec.unlocked else "yes"
            )
    Console().print(table)


@app.command()
def lock(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]…", help="Presets, models or engines; none: every preset.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; 4 if upstream is no longer as locked.")
    ] = False,
    file: Annotated[Path, typer.Option("--file", help="The lock to write.")] = PROJECT / "presets" / "lock.yaml",
) -> None:
    """Ask the Hub (HF_ENDPOINT, HF_TOKEN) and the forge what files and engines are, and write it into the lock."""
    catalog = load_catalog()
    if check:
        can_ask = shutil.which("docker") is not None
        if not can_ask and not names:
            typer.echo("images are left out: there is no docker here to ask a registry with", err=True)
        found = locking.drift(catalog, names or [], image_build.digest_of if can_ask else None)
        for text in found:
            typer.echo(text, err=True)
        typer.echo("upstream is as the lock says" if not found else f"{len(found)} of the lock's entries do not hold")
        raise typer.Exit(CHECK_FAILED if found else 0)
    for text in locking.lock(catalog, names or [], file):
        typer.echo(text)
    typer.echo(f"Look at {file.name} and commit it.")


@app.command()
def ask(
    prompt: Annotated[str, typer.Argument(help="What to ask.")] = "Write one sentence about bees.",
    url: Annotated[str, typer.Option("--url", help="The server.")] = "http://127.0.0.1:8910",
    key_file: Annotated[Path, typer.Option("--key-file", help="Its API key.")] = PROJECT / ".beeyard/keys/_local",
    max_tokens: Annotated[int, typer.Option("--max-tokens", help="The longest answer.")] = 96,
) -> None:
    """Ask a running server, and show its answer and speed."""
    if not key_file.is_file():
        raise CatalogError(f"{key_file} is not there. Fix: deploy first, or name the key with --key-file")
    body = {"messages": [{"role": "user", "content": prompt}], "max_tokens": max_tokens}
    headers = {"Authorization": f"Bearer {key_file.read_text().rstrip(chr(10))}"}
    began = time.monotonic()
    try:
        answer = httpx.post(
            f"{url}/v1/chat/completions", json=body, headers=headers, timeout=300, trust_env=False,
            verify=trusted(url),
        ).raise_for_status()  # fmt: skip
    except httpx.HTTPError as error:
        raise CatalogError(f"{url} does not answer ({error}). Fix: deploy, or name another --url") from error
    took = time.monotonic() - began
    found = answer.json()
    timings = found.get("timings", {})
    typer.echo(f"> {prompt}\n{found['choices'][0]['message']['content'].strip()}\n")
    drafted = ""
    if timings.get("draft_n"):
        drafted = f", {timings.get('draft_n_accepted', 0)} of {timings['draft_n']} drafted tokens accepted"
    speed = timings.get("predicted_per_second")
    typer.echo(f"{f'{speed:.1f} tokens/s' if speed else 'no timings'}{drafted}, {took:.1f} s in all")


def _spec(
    server: str, variant: str, engine: str | None, prefix: str, runtime: Runtime | str = "systemd"
) -> ServerSpec:
    data = {
        "llama_preset": server,
        "llama_variant": variant,
        "llama_prefix": prefix,
        "llama_runtime": runtime,
    }
    if engine is not None:
        data["llama_engine"] = engine
    return resolve(data, load_catalog(), ANY_HOST)


def main() -> None:
    """Run the command; a failure we know is one sentence, never a traceback."""
    try:
        app()
    except CatalogError as error:
        print(error, file=sys.stderr)
        sys.exit(_code(error))


def _code(error: CatalogError) -> int:
    kinds = {DoesNotFit: DOES_NOT_FIT, CloudError: CLOUD_REFUSED}
    return next((code for kind, code in kinds.items() if isinstance(error, kind)), USAGE)


if __name__ == "__main__":
    main()
