"""A gateway resolved from an inventory's data: who is behind it and how it is reached, what is refused."""

import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from beeyard.catalog import PRESETS, CatalogError, load_catalog
from beeyard.gateway import (
    PLAIN,
    Gateway,
    Places,
    User,
    authorized_key,
    caddyfile,
    gateway_settings,
    haproxy_config,
    key_digest,
    limits_map,
    resolve_gateway,
    tunnel_command,
    units,
    users_map,
)
from tests.needs import program

LAN: dict[str, Any] = {"llama_preset": "tiny", "llama_bind": "192.0.2.10", "ssh_hostname": "192.0.2.10"}
RENTED: dict[str, Any] = {"llama_preset": "tiny", "ssh_hostname": "203.0.113.7", "ssh_port": 40022, "ssh_user": "me"}
HOSTS = {"attic": LAN, "pod": RENTED, "door": {"llama_preset": "tiny"}, "other": {"llama_preset": "smol"}}


def gateway(hosts: dict[str, dict[str, Any]] = HOSTS, **data: Any) -> Gateway:
    return resolve_gateway("door", {"gateway_preset": "tiny", **data}, hosts, load_catalog([PRESETS]))


def test_hosts_of_the_preset_are_behind_it_each_by_its_own_way() -> None:
    found = {one.name: (one.address, one.port, one.tunnelled_port) for one in gateway().backends}
    assert found == {
        "attic": ("192.0.2.10", 8910, None),
        # It listens on its loopback alone: a tunnel leads there, on a port that no other has.
        "pod": ("127.0.0.1", 8951, 8910),
        # The gateway's own host.
        "door": ("127.0.0.1", 8910, None),
    }


def test_a_server_that_listens_everywhere_is_reached_by_its_hosts_address() -> None:
    (found,) = gateway({"attic": {**LAN, "llama_bind": "0.0.0.0", "ssh_hostname": "192.0.2.99"}}).backends
    assert (found.address, found.tunnelled_port) == ("192.0.2.99", None)


def test_a_host_may_be_reached_otherwise_from_the_gateway() -> None:
    (pod,) = gateway({"pod": {**RENTED, "llama_reached_at": "pod.internal:22"}}).backends
    assert tunnel_command(pod, Places())[-1] == "me@pod.internal"
    assert "40022" not in tunnel_command(pod, Places())


def test_a_server_gets_as_many_requests_as_it_has_slots() -> None:
    text = haproxy_config(gateway({"attic": {**LAN, "llama_settings": {"slots": 4}}, "cellar": LAN}), Places())
    assert "server attic 192.0.2.10:8910 maxconn 4\n" in text
    assert "server cellar 192.0.2.10:8910 maxconn 1\n" in text


def test_engines_and_contexts_that_a_host_decides_do_not_matter() -> None:
    assert gateway({"attic": {**LAN, "llama_engine": "auto", "llama_context": "auto"}}).backends[0].port == 8910


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"gateway_bind": "0.0.0.0"}, "would travel unencrypted"),
        ({"gateway_bind": "192.0.2.1", "gateway_plain_http": "yes"}, "gateway_plain_http|plain_http"),
        ({"gateway_bind": "192.0.2.1", "gateway_plain_http": PLAIN, "gateway_users": {}}, "anyone who reaches"),
        ({"gateway_tls": "internal-ca"}, "no name is known"),
        ({"gateway_tls": "files"}, "there are none"),
        ({"gateway_que_length": 3}, "unknown key 'que_length'"),
        ({"gateway_users": {"a b": {}}}, "a b"),
        ({"gateway_preset": "gemma-4-31b"}, "no host of the inventory serves 'gemma-4-31b'"),
        ({"gateway_preset": None}, "serve smol, tiny. Fix: set gateway_preset"),
        ({"gateway_names": ["bad name"]}, "no name of a host"),
        ({"gateway_prefix": "/etc/a b"}, "prefix"),
    ],
)
def test_what_cannot_be_is_a_sentence_with_a_fix(data: dict[str, Any], words: str) -> None:
    with pytest.raises(CatalogError, match=words) as found:
        gateway(**data)
    assert "Fix: " in str(found.value)


def test_plain_http_for_others_is_had_in_so_many_words_alone() -> None:
    text = haproxy_config(gateway(gateway_bind="192.0.2.1", gateway_plain_http=PLAIN), Places())
    assert "bind 192.0.2.1:8900\n" in text
    assert gateway_settings({"gateway_bind": "::1"}).is_loopback


