"""TLS before a server on loopback, where no gateway is: HAProxy in a rented pod, kept by its supervisor. Pure."""

from pathlib import PurePosixPath
from typing import Final, NamedTuple

from beeyard.gateway import PATHS
from beeyard.render import rendered, supervisor_quoted
from beeyard.spec import ServerSpec

# What supervisor calls it.
NAME: Final = "front"
HAPROXY: Final = "/usr/sbin/haproxy"
# Seconds of silence that a long prompt may need until its first word.
SILENCE_S: Final = 900


class Places(NamedTuple):
    """Where its files are on the host."""

    folder: PurePosixPath
    program: PurePosixPath
    log: PurePosixPath
    # What it was last seen serving with.
    stamp: PurePosixPath

    @property
    def config(self) -> str:
        """HAProxy's configuration."""
        return f"{self.folder}/haproxy.cfg"

    @property
    def certificate(self) -> str:
        """Chain and key, its user's alone."""
        return f"{self.folder}/tls.pem"

    @property
    def authority(self) -> str:
        """What signed it, so that the host itself can tell ours from another."""
        return f"{self.folder}/ca.pem"


def places(prefix: PurePosixPath) -> Places:
    """Where a prefix's front is."""
    return Places(
        folder=prefix / "etc" / NAME,
        program=prefix / "etc" / "programs" / f"{NAME}.conf",
        log=prefix / "log" / f"{NAME}.log",
        stamp=prefix / "run" / NAME,
    )


def config(spec: ServerSpec) -> str:
    """HAProxy's configuration; no key is in it, and none is asked for: that is the server's own."""
    assert spec.front is not None, "whoever has none has no configuration of it"  # noqa: S101
    return rendered(
        "front.cfg.j2",
        prefix=spec.prefix,
        silence=SILENCE_S,
        port=spec.front.port,
        certificate=places(spec.prefix).certificate,
        paths=" ".join(PATHS),
        server=spec.url.removeprefix("http://"),
    )


def program(spec: ServerSpec) -> str:
    """What supervisor is told. A master process takes up new files without an answer ending."""
    found = places(spec.prefix)
    return rendered(
        "front.conf.j2",
        name=NAME,
        command=supervisor_quoted([HAPROXY, "-W", "-f", found.config]),
        user=spec.user,
        log=str(found.log).replace("%", "%%"),
    )
