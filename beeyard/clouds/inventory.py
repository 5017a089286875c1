"""Rented pods as hosts of an inventory, where they are right now. One call of the API, remembered for seconds."""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from pydantic import TypeAdapter, ValidationError

from beeyard.catalog import CatalogError, load_catalog
from beeyard.clouds import account, shell, story
from beeyard.clouds.pods import PREFIX, VARIABLE, Address, Cloud, CloudError, CloudName, Pod, Unclear

# One pod as root@192.0.2.1:22022, and no API key is needed.
SSH_VARIABLE = "BEEYARD_SSH"
# Only this pod, and how many seconds one that starts is waited for.
POD_VARIABLE, WAIT_VARIABLE = "BEEYARD_POD", "BEEYARD_POD_WAIT"
REMEMBERED_S, STALE_S, WAIT_S, EVERY_S = 10, 3600, 300, 5
HALF_AN_HOUR = 1800
PODS = TypeAdapter(list[Pod])

Host = tuple[str, dict[str, Any]]


def hosts(name: str) -> list[Host]:
    """
    An inventory's hosts: a name, and data of literals alone. What is wrong ends the program with one sentence.

    :param name: runpod or vast
    """
    try:
        given = os.environ.get(SSH_VARIABLE, "").strip()
        known = account.named(name)
        return [_given(given, known)] if given else [_host(pod) for pod in _reachable(known)]
    except CatalogError as error:
        _leave(str(error))


def _leave(sentence: str) -> NoReturn:
    """pyinfra would put a traceback around any exception."""
    print(sentence, file=sys.stderr, flush=True)
    raise SystemExit(7)


def parsed(text: str) -> Address:
    """
    ``root@192.0.2.1:22022``, ``[2001:db8::1]:22``, ``host`` as an address.

    :raises CloudError: it is not that.
    """
    user, at, rest = text.rpartition("@")
    host, colon, port = rest.rpartition(":")
    if not colon or rest.endswith("]") or (":" in host and not host.startswith("[")):
        host, port = rest, "22"
    host = host.removeprefix("[").removesuffix("]")
    is_port = port.isascii() and port.isdigit() and 0 < int(port) < 65536
    if not host or not is_port or " " in text or (at and not user):
        raise CloudError(
            f"{SSH_VARIABLE} is {text!r}. Fix: write it as root@ADDRESS:PORT, as the provider's console shows it "
            '("SSH over exposed TCP", not ssh.runpod.io, which cannot carry files)'
        )
    return Address(user=user or "root", host=host, port=int(port))


def _given(text: str, name: CloudName) -> Host:
    address = parsed(text)
    return "pod", {
        "ssh_hostname": address.host,
        "ssh_port": address.port,
        "ssh_user": address.user,
        **_key(),
        "provider": name,
    }


def _key() -> dict[str, str]:
    try:
        return {"ssh_key": str(shell.private_key())}
    except CloudError:
        return {}  # an agent may have one


def _reachable(name: CloudName) -> list[Pod]:
    """The pods that can be deployed to, once they are."""
    wanted = os.environ.get(POD_VARIABLE, "").strip()
    pods, is_fresh = _pods(name)
    pods = _chosen(pods, wanted, name)
    if any(pod.state == "starting" and not pod.unreachable for pod in pods):
        limit = float(os.environ.get(WAIT_VARIABLE) or WAIT_S)
        pods = _awaited(account.cloud(name, load_catalog()), wanted, limit, time.sleep)
    unfit = {pod.name: why for pod in pods if (why := _against(pod, name))}
    fit = [pod for pod in pods if pod.name not in unfit]
    if not fit:
        raise CloudError("; ".join(unfit.values()))
    for why in unfit.values():
        print(f"left out: {why}", file=sys.stderr)
    if len(fit) > 1 and is_fresh:
        names = ", ".join(pod.name for pod in fit)
        print(f"{name} has {len(fit)} pods: {names}. For one alone: {POD_VARIABLE}={fit[0].name}", file=sys.stderr)
    return fit


def _chosen(pods: list[Pod], wanted: str, name: CloudName) -> list[Pod]:
    found = [pod for pod in pods if wanted in ("", pod.name, pod.id)]
    if not found:
        there = f"; it has {', '.join(pod.name for pod in pods)}" if pods else ""
        what = f"no pod {wanted!r} of ours{there}" if wanted else "no pod of ours"
        raise CloudError(f"{name} has {what}. Fix: rent one, as in `beeyard pods up {name} gemma-4-31b`")
    twice = {pod.name for pod in found if sum(other.name == pod.name for other in found) > 1}
    if twice:
        ids = ", ".join(pod.id for pod in found if pod.name in twice)
        raise CloudError(
            f"{name} has several pods called {', '.join(sorted(twice))}: {ids}. Fix: end those that you do not want "
            f"(`beeyard pods down {name} ID`), or name one by its id in {POD_VARIABLE}"
        )
    return found


