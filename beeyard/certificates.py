"""Certificates and SSH keys that are made on the machine that deploys: an authority for a LAN, a tunnel's key."""

import datetime
import ipaddress
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from beeyard.catalog import CatalogError
from beeyard.keys import write_private

AUTHORITY_DAYS: Final = 3650
# Browsers and Apple's systems take no certificate that is valid for longer.
LEAF_DAYS: Final = 397
RENEW_DAYS: Final = 60
_PRIVATE = serialization.PrivateFormat
_Key = ec.EllipticCurvePrivateKey


def internal_certificate(folder: Path, names: Sequence[str]) -> bytes:
    """
    A certificate with its key for names and addresses, signed by an authority of our own, as one PEM.

    Both are made at the first call and kept below ``folder``, whose ``ca.pem`` clients are told to trust; the
    certificate anew where other names are wanted, or less than RENEW_DAYS are left.

    :param names: host names or IP addresses, at least one
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    authority, signing_key = _authority(folder)
    kept = folder / f"{names[0].replace(':', '_').replace('*', '_')}.pem"
    if kept.exists():
        old = x509.load_pem_x509_certificate(kept.read_bytes())
        left = old.not_valid_after_utc - _now()
        if _names_of(old) == set(names) and left.days > RENEW_DAYS and _is_signed_by(old, authority):
            return kept.read_bytes()
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = (
        _builder(names[0], authority.subject, key, LEAF_DAYS)
        .add_extension(x509.SubjectAlternativeName([_general(name) for name in names]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signing_key.public_key()), critical=False)
        .sign(signing_key, hashes.SHA256())
    )
    pem = certificate.public_bytes(serialization.Encoding.PEM) + _pem(key)
    write_private(kept, pem)
    return pem


def authority_of(folder: Path) -> bytes:
    """What clients are told to trust, as PEM; made at the first call."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return _authority(folder)[0].public_bytes(serialization.Encoding.PEM)


def _authority(folder: Path) -> tuple[x509.Certificate, _Key]:
    certificate_file, key_file = folder / "ca.pem", folder / "ca.key"
    if key_file.exists() and certificate_file.exists():
        key = serialization.load_pem_private_key(key_file.read_bytes(), None)
        assert isinstance(key, _Key)  # noqa: S101 -- ours
        return x509.load_pem_x509_certificate(certificate_file.read_bytes()), key
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Beeyard internal authority")])
    usage = x509.KeyUsage(
        digital_signature=False, content_commitment=False, key_encipherment=False, data_encipherment=False,
        key_agreement=False, key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    certificate = (
        _builder("Beeyard internal authority", name, key, AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    write_private(key_file, _pem(key))
    write_private(certificate_file, certificate.public_bytes(serialization.Encoding.PEM))
    return certificate, key


def _builder(name: str, issuer: x509.Name, key: _Key, days: int) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])]))
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        # A client's clock may be a little behind.
        .not_valid_before(_now() - datetime.timedelta(hours=1))
        .not_valid_after(_now() + datetime.timedelta(days=days))
    )


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _names_of(certificate: x509.Certificate) -> set[str]:
    found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return {str(one.value) for one in found}


def _is_signed_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except Exception:
        return False
    return True


def joined(certificate: Path, key: Path) -> bytes:
    """
    A user's certificate chain and its key as one PEM.

    :raises CatalogError: one cannot be read, the key is another's or has a password, or the certificate has expired.
    """
    try:
        chain, private = certificate.read_bytes(), key.read_bytes()
        first = x509.load_pem_x509_certificate(chain)
        own = serialization.load_pem_private_key(private, None)
    except (OSError, ValueError, TypeError) as error:
        raise CatalogError(
            f"gateway_certificate {certificate} or gateway_certificate_key {key} is no PEM file without a password: "
            f"{error}. Fix: correct the paths, or the files"
        ) from error
    public = serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    if own.public_key().public_bytes(*public) != first.public_key().public_bytes(*public):
        raise CatalogError(f"{key} is not the key of {certificate}. Fix: name the two that belong together")
    if first.not_valid_after_utc < _now():
        raise CatalogError(f"{certificate} expired on {first.not_valid_after_utc:%Y-%m-%d}. Fix: renew it")
    return chain.rstrip(b"\n") + b"\n" + private


def tunnel_key(file: Path) -> Path:
    """An SSH key of its own for a gateway's tunnels; made at the first call, mode 0600."""
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        key = ed25519.Ed25519PrivateKey.generate()
        write_private(
            file, key.private_bytes(serialization.Encoding.PEM, _PRIVATE.OpenSSH, serialization.NoEncryption())
        )
    return file


def public_ssh_key(file: Path) -> str:
    """The public part of it, as authorized_keys has it."""
    key = serialization.load_ssh_private_key(file.read_bytes(), None)
    return key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).decode()


def _pem(key: _Key) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, _PRIVATE.PKCS8, serialization.NoEncryption())


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
