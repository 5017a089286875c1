"""Certificates of our own authority, as OpenSSL judges them; a user's own; an SSH key."""

import subprocess
from pathlib import Path

import pytest

from beeyard.catalog import CatalogError
from beeyard.certificates import internal_certificate, joined, public_ssh_key, tunnel_key

NAMES = ("llm.lan", "192.0.2.10")


def verified(folder: Path, pem: bytes, name: str, kind: str) -> bool:
    (folder / "leaf.pem").write_bytes(pem)
    words = ["openssl", "verify", "-x509_strict", "-CAfile", str(folder / "ca.pem"), f"-verify_{kind}", name]
    return subprocess.run([*words, str(folder / "leaf.pem")], check=False, capture_output=True).returncode == 0


def test_its_names_and_no_others_are_vouched_for(tmp_path: Path) -> None:
    pem = internal_certificate(tmp_path, NAMES)
    assert verified(tmp_path, pem, "llm.lan", "hostname")
    assert verified(tmp_path, pem, "192.0.2.10", "ip")
    assert not verified(tmp_path, pem, "other.lan", "hostname")


def test_it_stays_until_other_names_are_wanted_and_the_authority_stays_then_too(tmp_path: Path) -> None:
    first = internal_certificate(tmp_path, NAMES)
    assert internal_certificate(tmp_path, NAMES) == first
    authority = (tmp_path / "ca.pem").read_bytes()
    more = internal_certificate(tmp_path, (*NAMES, "more.lan"))
    assert more != first
    assert verified(tmp_path, more, "more.lan", "hostname")
    assert (tmp_path / "ca.pem").read_bytes() == authority


def test_keys_are_their_owners_alone(tmp_path: Path) -> None:
    internal_certificate(tmp_path / "ca", NAMES)
    tunnel_key(tmp_path / "tunnel")
    modes = {file.stat().st_mode & 0o777 for file in (*(tmp_path / "ca").iterdir(), tmp_path / "tunnel")}
    assert modes == {0o600}


def test_a_users_own_files_are_looked_at_first(tmp_path: Path) -> None:
    pem = internal_certificate(tmp_path, NAMES)
    cut = pem.index(b"-----BEGIN PRIVATE KEY")
    certificate, key = tmp_path / "c.pem", tmp_path / "k.pem"
    certificate.write_bytes(pem[:cut])
    key.write_bytes(pem[cut:])
    assert joined(certificate, key) == pem
    with pytest.raises(CatalogError, match=r"is not the key of .*Fix: "):
        joined(certificate, tmp_path / "ca.key")
    with pytest.raises(CatalogError, match=r"is no PEM file without a password: .*Fix: "):
        joined(key, key)
    with pytest.raises(CatalogError, match="Fix: "):
        joined(tmp_path / "none", key)


def test_an_ssh_key_is_made_once_and_ssh_takes_it(tmp_path: Path) -> None:
    file = tunnel_key(tmp_path / "tunnel")
    text = public_ssh_key(file)
    run = subprocess.run(["ssh-keygen", "-y", "-f", str(file)], check=True, capture_output=True, text=True)
    assert run.stdout.split()[:2] == text.split()
    assert public_ssh_key(tunnel_key(file)) == text