def _against(pod: Pod, name: CloudName) -> str:
    """Why a pod cannot be deployed to; empty if it can."""
    anew = f"`beeyard pods down {name} {pod.name}`, then `up`"
    if pod.unreachable:
        return f"{pod.name} cannot be reached: {pod.unreachable}. Fix: {anew}"
    if pod.state == "stopped":
        return f"{pod.name} is stopped. Fix: `beeyard pods start {name} {pod.name}`"
    if pod.state == "lost":
        return f"{pod.name} does not run ({pod.told or 'lost'}). Fix: {anew}"
    if pod.gpus == 0:
        return f"{pod.name} has no GPU since it started again. Fix: {anew}"
    if pod.ssh is None:
        return f"{pod.name} is still starting. Fix: try again, or wait longer ({WAIT_VARIABLE}=SECONDS)"
    return ""


def _awaited(cloud: Cloud, wanted: str, limit_s: float, pause: Callable[[float], None]) -> list[Pod]:
    """The pods again, until none of them is starting or the time is over."""
    until, told = time.monotonic() + limit_s, False
    while True:
        pods = _chosen(cloud.pods(), wanted, cloud.name)
        starting = [pod.name for pod in pods if pod.state == "starting" and not pod.unreachable]
        if not starting or time.monotonic() >= until:
            _remember(cloud.name, cloud.pods() if wanted else pods)
            return pods
        if not told:
            print(f"waiting up to {limit_s:g} s for {', '.join(starting)} to start", file=sys.stderr, flush=True)
            told = True
        pause(min(EVERY_S, max(0.1, until - time.monotonic())))


def _pods(name: CloudName) -> tuple[list[Pod], bool]:
    """The pods of now, or of some seconds ago; and whether they were asked for just now."""
    remembered, age = _remembered(name)
    if remembered is not None and age < REMEMBERED_S:
        return remembered, False
    try:
        pods = account.cloud(name, load_catalog()).pods()
    except Unclear as error:
        if remembered is None or age > STALE_S:
            raise
        print(f"{error} Until then, what was known {age:.0f} s ago is used", file=sys.stderr)
        return remembered, True
    _remember(name, pods)
    return pods, True


def forget(name: CloudName) -> None:
    """After a change: the next look is a new one."""
    _file(name).unlink(missing_ok=True)


def _file(name: CloudName) -> Path:
    return shell.STATE / f"pods-{name}.json"


def _remembered(name: CloudName) -> tuple[list[Pod] | None, float]:
    try:
        said = json.loads(_file(name).read_text())
        return PODS.validate_python(said["pods"]), time.time() - said["at"]
    except (OSError, ValueError, KeyError, TypeError, ValidationError):
        return None, 0


def _remember(name: CloudName, pods: list[Pod]) -> None:
    shell.STATE.mkdir(parents=True, exist_ok=True)
    file = _file(name)
    beside = file.with_suffix(f".{os.getpid()}")
    beside.touch(mode=0o600)
    beside.write_text(json.dumps({"at": time.time(), "pods": PODS.dump_python(pods, mode="json")}))
    beside.replace(file)


def _host(pod: Pod) -> Host:
    assert pod.ssh is not None  # noqa: S101 -- _against left out what has none
    left = story.seconds_left(pod)
    if left is not None and left < HALF_AN_HOUR:
        print(f"{pod.name} ends in {max(0, left) / 60:.0f} minutes, at its deadline", file=sys.stderr)
    said = {key: pod.said.get(f"{VARIABLE}{key.upper()}", "") for key in ("preset", "variant")}
    data: dict[str, Any] = {
        "ssh_hostname": pod.ssh.host,
        "ssh_port": pod.ssh.port,
        "ssh_user": pod.ssh.user,
        **_key(),
        "ssh_known_hosts_file": str(shell.known_hosts(pod)),
        "llama_prefix": PREFIX,
        **{f"llama_{key}": value for key, value in said.items() if value},
        "provider": pod.cloud,
        "pod_id": pod.id,
        "price": pod.price,
        "gpu": pod.gpu,
        "region": pod.region,
        "proxy_url": pod.proxy_url,
        "deadline": pod.said.get(f"{VARIABLE}DEADLINE", ""),
    }
    if pod.said.get(f"{VARIABLE}EXPOSE") == "tcp":
        data |= {"llama_expose": "tcp", **({"llama_expose_at": pod.tls_at} if pod.tls_at else {})}
    if pod.said.get(f"{VARIABLE}EXPOSE") == "proxy":
        data["llama_bind"] = "0.0.0.0"  # noqa: S104 -- the provider's proxy comes from outside; a key is made
    return pod.name, data
