"""The commands `beeyard pods …`: what is offered, rented, running and ended at RunPod and Vast.ai."""

import json
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any, get_args

import typer
from pydantic import ValidationError
from rich.console import Console
from rich.table import Table

from beeyard.catalog import Catalog, CatalogError, load_catalog, sentence
from beeyard.clouds import account, inventory, needs, shell, story
from beeyard.clouds.pods import TLS_PORT, Cloud, CloudError, CloudName, Expose, Order, Pod
from beeyard.clouds.story import Teller
from beeyard.lockfile import default_file
from beeyard.spec import ANY_HOST, resolve

app = typer.Typer(no_args_is_help=True, help="Rented pods: RunPod (runpod) and Vast.ai (vast).")
OFFERS_SHOWN = 12
HOUR_S, MINUTE_S = 3600, 60


class AtDeadline(StrEnum):
    """What the deadline does."""

    END = "end"
    STOP = "stop"


CloudArgument = Annotated[str, typer.Argument(metavar="CLOUD", help="runpod or vast.")]
PodArgument = Annotated[str | None, typer.Argument(metavar="[POD]", help="Its name or id; none: the only one.")]
PresetArgument = Annotated[str, typer.Argument(metavar="SERVER", help="A server of presets/servers.yaml.")]
VariantOption = Annotated[str | None, typer.Option("--variant", help="Another variant than the preset's.")]
DiskOption = Annotated[int, typer.Option("--disk", min=10, help="GB on /workspace, which survives a stop.")]
HoursOption = Annotated[float, typer.Option("--hours", min=0.1, help="After so many the pod ends by itself.")]
PriceOption = Annotated[float | None, typer.Option("--max-price", min=0, help="US dollars an hour at most.")]
ReliabilityOption = Annotated[float, typer.Option("--reliability", min=0, max=1, help="Vast.ai's, at least.")]
ImageOption = Annotated[
    str | None, typer.Option("--image", help="One that `make image POD=1` made; else the provider's own.")
]
ImageVariantOption = Annotated[
    str | None, typer.Option("--image-variant", help="Which of presets/images.yaml --image is.")
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Ask nothing.")]


@app.command()
def offers(
    cloud: CloudArgument,
    server: PresetArgument,
    variant: VariantOption = None,
    disk: DiskOption = 100,
    hours: HoursOption = 8,
    max_price: PriceOption = None,
    reliability: ReliabilityOption = 0.98,
    image: ImageOption = None,
    image_variant: ImageVariantOption = None,
) -> None:
    """Show what can run a preset, the cheapest first, and why the rest cannot; rents nothing."""
    asked = account.cloud(account.named(cloud), load_catalog())
    catalog, order, begin = _order(cloud, "offers", server, variant, disk, hours, image, image_variant, "")
    judged = _judged(asked, catalog, order, begin, max_price, reliability)
    table = Table("$/hour", "card", "MiB", "CUDA", "where", "reliability")
    for offer, _ in judged.choices[:OFFERS_SHOWN]:
        said = offer.stock or (f"{offer.reliability:.3f}" if offer.reliability is not None else "")
        table.add_row(f"{offer.price:.3f}", offer.gpu, str(offer.memory_mib), offer.cuda, offer.region, said)
    if judged.choices:
        Console().print(table)
    for reason, count in sorted(judged.against.items(), key=lambda one: -one[1])[:3]:
        typer.echo(f"{count} cannot: {reason}")
    if not judged.choices:
        raise needs.nothing_fits(judged, cloud, server)


@app.command()
def up(
    cloud: CloudArgument,
    server: PresetArgument = "gemma-4-31b",
    name: Annotated[str, typer.Option("--name", help="What it is called; twice the same is one pod.")] = "llm",
    variant: VariantOption = None,
    disk: DiskOption = 100,
    hours: HoursOption = 8,
    at_deadline: Annotated[
        AtDeadline, typer.Option("--at-deadline", help="end: disk and all; stop: the disk goes on costing.")
    ] = AtDeadline.END,
    idle_stop: Annotated[
        int | None, typer.Option("--idle-stop", min=5, help="Stop after so many minutes without a request.")
    ] = None,
    max_price: PriceOption = None,
    reliability: ReliabilityOption = 0.98,
    image: ImageOption = None,
    image_variant: ImageVariantOption = None,
    network_volume: Annotated[
        str | None, typer.Option("--network-volume", help="RunPod: one of yours by name or id, on /workspace.")
    ] = None,
    hf_secret: Annotated[
        str | None, typer.Option("--hf-secret", help="RunPod: the name of your secret with a token of the Hub.")
    ] = None,
    expose: Annotated[
        str,
        typer.Option("--expose", help="tunnel; proxy: RunPod's of HTTPS; tcp: TLS at a port of its own."),
    ] = "tunnel",
    yes: YesOption = False,
) -> None:
    """Rent a pod for a preset, the cheapest that can run it, and wait until SSH answers. Asks before it costs."""
    _check_expose(expose, cloud)
    asked = account.cloud(account.named(cloud), load_catalog())
    catalog, order, begin = _order(
        cloud, name, server, variant, disk, hours, image, image_variant, shell.public_key(),
        at_deadline=at_deadline.value, idle_minutes=idle_stop, network_volume=network_volume, hf_secret=hf_secret,
        expose=expose,
    )  # fmt: skip
    choices: list[needs.Choice] = []
    # One that is there already needs no offer.
    if not any(pod.label == order.label for pod in asked.pods()):
        judged = _judged(asked, catalog, order, begin, max_price, reliability)
        choices = judged.choices
        if not choices:
            raise needs.nothing_fits(judged, cloud, server)
        for decided in choices[0].solution.decisions:
            typer.echo(f"{decided.what}: {decided.value} ({decided.why})")
    pod = story.up(asked, order, choices, _teller(yes))
    inventory.forget(asked.name)
    _tell_how(pod, order.expose)


@app.command("list")
def show(
    cloud: Annotated[
        str | None, typer.Argument(metavar="[CLOUD]", help="runpod or vast; none: whose key is set.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """List our pods with their price, what they cost so far, and the time that is left."""
    catalog = load_catalog()
    names = [account.named(cloud)] if cloud else [one for one in account.NAMES if account.has_key(one)]
    if not names:
        account.cloud("runpod", catalog)  # says what is missing
    rows: list[dict[str, Any]] = []
    lines: list[str] = []
    for one in names:
        asked = account.cloud(one, catalog)
        pods = asked.pods()
        charged = asked.spent(pods)
        rows += [_row(pod, charged.get(pod.id)) for pod in pods]
        lines += [line for line in story.costs_on(asked) if not line.startswith("still there")]
    if as_json:
        typer.echo(json.dumps(rows, indent=1))
        return
    table = Table("pod", "cloud", "state", "card", "$/hour", "$ so far", "left", "SSH", "id")
    for row in rows:
        spent = "" if row["spent"] is None else f"{row['spent']:.2f}"
        table.add_row(
            row["name"], row["cloud"], row["state"], row["gpu"], f"{row['price']:.3f}", spent,
            _told_left(row["seconds_left"]), row["ssh"], row["id"],
        )  # fmt: skip
    if rows:
        Console().print(table)
    for line in lines:
        typer.echo(line)


@app.command()
def ssh(
    cloud: CloudArgument,
    pod: PodArgument = None,
    as_line: Annotated[bool, typer.Option("--print", help="Print the command instead.")] = False,
    as_tunnel: Annotated[bool, typer.Option("--tunnel", help="Print what brings port 8910 here instead.")] = False,
) -> None:
    """Log in to a pod."""
    found = story.find(account.cloud(account.named(cloud), load_catalog()), pod)
    if found.ssh is None:
        raise CloudError(f"{found.name} is {found.state}, without an address. Fix: see `beeyard pods list {cloud}`")
    if as_tunnel:
        typer.echo(shell.tunnel(found))
    elif as_line:
        typer.echo(" ".join(shell.command(found, found.ssh)))
    else:
        environment = {key: value for key, value in os.environ.items() if key not in shell.SECRETS}
        raise typer.Exit(subprocess.run(shell.command(found, found.ssh), check=False, env=environment).returncode)


@app.command()
def stop(cloud: CloudArgument, pod: PodArgument = None, yes: YesOption = False) -> None:
    """Stop a pod: its card is free for others, its disk stays and goes on costing."""
    asked = account.cloud(account.named(cloud), load_catalog())
    found = story.find(asked, pod)
    teller = _teller(yes)
    if not teller.confirm(f"Stop {found.name} ({found.id})? Its {found.disk_gb:g} GB of disk go on costing."):
        raise story.Declined("nothing was stopped. Fix: say yes")
    story.stop(asked, found, teller)
    inventory.forget(asked.name)


@app.command()
def start(cloud: CloudArgument, pod: PodArgument = None) -> None:
    """Let a stopped pod run again, and wait until SSH answers, at its new address."""
    asked = account.cloud(account.named(cloud), load_catalog())
    found = story.start(asked, story.find(asked, pod), _teller(yes=True))
    inventory.forget(asked.name)
    _tell_how(found, found.said.get("BEEYARD_EXPOSE", "tunnel"))


@app.command()
def down(
    cloud: CloudArgument,
    pod: PodArgument = None,
    every: Annotated[bool, typer.Option("--all", help="All of ours.")] = False,
    yes: YesOption = False,
) -> None:
    """End a pod with its disk, and ask the provider again whether it is gone. Says what goes on costing."""
    asked = account.cloud(account.named(cloud), load_catalog())
    teller = _teller(yes)
    pods = asked.pods() if every else [story.find(asked, pod)] if pod or asked.pods() else []
    if not pods:
        for line in story.costs_on(asked):
            typer.echo(line)
        return
    for found in pods:
        kept = f"; network volume {found.network_volume} stays" if found.network_volume else ""
        typer.echo(f"{found.name} ({found.id}, {found.gpu}): deleted, with {found.disk_gb:g} GB of disk{kept}")
    if not teller.confirm(f"End {', '.join(found.name for found in pods)}?"):
        raise story.Declined("nothing was ended. Fix: say yes")
    story.end_and_prove(asked, pods, teller)
    inventory.forget(asked.name)


def _order(
    cloud: str,
    name: str,
    server: str,
    variant: str | None,
    disk: int,
    hours: float,
    image: str | None,
    image_variant: str | None,
    public_key: str,
    **more: Any,
) -> tuple[Catalog, Order, needs.Start]:
    """An order, with what it starts from, and presets in which all is locked that can be."""
    known = account.named(cloud)
    catalog = _locked(load_catalog(), server, variant)
    if image is None:
        start = needs.Start(account.BASE_IMAGES[known], account.BASE_CUDA[known])
    else:
        start = needs.our_image(catalog, server, variant, image, image_variant)
    try:
        order = Order(
            name=name, preset=server, variant=variant, image=start.image, is_our_image=image is not None,
            cuda=start.cuda, disk_gb=disk, public_key=public_key,
            deadline=datetime.now(UTC) + timedelta(hours=hours), **more,
        )  # fmt: skip
    except ValidationError as error:
        raise CatalogError(f"the pod: {sentence(error)}") from error
    return catalog, order, start


def _locked(catalog: Catalog, server: str, variant: str | None) -> Catalog:
    """Ask the Hub and the forge what is not locked yet, as a deploy would; before anything costs money."""
    spec = resolve(needs.host_data(server, variant), catalog, ANY_HOST)
    if not spec.lockable:
        return catalog
    from beeyard import locking  # noqa: PLC0415 -- it brings the Hub's client, half a second of importing

    try:
        for text in locking.lock(catalog, spec.lockable, default_file()):
            typer.echo(f"{text}. It is in {default_file().name} now: look at it and commit it")
    except CatalogError as error:
        typer.echo(error, err=True)
    return load_catalog()


def _judged(
    cloud: Cloud,
    catalog: Catalog,
    order: Order,
    start: needs.Start,
    max_price: float | None,
    reliability: float,
) -> needs.Judged:
    hours = (order.deadline - datetime.now(UTC)).total_seconds() / HOUR_S
    wish = needs.wish(catalog, order.preset, order.variant, start, order.disk_gb + order.system_gb, hours)
    asked = wish.model_copy(update={"max_price": max_price, "reliability": reliability})
    found = [one for one in cloud.offers(asked) if max_price is None or one.price <= max_price]
    return needs.judge(found, catalog, order, start.held)


def _check_expose(expose: str, cloud: CloudName | str) -> None:
    if expose not in get_args(Expose):
        raise CloudError(f"there is no --expose {expose}. Fix: one of {', '.join(get_args(Expose))}")
    if expose == "proxy" and cloud != "runpod":
        raise CloudError(f"{cloud} has no HTTPS proxy of its own. Fix: --expose tunnel, or take runpod")


def _tell_how(pod: Pod, expose: str) -> None:
    assert pod.ssh is not None  # noqa: S101 -- it has let us in
    typer.echo(f"deploy:  make deploy TARGET={pod.cloud}")
    typer.echo(f"tunnel:  {shell.tunnel(pod)}")
    if expose == "proxy":
        typer.echo(
            f"proxy:   {pod.proxy_url}/v1, with the key that the deploy makes. It gives up after 100 s without a "
            "byte: ask for streams, which the server keeps open"
        )
    if expose == "tcp":
        typer.echo(
            f"TLS:     https://{pod.tls_at}/v1 once it is deployed, with key and authority that the deploy makes"
            if pod.tls_at
            else f"TLS:     {pod.cloud} gave no port for {TLS_PORT}/tcp. A deploy will say so"
        )
    typer.echo(f"log in:  beeyard pods ssh {pod.cloud} {pod.name}")
    typer.echo(f"end it:  make pod-down CLOUD={pod.cloud}")


def _teller(yes: bool) -> Teller:
    def confirm(question: str) -> bool:
        if yes:
            typer.echo(question + " yes (--yes)")
            return True
        if not sys.stdin.isatty():
            raise CloudError(f"{question} Nobody can answer here. Fix: run it in a terminal, or add --yes")
        return typer.confirm(question)

    return Teller(typer.echo, confirm)


def _row(pod: Pod, charged: float | None) -> dict[str, Any]:
    # A bill is behind; price and time are only of the last start.
    known = [amount for amount in (charged, pod.spent) if amount is not None]
    return {
        "name": pod.name,
        "cloud": pod.cloud,
        "id": pod.id,
        "state": pod.state,
        "gpu": pod.gpu if pod.gpus != 0 else f"{pod.gpu}: none left",
        "price": pod.price,
        "spent": max(known) if known else None,
        "seconds_left": story.seconds_left(pod),
        "ssh": f"{pod.ssh.host}:{pod.ssh.port}" if pod.ssh else pod.unreachable,
        "preset": pod.said.get("BEEYARD_PRESET", ""),
        "disk_gb": pod.disk_gb,
        "network_volume": pod.network_volume,
        "proxy_url": pod.proxy_url,
    }


def _told_left(seconds: float | None) -> str:
    if seconds is None:
        return "no deadline"
    if seconds < 0:
        return "over"
    return f"{int(seconds // HOUR_S)} h {int(seconds % HOUR_S // MINUTE_S)} min"
