"""What others reach a rented pod's server by: a TLS port before it, or none."""

from pyinfra.api import deploy

from beeyard.certificates import authority_of, internal_certificate
from beeyard.deploys.host_spec import Plan
from beeyard.facts.files import FileStates
from beeyard.facts.fronts import FrontState
from beeyard.facts.seen import Question, asked
from beeyard.front import config, places, program
from beeyard.keys import AUTHORITY
from beeyard.operations import fronts
from beeyard.operations.file_set import File


@deploy("TLS port")
def put_front(plan: Plan) -> None:
    """HAProxy with a certificate of the authority here, where the spec has it; else see that none is left."""
    spec, prefix = plan.spec, str(plan.spec.prefix)
    if spec.runtime != "supervisor":
        return
    found = places(spec.prefix)
    if spec.front is None:
        fronts.absent(
            name="TLS port",
            prefix=prefix,
            folder=str(found.folder),
            program=str(found.program),
            stamp=str(found.stamp),
        )
        return
    pem = internal_certificate(AUTHORITY, [spec.front.name])
    items = [
        File(found.certificate, pem, "600", spec.user),
        File(found.authority, authority_of(AUTHORITY), "644", spec.user),
    ]
    fronts.serving(
        name="TLS port",
        prefix=prefix,
        folder=str(found.folder),
        items=items,
        config=File(found.config, config(spec).encode(), "600", spec.user),
        program=File(str(found.program), program(spec).encode()),
        log=str(found.log),
        stamp=str(found.stamp),
        authority=found.authority,
        certified=spec.front.name,
        port=spec.front.port,
    )


def front_questions(plan: Plan) -> list[Question]:
    """What the above asks of the host."""
    spec = plan.spec
    if spec.runtime != "supervisor":
        return []
    found = places(spec.prefix)
    if spec.front is None:
        return [asked(FileStates, paths=[str(found.program), str(found.folder)])]
    paths = [found.certificate, found.authority, found.config, str(found.program)]
    return [
        asked(FileStates, paths=paths),
        asked(
            FrontState,
            stamp=str(found.stamp),
            authority=found.authority,
            certified=spec.front.name,
            port=spec.front.port,
        ),
    ]
