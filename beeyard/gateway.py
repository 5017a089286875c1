"""A gateway: one address before all hosts of an inventory that serve a preset. HAProxy's files from data. Pure."""

import hashlib
import ipaddress
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from pydantic import Field, StringConstraints, ValidationError, field_validator

from beeyard.catalog import PROJECT, Catalog, CatalogError, Strict, sentence
from beeyard.render import systemd_quoted
from beeyard.spec import ANY_HOST, ServerSpec, host_settings, resolve
from beeyard.tunnel import Forward, Ssh, authorized, kept_open

# The group of an inventory whose hosts are gateways, and what their keys in its data begin with.
GROUP: Final = "gateway"
PREFIX: Final = "gateway_"
# Sessions are spread over so many buckets; a host that comes or goes moves its own share of them alone.
BUCKETS: Final = 1024
PLAIN: Final = "keys and prompts may be read on the way"
FIRST_TUNNEL_PORT: Final = 8950
UNIT: Final = "beeyard-gateway.service"
WATCH_UNIT: Final = "beeyard-gateway-watch.service"
CADDY_UNIT: Final = "beeyard-caddy.service"
# In the unit's RuntimeDirectory: where a reload is asked for, by its user alone.
CADDY_ADMIN: Final = "unix//run/beeyard-caddy/admin.sock"
Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]
# What clients may ask for through it. /slots, /metrics and the like show others' prompts or change the server.
PATHS: Final = (
    "/completion", "/completions", "/embedding", "/embeddings", "/infill", "/models", "/props", "/rerank",
    "/reranking", "/tokenize", "/detokenize", "/apply-template",
)  # fmt: skip


class User(Strict):
    """Who may use the gateway; None: as much as there is room for."""

    requests_per_minute: Annotated[int, Field(gt=0)] | None = None


