"""Whom we trust over TLS: the public authorities, and the one of our own that a deploy made. Pure."""

import ssl

import httpx

from beeyard.keys import AUTHORITY


def trusted(url: str) -> ssl.SSLContext | bool:
    """What httpx calls verify; plain HTTP has nothing to be looked at."""
    if not url.startswith("https:"):
        return True
    context = httpx.create_ssl_context(trust_env=False)
    own = AUTHORITY / "ca.pem"
    if own.is_file():
        context.load_verify_locations(cafile=str(own))
    return context
