"""
Ends or stops the rented pod that it runs in: at its deadline, or when nobody asked its server for a while.

It asks the provider with the pod's own key, which it reads where the provider puts it (RunPod: RUNPOD_API_KEY,
Vast.ai: CONTAINER_API_KEY). Standard library alone, and short: it travels inside of a pod's start command.
"""

import fcntl
import json
import os
import re
import sys
import time
import urllib.request
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

PREFIX = Path(os.environ.get("BEEYARD_PREFIX") or "/workspace/beeyard")
# Gone with the container, as is the watcher.
STATUS = Path(os.environ.get("BEEYARD_RUN") or "/tmp") / "beeyard-watch.json"  # noqa: S108
EVERY_S = float(os.environ.get("BEEYARD_WATCH_EVERY", "20"))
COUNTED = re.compile(
    r"^llamacpp:(prompt_tokens_total|tokens_predicted_total|requests_processing)(?:\{.*\})? (\S+)", re.M
)


def environment() -> dict[str, str]:
    """What the container was made with; a shell of sshd's has little of it."""
    found: dict[str, str] = {}
    for file, gap in (("/proc/1/environ", "\0"), ("/etc/rp_environment", "\n")):
        try:
            for line in Path(file).read_text(errors="replace").split(gap):
                key, equals, value = line.removeprefix("export ").partition("=")
                if equals:
                    found[key] = value.strip('"')
        except OSError:
            continue
    return {**found, **os.environ}


def call(env: Mapping[str, str], act: str) -> None:
    """Ask the provider to end or stop this pod."""
    body = None
    if "RUNPOD_POD_ID" in env:
        key, url = env["RUNPOD_API_KEY"], env.get("RUNPOD_API_URL") or "https://rest.runpod.io/v1"
        url += f"/pods/{env['RUNPOD_POD_ID']}" + ("" if act == "end" else "/stop")
        method = "DELETE" if act == "end" else "POST"
    else:
        key, url = env["CONTAINER_API_KEY"], env.get("VAST_URL") or "https://console.vast.ai"
        url += f"/api/v0/instances/{env['CONTAINER_ID']}/"
        method, body = ("DELETE", b"{}") if act == "end" else ("PUT", b'{"state": "stopped"}')
    head = {"Authorization": f"Bearer {key}", "Content-Type": "application/json", "User-Agent": "beeyard"}
    asked = urllib.request.Request(url, body, head, method=method)  # noqa: S310
    with urllib.request.urlopen(asked, timeout=30):  # noqa: S310
        pass


def work(env: Mapping[str, str]) -> dict[str, str] | None:
    """What the server did so far, as numbers that change with every request; None where it does not say."""
    try:
        key = (PREFIX / "etc" / "api-key").read_text().strip()
        url = env.get("BEEYARD_METRICS") or "http://127.0.0.1:8910/metrics"
        asked = urllib.request.Request(url, headers={"Authorization": f"Bearer {key}"})  # noqa: S310
        with urllib.request.urlopen(asked, timeout=10) as answer:  # noqa: S310
            return dict(COUNTED.findall(answer.read().decode())) or None
    except (OSError, ValueError):
        return None


def tell(text: str, **more: object) -> None:
    """One line for the log, and what `beeyard pods` asks for."""
    print(f"{datetime.now().astimezone():%F %T} {text}", flush=True)
    beside = STATUS.with_suffix(".new")
    beside.write_text(json.dumps({"pid": os.getpid(), "told": text, **more}))
    beside.replace(STATUS)


def watch(env: Mapping[str, str]) -> None:
    """Look every so often until there is a reason, then act until the pod is gone."""
    deadline = datetime.fromisoformat(env["BEEYARD_DEADLINE"].replace("Z", "+00:00")).timestamp()
    idle_s = 60 * float(env.get("BEEYARD_IDLE_MINUTES") or 0)
    said = {"deadline": env["BEEYARD_DEADLINE"], "idle_minutes": idle_s / 60}
    tell("watching", **said)
    before: dict[str, str] | None = None
    since = time.monotonic()
    while True:
        if time.time() >= deadline:
            act, why = env.get("BEEYARD_AT_DEADLINE") or "end", "its deadline has come"
            break
        if idle_s:
            now = work(env)
            # A server that does not answer may be loading, or just be brought: that is not idleness.
            if now is None or now != before or float(now.get("requests_processing", 0)):
                before, since = now, time.monotonic()
            if time.monotonic() - since >= idle_s:
                act, why = "stop", f"nobody asked for {idle_s / 60:g} minutes"
                break
        time.sleep(max(0.1, min(EVERY_S, deadline - time.time())))
    attempt = 0
    while True:
        # Whatever a key may not do: stopped is better than running.
        way, attempt = act if attempt % 2 == 0 else "stop", attempt + 1
        tell(f"{why}: {way}", **said)
        try:
            call(env, way)
            tell(f"{why}: {way} was asked for", **said)
        except (OSError, KeyError) as error:
            tell(f"{way} failed: {type(error).__name__} {getattr(error, 'code', '')}", **said)
        time.sleep(min(60, EVERY_S))


def main() -> None:
    """Watch, unless another does, or nothing is to be watched for."""
    env = environment()
    if "BEEYARD_DEADLINE" not in env:
        sys.exit("this pod was made without a deadline")
    with STATUS.with_suffix(".lock").open("a") as alone:
        try:
            fcntl.flock(alone, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            sys.exit("it is watched already")
        watch(env)


if __name__ == "__main__":
    main()