def test_a_certificate_is_served_and_old_protocols_are_not() -> None:
    data: dict[str, Any] = {"gateway_bind": "192.0.2.1", "gateway_tls": "internal-ca", "gateway_names": ["llm.lan"]}
    text = haproxy_config(gateway(**data), Places())
    assert "bind 192.0.2.1:8900 ssl crt /etc/beeyard-gateway/tls.pem alpn h2,http/1.1\n" in text
    assert "ssl-min-ver TLSv1.2" in text


def test_with_acme_caddy_alone_speaks_to_others() -> None:
    found = gateway(gateway_bind="192.0.2.1", gateway_tls="acme", gateway_names=["llm.example.org"])
    assert "bind 127.0.0.1:8900\n" in haproxy_config(found, Places())
    assert "llm.example.org {" in caddyfile(found, Places())
    assert "beeyard-caddy.service" in units(found, Places())


def test_an_authority_of_ones_own_is_asked_and_nothing_that_none_can_prove() -> None:
    data: dict[str, Any] = {"gateway_tls": "acme", "gateway_names": ["llm.example.org"]}
    own: dict[str, Any] = {"gateway_acme_directory": "https://ca.lan/acme/directory", "gateway_acme_root": "ca.pem"}
    text = caddyfile(gateway(**data, **own), Places())
    assert "acme_ca https://ca.lan/acme/directory\n" in text
    assert "acme_ca_root /etc/beeyard-gateway/acme-root.pem\n" in text
    assert "acme_ca" not in caddyfile(gateway(**data), Places())
    for wrong in ({"gateway_names": ["*.example.org"]}, {"gateway_names": ["192.0.2.1"]},
                  {"gateway_acme_root": "ca.pem"}, {"gateway_acme_directory": "http://ca.lan"}):  # fmt: skip
        with pytest.raises(CatalogError):
            gateway_settings({**data, **wrong})


def test_caddy_takes_its_file(tmp_path: Path) -> None:
    found = gateway(gateway_bind="192.0.2.1", gateway_tls="acme", gateway_names=["llm.example.org", "b.example.org"])
    (tmp_path / "Caddyfile").write_text(caddyfile(found, Places()))
    words = [program("caddy", "caddy"), "validate", "--adapter", "caddyfile", "--config", str(tmp_path / "Caddyfile")]
    run = subprocess.run(words, check=False, capture_output=True, text=True, env={"HOME": str(tmp_path)})
    assert run.returncode == 0, run.stderr


def test_a_key_is_known_by_its_digest_alone() -> None:
    assert users_map({"bob": "secret"}) == f"{key_digest('secret')} bob\n"
    assert "secret" not in users_map({"bob": "secret"})
    assert limits_map({"bob": User(requests_per_minute=5), "eve": User()}) == "bob 5\n"


def test_a_tunnel_knows_the_host_and_may_do_nothing_else_there() -> None:
    pod = next(one for one in gateway().backends if one.name == "pod")
    words = tunnel_command(pod, Places())
    assert words[-2:] == ["127.0.0.1:8951:127.0.0.1:8910", "me@203.0.113.7"]
    assert "StrictHostKeyChecking=yes" in words
    assert "HostKeyAlias=pod" in words
    assert words[words.index("-p") + 1] == "40022"
    line = authorized_key("ssh-ed25519 AAAA comment", 8910)
    assert line.startswith('restrict,port-forwarding,permitopen="127.0.0.1:8910",command="/bin/false" ')
    assert line.endswith(" ssh-ed25519 AAAA beeyard-gateway")
    # ssh itself takes them all: -G prints what it would do.
    shown = subprocess.run([words[0], "-G", *words[1:]], check=False, capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr
    assert "localforward [127.0.0.1]:8951 [127.0.0.1]:8910" in shown.stdout


def test_there_is_a_unit_for_each_tunnel_and_systemd_takes_them_all(tmp_path: Path) -> None:
    found = units(gateway(), Places())
    assert set(found) == {"beeyard-gateway.service", "beeyard-gateway-watch.service", "beeyard-tunnel-pod.service"}
    assert "beeyard-tunnel-pod" in shlex.join(found)
    if shutil.which("systemd-analyze") is None:
        return
    for name, text in found.items():
        # What they run is on the gateway's host alone.
        (tmp_path / name).write_text(
            text.replace("/usr/sbin/haproxy", "/bin/true").replace("/usr/bin/ssh", "/bin/true")
        )
    run = subprocess.run(
        ["systemd-analyze", "verify", *(str(tmp_path / name) for name in found)],
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert not [line for line in run.stderr.splitlines() if str(tmp_path) in line], run.stderr
