"""The host is as its spec says. Reads what runs, not what the deploy wrote."""

import json
import os
import re
import time
from typing import Any

import pytest
from testinfra.host import Host

from beeyard.dialects import argv
from beeyard.spec import ServerSpec

KEY_VISIBLE = r"""
key=$(cat "$1"); shift
for file do grep -qaF -e "$key" -- "$file" 2>/dev/null && echo "$file"; done
true
"""
# printf is the shell's own: no process list shows what it prints.
ASK = r"""
printf 'header = "Authorization: Bearer %s"\n' "$(sed 's/["\\]/\\&/g' "$1")" |
    curl --silent --max-time 300 --config - --header 'Content-Type: application/json' --data "$2" "$3"
"""


def listener(server: Host, spec: ServerSpec) -> int:
    """The server's process: the one that listens on the spec's port, or the container's whose port that is."""
    if spec.runtime == "compose":
        ports = server.check_output(
            "docker container inspect llama-server --format '{{json .HostConfig.PortBindings}}'"
        )
        assert json.loads(ports) == {f"{spec.port}/tcp": [{"HostIp": spec.bind, "HostPort": str(spec.port)}]}
        init = inspected(server)["State"]["Pid"]
        assert init, "the container does not run. Fix: deploy, then verify again"
        return int(server.check_output("cat /proc/%s/task/%s/children", str(init), str(init)).split()[0])
    sockets = server.check_output("cat /proc/net/tcp /proc/net/tcp6 2>/dev/null || cat /proc/net/tcp")
    rows = [row.split() for row in sockets.splitlines()]
    found = {
        (cells[9], cells[7])
        for cells in rows
        if len(cells) > 9 and cells[3] == "0A" and cells[1].endswith(f":{spec.port:04X}")
    }
    assert found, f"nothing listens on port {spec.port}: the server does not run. Fix: deploy, then verify again"
    ((inode, uid),) = found
    handle = server.check_output("find /proc/[0-9]*/fd -lname 'socket:?%s?' 2>/dev/null | head -n 1 || true", inode)
    if handle:
        return int(handle.split("/")[2])
    # Root in a container may not look into other users' processes: then the socket's owner must do.
    (pid,) = server.check_output("pgrep --uid %s llama-server", uid).split()
    return int(pid)


def inspected(server: Host) -> dict[str, Any]:
    """The server's container, as Docker describes it."""
    found: dict[str, Any] = json.loads(server.check_output("docker container inspect llama-server"))[0]
    return found


def completion(server: Host, spec: ServerSpec) -> dict[str, Any]:
    body = {
        "messages": [{"role": "user", "content": spec.gate.prompt}],
        "max_tokens": spec.gate.max_tokens,
        "cache_prompt": False,
    }
    url = f"{spec.url}/v1/chat/completions"
    found: dict[str, Any] = json.loads(
        server.check_output("sh -c %s ask %s %s %s", ASK, str(spec.api_key_file), json.dumps(body), url)
    )
    return found


def healthy(server: Host, spec: ServerSpec) -> bool:
    return bool(server.run("curl --fail --silent --max-time 5 %s/health", spec.url).rc == 0)


def test_it_runs_exactly_the_command_of_the_spec(server: Host, spec: ServerSpec) -> None:
    running = server.check_output("tr '\\0' '\\n' < /proc/%s/cmdline", str(listener(server, spec)))
    assert running.splitlines() == argv(spec)


def test_it_runs_as_the_user_of_the_spec(server: Host, spec: ServerSpec) -> None:
    # A container's user has a number, and no name on the host.
    names = server.check_output("stat -c '%%U %%u' /proc/%s", str(listener(server, spec)))
    assert (spec.user or server.check_output("id -un")) in names.split()


def test_it_listens_only_where_it_was_told(server: Host, spec: ServerSpec) -> None:
    listening = {name for name in server.socket.get_listening_sockets() if name.endswith(f":{spec.port}")}
    assert listening == {f"tcp://{spec.bind}:{spec.port}"}


def test_it_is_kept_running_also_after_a_boot(server: Host, spec: ServerSpec) -> None:
    if spec.runtime == "systemd":
        service = server.service("beeyard-llama-server.service")
        assert service.is_running
        assert service.is_enabled
    elif spec.runtime == "compose":
        assert inspected(server)["HostConfig"]["RestartPolicy"]["Name"] == "unless-stopped"
        assert server.service("docker").is_enabled
    else:
        program = server.file(f"{spec.prefix}/etc/programs/llama-server.conf").content_string
        assert "autostart=true" in program
        assert "autorestart=true" in program
        parent = server.check_output("awk '/^PPid/ { print $2 }' /proc/%s/status", str(listener(server, spec)))
        assert "supervisor.supervisord" in server.check_output("tr '\\0' ' ' < /proc/%s/cmdline", parent)


def test_requests_need_the_key(server: Host, spec: ServerSpec) -> None:
    body = '{"messages": [{"role": "user", "content": "hello"}], "max_tokens": 1}'
    status = server.check_output(
        "curl --silent --output /dev/null --write-out '%%{http_code}' --header 'Content-Type: application/json' "
        "--data %s %s/v1/chat/completions",
        body,
        spec.url,
    )
    assert status == "401"
    assert "choices" in completion(server, spec)


