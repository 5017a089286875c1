"""A rented pod over SSH: whether it lets us in, the command for people, and what we put there. By OpenSSH."""

import json
import os
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from beeyard.catalog import PROJECT
from beeyard.clouds.pods import PORT, PREFIX, Address, CloudError, Pod

# Host keys, locks, and where pods were some seconds ago: of another account, or a stand-in of one, elsewhere.
STATE = Path(os.environ.get("BEEYARD_CLOUDS_STATE") or PROJECT / ".beeyard" / "clouds").absolute()
WATCH = Path(__file__).parents[1] / "onhost" / "watch.py"
# A private key; its public half lies beside it.
KEY_VARIABLE = "BEEYARD_SSH_KEY"
USUAL_KEYS = ("id_ed25519", "id_ecdsa", "id_rsa")
# What subprocesses do not get to see.
SECRETS = ("RUNPOD_API_KEY", "VAST_API_KEY", "HF_TOKEN", "BEEYARD_API_KEY")
HOOK = f"""#!/bin/sh
# Written by `beeyard pods`: what a pod that starts again does by itself.
mkdir -p {PREFIX}/log
python3 {PREFIX}/bin/watch.py >>{PREFIX}/log/watch.log 2>&1 </dev/null &
[ -e {PREFIX}/current ] || exit 0
exec >>{PREFIX}/log/at-start.log 2>&1
# What the engine needs of the distribution went with the container before.
wanted={PREFIX}/etc/packages
if [ -s $wanted ] && ! xargs dpkg-query --show <$wanted >/dev/null; then
  export DEBIAN_FRONTEND=noninteractive
  apt-get -qq update && xargs apt-get -qq install --yes --no-install-recommends <$wanted
fi
exec python3 {PREFIX}/bin/guard.py start {PREFIX}
"""


def private_key() -> Path:
    """
    The key that we come with.

    :raises CloudError: there is none.
    """
    named = os.environ.get(KEY_VARIABLE)
    candidates = [Path(named)] if named else [Path.home() / ".ssh" / name for name in USUAL_KEYS]
    for file in candidates:
        if file.is_file() and file.with_name(f"{file.name}.pub").is_file():
            return file.absolute()
    raise CloudError(
        f"there is no SSH key with its .pub beside it: {', '.join(map(str, candidates))}. "
        f"Fix: ssh-keygen -t ed25519, or name the private one in {KEY_VARIABLE}"
    )


def public_key() -> str:
    """Its public half, which goes to the provider."""
    file = private_key()
    return file.with_name(f"{file.name}.pub").read_text().strip()


def known_hosts(pod: Pod) -> Path:
    """A pod's own file of host keys: addresses are reused by others, pods' ids are not."""
    return STATE / f"known_hosts-{pod.cloud}-{pod.id}"


def forget_host_key(pod: Pod) -> None:
    """A pod that starts again has a new container, with host keys of its own."""
    known_hosts(pod).unlink(missing_ok=True)


def command(pod: Pod, address: Address, *options: str) -> list[str]:
    """What logs in."""
    STATE.mkdir(parents=True, exist_ok=True)
    return [
        "ssh",
        *("-o", f"UserKnownHostsFile={known_hosts(pod)}", "-o", "StrictHostKeyChecking=accept-new"),
        *("-o", "IdentitiesOnly=yes", "-i", str(private_key()), "-p", str(address.port), *options),
        f"{address.user}@{address.host}",
    ]


def tunnel(pod: Pod) -> str:
    """The line that brings the server to this machine."""
    assert pod.ssh is not None  # noqa: S101 -- whoever prints it has looked
    return f"ssh -N -L {PORT}:127.0.0.1:{PORT} -p {pod.ssh.port} {pod.ssh.user}@{pod.ssh.host}"


def speaks(address: Address, answer_s: float = 5) -> bool:
    """Whether an SSH server answers there."""
    try:
        with socket.create_connection((address.host, address.port), timeout=answer_s) as connection:
            connection.settimeout(answer_s)
            return connection.recv(4) == b"SSH-"
    except OSError:
        return False


def run(pod: Pod, script: str, given: bytes = b"", limit_s: float = 60) -> str:
    """
    Run a script in the pod as root; what it said.

    :raises CloudError: it failed, or it is not let in.
    """
    if pod.ssh is None:
        raise CloudError(f"{pod.name} has no address yet. Fix: see `beeyard pods list`")
    environment = {key: value for key, value in os.environ.items() if key not in SECRETS}
    try:
        done = subprocess.run(
            [*command(pod, pod.ssh, "-o", "BatchMode=yes", "-o", "ConnectTimeout=15"), script],
            check=False,
            input=given,
            capture_output=True,
            timeout=limit_s,
            env=environment,
        )
    except subprocess.TimeoutExpired:
        raise CloudError(f"{pod.name} does not answer over SSH within {limit_s:g} s. Fix: try again") from None
    if done.returncode:
        said = " ".join(done.stderr.decode(errors="replace").split())[-300:]
        said = said.rstrip(".") or f"exit code {done.returncode}"
        raise CloudError(f"{pod.name} over SSH: {said}. Fix: try `beeyard pods ssh {pod.cloud} {pod.name}`")
    return done.stdout.decode(errors="replace")


def lets_in(pod: Pod, until: float, pause: Callable[[float], None] = time.sleep) -> str:
    """
    Wait until the pod lets us in.

    :param until: of time.monotonic()
    :return: why it does not; empty if it does.
    """
    why = "nothing answers there"
    while True:
        if pod.ssh is not None and speaks(pod.ssh):
            try:
                run(pod, "true", limit_s=30)
            except CloudError as error:
                why = str(error)
            else:
                return ""
        if time.monotonic() >= until:
            return why
        pause(2)


def place_watcher(pod: Pod) -> None:
    """Put watcher and start hook onto the volume, and let the watcher run."""
    folder = f"{PREFIX}/bin"
    run(pod, f"mkdir -p {folder} {PREFIX}/log && cat >{folder}/.watch && mv {folder}/.watch {folder}/watch.py",
        WATCH.read_bytes())  # fmt: skip
    run(pod, f"cat >{folder}/.hook && chmod 755 {folder}/.hook && mv {folder}/.hook {folder}/at-start", HOOK.encode())
    run(pod, f"nohup python3 {folder}/watch.py >>{PREFIX}/log/watch.log 2>&1 </dev/null &")


def watcher(pod: Pod) -> dict[str, Any] | None:
    """What the watcher in the pod says of itself; None where none runs."""
    script = (
        "python3 -c \"import json, os; said = json.load(open('/tmp/beeyard-watch.json')); os.kill(said['pid'], 0); "
        'print(json.dumps(said))" 2>/dev/null || true'
    )
    said = run(pod, script).strip()
    if not said:
        return None
    found: dict[str, Any] = json.loads(said)
    return found
