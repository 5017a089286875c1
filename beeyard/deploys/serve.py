"""Put the server in place: key, definition, flag contract, guarded switch, a closing word."""

from typing import Any

from pyinfra import host
from pyinfra.api import deploy

from beeyard.catalog import PROJECT
from beeyard.deploys.front import put_front
from beeyard.deploys.gateway import behind, gateways_before, let_gateway_in
from beeyard.deploys.host_spec import Plan
from beeyard.dialects import argv
from beeyard.keys import AUTHORITY, given_key, inner_key, key_copy, known_key
from beeyard.operations import api_keys, file_set, images, servers
from beeyard.operations.file_set import Directory, File
from beeyard.render import define
from beeyard.survey import DECIDED


@deploy("Serve")
def serve(plan: Plan) -> None:
    """Switch the host to the spec's server, unless it serves already."""
    spec, prefix = plan.spec, str(plan.spec.prefix)
    given = inner_key(spec.preset) if gateways_before(host.name) else given_key(spec)
    # What runs has the key of the copy here: a file that is only repaired is nothing new to it.
    is_another = given is not None and given != known_key(host.name)
    key = api_keys.present(
        name="API key",
        path=str(spec.api_key_file),
        owner=spec.user,
        local=str(key_copy(host.name)),
        given=given,
    )
    file_set.present(name="Write the server's definition", items=definition_of(plan))
    if spec.image is None:
        servers.accepted_by_engine(
            name="Check the arguments against the engine", arguments=argv(spec), engine=spec.engine.title
        )
    else:
        images.fits(
            name="Check the arguments and the card against the image",
            reference=spec.image.reference,
            arguments=argv(spec),
            architectures=spec.architectures,
        )
    servers.switched(
        name="Switch under the gate",
        prefix=prefix,
        guard=plan.guard,
        server_id=define(spec).id,
        behind=behind(host.name),
        anew=lambda: is_another and key.did_change(),
    )
    let_gateway_in(spec=spec)
    put_front(plan=plan)
    servers.summarised(
        name="What serves",
        prefix=prefix,
        guard=plan.guard,
        sentence=lambda state: _summary(plan, state, host),
    )


def definition_of(plan: Plan) -> list[file_set.Item]:
    """The server's definition, as files."""
    server = define(plan.spec)
    folder = f"{plan.spec.prefix}/servers/{server.id}"
    return [
        Directory(folder),
        File(f"{folder}/server.json", server.server_json.encode()),
        File(f"{folder}/definition", server.definition.encode()),
        # With these over its data, whoever asks later finds the same spec.
        File(f"{folder}/{DECIDED}", plan.decided.encode()),
    ]


def _summary(plan: Plan, state: dict[str, Any], target: Any) -> str:
    spec = plan.spec
    memory = f"{state.get('resident_mib', 0)} MiB resident, {state.get('locked_mib', 0)} MiB locked"
    if state.get("vram_mib") is not None:
        memory += f", {state['vram_mib']} MiB of GPU memory"
    lines = [
        f"{target.name} serves {spec.preset}, variant {spec.variant}, on {spec.engine.title} ({spec.runtime})",
        f"    {spec.url}/v1  ({memory})",
        f"    key: {key_copy(target.name).relative_to(PROJECT)} here, {spec.api_key_file} there",
    ]
    switch = state.get("last_switch") or {}
    if switch:
        lines.append(f"    at the gate {switch['showed']}; {switch['away_s']} s without a server")
    if spec.is_loopback and not plan.is_here:
        user, port = target.data.get("ssh_user") or "root", target.data.get("ssh_port") or 22
        address = target.data.get("ssh_hostname") or target.name
        lines.append(f"    tunnel: ssh -N -L {spec.port}:127.0.0.1:{spec.port} -p {port} {user}@{address}")
    if spec.front is not None:
        trusted = (AUTHORITY / "ca.pem").relative_to(PROJECT)
        lines.append(f"    {spec.front.url}/v1 for all who have the key and trust {trusted} here")
    return "\n".join(lines)