def test_the_key_is_the_servers_alone(server: Host, spec: ServerSpec) -> None:
    file = server.file(str(spec.api_key_file))
    assert file.mode == 0o600
    assert (spec.user or server.check_output("id -un")) in (file.user, str(file.uid))
    assert file.size > 1
    pid = listener(server, spec)
    places = [f"/proc/{pid}/cmdline", f"/proc/{pid}/environ", f"{spec.prefix}/log/llama-server.log"]
    places += [f"{spec.prefix}/current/server.json", f"{spec.prefix}/current/definition"]
    places += [f"{spec.prefix}/etc/compose.yaml"]
    places += ["/etc/systemd/system/beeyard-llama-server.service", f"{spec.prefix}/etc/programs/llama-server.conf"]
    for place in places:
        shown = server.check_output("sh -c %s look %s %s", KEY_VISIBLE, str(spec.api_key_file), place)
        assert shown == "", f"the key can be read in {shown}"
    if spec.runtime == "compose":
        seen = 'docker container inspect llama-server | grep -cF -e "$(cat "$1")"; docker logs llama-server 2>&1 | '
        seen += 'grep -cF -e "$(cat "$1")"; docker history --no-trunc "$2" | grep -cF -e "$(cat "$1")"; true'
        assert spec.image is not None
        shown = server.check_output("sh -c %s look %s %s", seen, str(spec.api_key_file), spec.image.reference)
        assert shown.split() == ["0", "0", "0"]
    if spec.runtime == "systemd":
        journal = 'journalctl --unit=beeyard-llama-server --no-pager --quiet | grep -cF -e "$(cat "$1")"; true'
        assert server.check_output("sh -c %s look %s", journal, str(spec.api_key_file)) == "0"


def test_the_model_files_are_what_the_lock_names(server: Host, spec: ServerSpec) -> None:
    fetch = str(spec.prefix / "bin" / "fetch.sh")
    pieces = [pair for file in spec.model_files for pair in spec.pieces_of(file)]
    assert pieces
    for place, piece in pieces:
        path = str(place)
        assert server.file(path).size == piece.size
        # The stamp stands for a hash that was computed when the file came; DEEP=1 computes it again.
        if os.environ.get("DEEP") == "1":
            assert server.file(path).sha256sum == piece.sha256
        assert server.check_output("sh %s look %s %s", fetch, path, piece.sha256) == "verified"


def test_it_may_lock_as_much_memory_as_declared(server: Host, spec: ServerSpec) -> None:
    limits = server.check_output("cat /proc/%s/limits", str(listener(server, spec)))
    soft = re.search(r"^Max locked memory\s+(\S+)", limits, re.MULTILINE)
    assert soft is not None
    hard = server.check_output("sh -c 'ulimit -H -l'")
    if spec.runtime in ("systemd", "compose"):
        assert soft[1] == ("unlimited" if spec.memlock == "infinity" else str(spec.memlock))
    else:
        assert soft[1] == ("unlimited" if hard == "unlimited" else str(int(hard) * 1024))


def test_a_container_may_do_as_little_as_it_can(server: Host, spec: ServerSpec) -> None:
    if spec.runtime != "compose":
        pytest.skip("it runs in no container")
    assert spec.image is not None
    container = inspected(server)
    wanted = server.check_output("docker image inspect %s --format '{{.Id}}'", spec.image.reference)
    assert container["Image"] == wanted
    assert container["State"]["Health"]["Status"] == "healthy"
    assert container["HostConfig"]["ReadonlyRootfs"] is True
    assert container["HostConfig"]["Privileged"] is False
    status = server.file(f"/proc/{listener(server, spec)}/status").content_string
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert f"{name}:\t0000000000000000" in status
    assert "NoNewPrivs:\t1" in status
    written = server.run("docker exec llama-server sh -c 'echo x >/opt/llama/x'")
    assert "Read-only file system" in written.stderr
    mounts = {mount["Destination"]: mount["RW"] for mount in container["Mounts"]}
    assert mounts == {str(spec.models_dir): False, "/run/secrets/api-key": False}


def test_a_container_still_sees_the_card(server: Host, spec: ServerSpec) -> None:
    if spec.runtime != "compose" or not spec.wants_gpu:
        pytest.skip("it runs in no container with a card")
    # A reload of systemd may have taken it away since the container was made, while the host still has it.
    assert "GPU 0" in server.check_output("docker exec llama-server nvidia-smi --list-gpus")


def test_it_answers_and_drafts_if_it_should(server: Host, spec: ServerSpec) -> None:
    answer = completion(server, spec)
    assert answer["choices"][0]["message"]["content"].strip()
    if spec.drafts:
        assert answer["timings"]["draft_n"] > 0
    if spec.decoding.kind == "dflash":
        assert answer["timings"]["draft_n_accepted"] > 0


@pytest.mark.skipif(os.environ.get("KILL") == "0", reason="KILL=0: the server is not to be killed")
def test_it_comes_back_after_it_was_killed(server: Host, spec: ServerSpec) -> None:
    before = listener(server, spec)
    server.check_output("kill -9 %s", str(before))
    deadline = time.monotonic() + spec.settings.load_timeout_s
    while not healthy(server, spec):
        assert time.monotonic() < deadline, "it did not come back"
        time.sleep(0.2)
    assert listener(server, spec) != before
    assert "choices" in completion(server, spec)