class GatewaySettings(Strict):
    """What an inventory may say of a gateway; each key with ``gateway_`` before it. Times in seconds."""

    # Whose hosts are behind it; needed where the inventory's hosts serve several.
    preset: str | None = None
    # Whether the gateway's host serves a model itself.
    serves: bool = False
    bind: str = "127.0.0.1"
    port: int = Field(default=8900, ge=1, le=65535)
    # Statistics page and Prometheus' metrics, on loopback alone.
    stats_port: int = Field(default=8901, ge=1, le=65535)
    prefix: Annotated[str, StringConstraints(pattern=r"^/[A-Za-z0-9/._-]+$")] = "/etc/beeyard-gateway"
    users: dict[Name, User] = {"default": User()}
    # Requests that may wait, and how long; beyond the first 429, beyond the second 503, both with Retry-After.
    queue_length: int = Field(default=100, ge=1)
    queue_wait: int = Field(default=60, ge=1)
    # Of those, so many may wait at the very server that knows their session, where all are busy.
    sticky_queue: int = Field(default=1, ge=0)
    # The longest silence of a server or client that is not taken for dead.
    silence: int = Field(default=900, ge=1)
    drain_wait: int = Field(default=600, ge=1)
    max_streams: int = Field(default=2000, ge=1)
    # A request up to this size is asked of another server, where its own dies before it answers.
    retry_kib: int = Field(default=64, ge=16, le=16384)
    tls: Literal["files", "internal-ca", "acme"] | None = None
    # Names and addresses that clients use, for the certificate.
    names: tuple[str, ...] = ()
    # For tls files: PEM files on the machine that deploys.
    certificate: str | None = None
    certificate_key: str | None = None
    # Who is told by the authority that issues certificates, for tls acme.
    acme_email: str | None = None
    # Another authority than Let's Encrypt: its directory, and its root as a PEM file on the machine that deploys,
    # where the gateway's host does not trust it already.
    acme_directory: Annotated[str, StringConstraints(pattern=r"^https://[^\s{}\"`]+$")] | None = None
    acme_root: str | None = None
    plain_http: Literal["keys and prompts may be read on the way"] | None = None
    # Whether nftables closes the host but for SSH and this; and to whom this is open, as 192.0.2.0/24 (to all if
    # empty).
    firewall: bool = False
    open_to: tuple[str, ...] = ()

    @field_validator("bind")
    @classmethod
    def _an_address(cls, value: str) -> str:
        return str(ipaddress.ip_address(value))

    @field_validator("names")
    @classmethod
    def _names_of_hosts(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in value:
            if not re.fullmatch(r"[A-Za-z0-9*]([A-Za-z0-9.-]*[A-Za-z0-9])?|[0-9a-fA-F:]+", name):
                raise ValueError(f"{name!r} is no name of a host and no address. Fix: as in llm.example.org")
        return value

    @property
    def is_loopback(self) -> bool:
        """Whether the gateway's host alone can reach it."""
        return ipaddress.ip_address(self.bind).is_loopback


class Backend(Strict):
    """A host's server, as the gateway reaches it. ``slots``: requests that it works on at a time."""

    name: Name
    address: str
    port: int
    slots: int
    # Its name in the inventory, and how the machine that deploys reaches it.
    host: str = ""
    ssh: Ssh | None = None
    # The port of its server's loopback, where a tunnel leads to it; None where it is reached directly.
    tunnelled_port: int | None = None


class Gateway(Strict):
    """One gateway, resolved."""

    name: str
    preset: str
    settings: GatewaySettings
    backends: tuple[Backend, ...]

    @property
    def open_ports(self) -> list[int]:
        """What others are to reach: none on loopback; with ACME what Caddy listens on."""
        if self.settings.tls == "acme":
            return [80, 443]
        return [] if self.settings.is_loopback else [self.settings.port]

    @property
    def tool(self) -> str:
        """gateway.py on its host."""
        return f"{self.settings.prefix}/gateway.py"

    @property
    def places(self) -> "Places":
        """Where its files are there."""
        return Places(folder=self.settings.prefix)

    @property
    def tunnelled(self) -> list[Backend]:
        """Those that a tunnel leads to."""
        return [one for one in self.backends if one.tunnelled_port is not None]


class Places(Strict):
    """Where a gateway's files are. Beside the configuration: users.map, limits.map, homes.map, inner.map."""

    folder: str = "/etc/beeyard-gateway"
    run: str = "/run/beeyard-gateway"

    @property
    def config(self) -> str:
        """HAProxy's configuration."""
        return f"{self.folder}/haproxy.cfg"

    @property
    def caddyfile(self) -> str:
        """Caddy's configuration, for tls acme."""
        return f"{self.folder}/Caddyfile"

    @property
    def acme_root(self) -> str:
        """The root of an authority that the host does not trust by itself."""
        return f"{self.folder}/acme-root.pem"

    @property
    def socket(self) -> str:
        """Where it is asked for its state, and told to drain a server; its user's alone."""
        return f"{self.run}/admin.sock"

    @property
    def states(self) -> str:
        """Servers' states, kept through a reload."""
        return f"{self.run}/servers"


def gateway_settings(data: Mapping[str, Any]) -> GatewaySettings:
    """
    Ours among a gateway's data, validated.

    :raises CatalogError: an unknown key, a wrong value; plain HTTP or no key where others reach it.
    """
    ours = {key.removeprefix(PREFIX): value for key, value in data.items() if key.startswith(PREFIX)}
    try:
        found = GatewaySettings(**ours)
    except ValidationError as error:
        raise CatalogError(f"host data (keys gateway_…): {sentence(error)}") from error
    _check(found)
    return found


def _check(found: GatewaySettings) -> None:
    if not found.is_loopback and found.tls is None and found.plain_http is None:
        raise CatalogError(
            f"gateway_bind is {found.bind}, which others reach, and keys and prompts would travel unencrypted. Fix: "
            f"set gateway_tls to files, internal-ca or acme, or say gateway_plain_http: {PLAIN!r}"
        )
    if not found.is_loopback and not found.users:
        raise CatalogError(
            f"gateway_users is empty, so anyone who reaches {found.bind} could use it. Fix: name users, or leave it "
            "out"
        )
    if found.tls in ("internal-ca", "acme") and not found.names:
        raise CatalogError(
            f"gateway_tls is {found.tls} and no name is known. Fix: set gateway_names to what clients call it"
        )
    unproven = [name for name in found.names if "*" in name or _is_address(name)] if found.tls == "acme" else []
    if unproven:
        raise CatalogError(
            f"gateway_tls is acme and gateway_names has {', '.join(unproven)}: neither a wildcard nor an address can "
            "be proven at ports 80 and 443. Fix: name hosts, as in llm.example.org, or set gateway_tls to "
            "internal-ca or files"
        )
    if found.acme_root is not None and found.acme_directory is None:
        raise CatalogError(
            "gateway_acme_root is set and gateway_acme_directory is not. Fix: set that to the authority's URL"
        )
    if found.tls == "files" and None in (found.certificate, found.certificate_key):
        raise CatalogError(
            "gateway_tls is files and there are none. Fix: set gateway_certificate and gateway_certificate_key to "
            "PEM files on this machine"
        )


def resolve_gateway(
    name: str, data: Mapping[str, Any], hosts: Mapping[str, Mapping[str, Any]], catalog: Catalog
) -> Gateway:
    """
    The gateway of a host, and what is behind it.

    :param hosts: data of all hosts of the inventory that serve, by name
    :raises CatalogError: its data is wrong, hosts serve several presets and none is named, or none serves it.
    """
    settings = gateway_settings(data)
    found = {host: host_settings(of).preset for host, of in hosts.items()}
    presets = sorted(set(found.values()))
    preset = settings.preset or (presets[0] if len(presets) == 1 else None)
    if preset is None:
        raise CatalogError(
            f"the hosts behind gateway {name} serve {', '.join(presets) or 'nothing'}. Fix: set gateway_preset to "
            "one of theirs, or add hosts"
        )
    behind = [host for host, its_own in found.items() if its_own == preset]
    if not behind:
        raise CatalogError(
            f"no host of the inventory serves {preset!r}, which gateway_preset names; they serve "
            f"{', '.join(presets) or 'nothing'}. Fix: correct gateway_preset, or add hosts"
        )
    backends = [
        _backend(host, hosts[host], catalog, is_here=host == name, tunnel_port=FIRST_TUNNEL_PORT + place)
        for place, host in enumerate(behind)
    ]
    return Gateway(name=name, preset=preset, settings=settings, backends=tuple(backends))


def _backend(name: str, data: Mapping[str, Any], catalog: Catalog, *, is_here: bool, tunnel_port: int) -> Backend:
    spec, called = seen_from_elsewhere(data, catalog), file_name(name)
    slots = spec.settings.slots
    if is_here:
        address = "127.0.0.1" if spec.is_loopback or ipaddress.ip_address(spec.bind).is_unspecified else spec.bind
        return Backend(name=called, host=name, address=address, port=spec.port, slots=slots)
    if spec.is_loopback:
        return Backend(
            name=called, host=name, address="127.0.0.1", port=tunnel_port, slots=slots,
            ssh=reached(name, data), tunnelled_port=spec.port,
        )  # fmt: skip
    unspecified = ipaddress.ip_address(spec.bind).is_unspecified
    address = reached(name, data).hostname if unspecified else spec.bind
    return Backend(name=called, host=name, address=address, port=spec.port, slots=slots)


def seen_from_elsewhere(data: Mapping[str, Any], catalog: Catalog) -> ServerSpec:
    """What others need to know of a host's server: how many slots it has, and where it listens."""
    # Neither of these two matters for that, and they would ask the host.
    given = {key: value for key, value in data.items() if key not in ("llama_engine", "llama_context")}
    return resolve({**given, "llama_runtime": "supervisor"}, catalog, ANY_HOST)


def file_name(host: str) -> str:
    """A host's name as a part of a unit's or a file's."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", host).lstrip("_.-") or "server"


def reached(name: str, data: Mapping[str, Any]) -> Ssh:
    """How a gateway or a monitor reaches a host by SSH, one that serves nothing itself, too."""
    ssh = Ssh.of_data(name, data)
    host, _, port = (host_settings({"llama_preset": "", **data}).reached_at or "").partition(":")
    return ssh.model_copy(update={"hostname": host, "port": int(port) if port else None}) if host else ssh


def haproxy_config(gateway: Gateway, places: Places) -> str:
    """HAProxy's configuration. No key is in it: those are in the files beside it."""
    settings = gateway.settings
    # Caddy speaks TLS to clients then, and HAProxy to Caddy alone.
    behind_caddy = settings.tls == "acme"
    return _render(
        "haproxy.cfg.j2",
        name=gateway.name,
        preset=gateway.preset,
        folder=places.folder,
        socket=places.socket,
        states=places.states,
        bind=f"{_bracketed('127.0.0.1' if behind_caddy else settings.bind)}:{settings.port}",
        certificate=f"{places.folder}/tls.pem" if settings.tls in ("files", "internal-ca") else None,
        behind_caddy=behind_caddy,
        stats_port=settings.stats_port,
        has_users=bool(settings.users),
        queue_length=settings.queue_length,
        queue_wait=settings.queue_wait,
        sticky_queue=settings.sticky_queue,
        silence=settings.silence,
        max_streams=settings.max_streams,
        buffer_bytes=settings.retry_kib * 1024,
        buckets=BUCKETS,
        paths=" ".join(PATHS),
        servers=[
            {"name": one.name, "address": f"{_bracketed(one.address)}:{one.port}", "slots": one.slots}
            for one in gateway.backends
        ],
    )


def files(gateway: Gateway, places: Places, keys: Mapping[str, str], inner_key: str) -> dict[str, str]:
    """
    All that HAProxy reads, by name, but for a certificate.

    :param keys: each user's
    :param inner_key: that of the servers
    """
    return {
        "users.map": users_map(keys),
        "limits.map": limits_map(gateway.settings.users),
        "homes.map": homes_map(gateway.backends),
        "inner.map": inner_map(inner_key),
        "haproxy.cfg": haproxy_config(gateway, places),
    }


def units(gateway: Gateway, places: Places) -> dict[str, str]:
    """systemd's units by name: HAProxy, what watches it, a tunnel to each server that it cannot reach itself."""
    found = {
        UNIT: _render(
            "beeyard-gateway.service.j2",
            name=gateway.name,
            preset=gateway.preset,
            config=places.config,
            tool=gateway.tool,
            run=places.run,
            socket=places.socket,
            states=places.states,
            # A connection on each side of a stream, and some.
            files=gateway.settings.max_streams * 4 + 1000,
        ),
        WATCH_UNIT: _render("beeyard-gateway-watch.service.j2", tool=gateway.tool, socket=places.socket),
    }
    if gateway.settings.tls == "acme":
        found[CADDY_UNIT] = _render(
            "beeyard-caddy.service.j2", name=gateway.name, caddyfile=places.caddyfile, admin=CADDY_ADMIN
        )
    for one in gateway.tunnelled:
        found[tunnel_unit(one)] = _render(
            "beeyard-tunnel.service.j2", name=one.host, what="server", user="haproxy",
            exec_start=systemd_quoted(tunnel_command(one, places)),
        )  # fmt: skip
    return found


def caddyfile(gateway: Gateway, places: Places) -> str:
    """Caddy's configuration: certificates by ACME for the gateway's names, HAProxy behind it on loopback."""
    settings = gateway.settings
    return _render(
        "Caddyfile.j2",
        name=gateway.name,
        email=settings.acme_email,
        directory=settings.acme_directory,
        root=places.acme_root if settings.acme_root else None,
        admin=CADDY_ADMIN,
        names=", ".join(settings.names),
        port=settings.port,
        silence=settings.silence,
    )


def tunnel_unit(backend: Backend) -> str:
    """The name of the unit that keeps the way to a server open."""
    return f"beeyard-tunnel-{backend.name}.service"


def tunnel_command(backend: Backend, places: Places) -> list[str]:
    """The ssh that forwards a port of the gateway's loopback to the server's."""
    assert backend.ssh is not None, "a backend without a tunnel"  # noqa: S101
    assert backend.tunnelled_port is not None, "a backend without a tunnel"  # noqa: S101
    way = Forward(port=backend.port, address="127.0.0.1", to=backend.tunnelled_port)
    return kept_open(backend.ssh, backend.host, [way], places.folder)


def authorized_key(public_key: str, port: int) -> str:
    """The line of a server's host that lets the gateway reach the server, and do nothing else there."""
    return authorized(public_key, [("127.0.0.1", port)], "beeyard-gateway")


def users_map(keys: Mapping[str, str]) -> str:
    """A line for each user: the sha256 of his key, then his name. Keys are random: the digest tells nothing."""
    return "".join(f"{key_digest(key)} {user}\n" for user, key in sorted(keys.items()))


def key_digest(key: str) -> str:
    """As HAProxy's sha2(256),hex has it."""
    return hashlib.sha256(key.encode()).hexdigest().upper()


def limits_map(users: Mapping[str, User]) -> str:
    """A line for each user who has a limit: his name, requests in any minute."""
    return "".join(
        f"{name} {user.requests_per_minute}\n" for name, user in sorted(users.items()) if user.requests_per_minute
    )


def inner_map(key: str) -> str:
    """The header that servers want."""
    return f"inner Bearer {key}\n"


def homes_map(backends: Sequence[Backend]) -> str:
    """
    Each bucket's server. Where one comes or goes, only the buckets that it gains or leaves move (rendezvous hashing).
    """
    return "".join(f"{bucket} {_home(bucket, backends)}\n" for bucket in range(BUCKETS))


def _home(bucket: int, backends: Sequence[Backend]) -> str:
    return max(backends, key=lambda one: hashlib.sha256(f"{bucket} {one.name}".encode()).digest()).name


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _bracketed(address: str) -> str:
    return f"[{address}]" if ":" in address else address


def _render(template: str, **variables: object) -> str:
    environment = Environment(
        loader=FileSystemLoader(PROJECT / "templates"), undefined=StrictUndefined, autoescape=False,  # noqa: S701
        keep_trailing_newline=True, trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    return environment.get_template(template).render(**variables)
