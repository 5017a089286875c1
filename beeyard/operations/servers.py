"""Operations on the host's server."""

from collections.abc import Callable, Generator, Sequence

from pyinfra import host, logger, state
from pyinfra.api import FunctionCommand, QuoteString, StringCommand, operation

from beeyard.contract import parse_help, violations
from beeyard.facts.seen import seen
from beeyard.facts.servers import EngineHelp, ServerState
from beeyard.operations.gateways import Behind, rolled
from beeyard.operations.refusals import refusal

Commands = Generator[StringCommand | FunctionCommand, None, None]


@operation()
def accepted_by_engine(arguments: Sequence[str], engine: str) -> Commands:
    """
    Ensure that the engine on the host takes an argument list, before a running server is touched.

    + arguments: the server's command, the binary first
    + engine: what to call it in messages
    """
    text = seen(EngineHelp, binary=arguments[0])
    if text is None:
        if state.is_executing:
            yield refusal(f"{arguments[0]} is not there, or prints no help. Fix: deploy again")
        return
    try:
        found = violations(arguments, parse_help(text), engine)
    except ValueError as error:
        found = [str(error)]
    if found:
        yield refusal(
            f"{'; '.join(found)}. Nothing was stopped. Fix: change the preset's settings, or choose another "
            "engine with llama_engine"
        )
    else:
        host.noop(f"{engine} takes all arguments")


@operation()
def switched(
    prefix: str, guard: str, server_id: str, behind: Behind | None = None, anew: Callable[[], bool] | None = None
) -> Commands:
    """
    Ensure that one of the servers under PREFIX/servers is the one that serves, and that it passed the gate.

    + prefix: where Beeyard lives on the host
    + guard: guard.py on the host
    + server_id: which one
    + behind: the gateway that the host is taken out of meanwhile, one host at a time
    + anew: whether one that serves must pass the gate again, or be started anew: it read its key when it started

    If it fails the gate, the server before it serves again and the operation fails.
    """
    now = seen(ServerState, guard=guard, prefix=prefix)
    serves = now["current"] == server_id and now["installed"] and now["runs_its_command"] and now["health"] == 200
    # A guard of an older version does not say.
    serves = serves and now.get("is_linked", True) and now.get("engine_is_current", True)
    if serves and not (state.is_executing and anew is not None and anew()):
        host.noop(f"{now['title']} serves")
        return
    switch = StringCommand("python3", QuoteString(guard), "switch", QuoteString(prefix), QuoteString(server_id))
    yield switch if behind is None else rolled(switch, behind)


@operation()
def returned(prefix: str, guard: str) -> Commands:
    """
    Put the server before the current one back, under the gate. Each run goes the other way.

    + prefix: where Beeyard lives on the host
    + guard: guard.py on the host
    """
    now = seen(ServerState, guard=guard, prefix=prefix)
    if now["current"] is None:
        yield refusal("no server was deployed here. Fix: deploy first")
    else:
        yield StringCommand("python3", QuoteString(guard), "rollback", QuoteString(prefix))


@operation()
def stopped(prefix: str, guard: str) -> Commands:
    """
    Ensure that no server of ours runs on the host, nor starts at its next boot.

    + prefix: where Beeyard lives on the host
    + guard: guard.py on the host
    """
    now = seen(ServerState, guard=guard, prefix=prefix)
    if now["current"] is None or not (now["pid"] or now["installed"]):
        host.noop("no server runs")
        return
    yield StringCommand("python3", QuoteString(guard), "stop", QuoteString(prefix))


@operation()
def summarised(prefix: str, guard: str, sentence: Callable[[dict[str, object]], str]) -> Commands:
    """
    Tell what serves on the host, at the end of a run. Changes nothing.

    + prefix: where Beeyard lives on the host
    + guard: guard.py on the host
    + sentence: makes the text from the guard's look at the server
    """
    if state.is_executing:
        logger.info(sentence(seen(ServerState, guard=guard, prefix=prefix)))
    yield from ()
