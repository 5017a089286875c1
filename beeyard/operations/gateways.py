"""Operations on a gateway's HAProxy, and on what hosts behind it let it do."""

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, NamedTuple

from gevent.lock import BoundedSemaphore
from pyinfra import host, logger
from pyinfra.api import FunctionCommand, Host, QuoteString, State, StringCommand, operation
from pyinfra.api.exceptions import PyinfraError

from beeyard.facts.files import FileStates
from beeyard.facts.units import FoundUnits, Lines, UnitStates, home
from beeyard.operations.file_set import File, Item, as_wanted, put

Commands = Generator[StringCommand | FunctionCommand, None, None]
UNITS = "/etc/systemd/system"
READY_S = 60
KEYS_FILE = "~/.ssh/authorized_keys"


class Behind(NamedTuple):
    """How a host is taken out of a gateway and put back. ``wait_s``: seconds that its answers may take to end."""

    gateway: str
    tool: str
    socket: str
    server: str
    wait_s: int


@operation()
def serving(
    items: Sequence[Item],
    config: File,
    units: Sequence[File],
    main: str,
    ours: Sequence[str],
    reloads: Mapping[str, str] | None = None,
    units_dir: str = UNITS,
    check: str = "haproxy -c -q -f",
    keys: Callable[[], Sequence[File]] = list,
    restarts: bool = False,
) -> Commands:
    """
    Ensure that a program runs with these files. A changed configuration is checked by the program itself, then taken
    up by a reload, which no stream notices.

    + items: what the configuration names
    + config: its configuration
    + units: systemd's units
    + main: the program's own among them
    + ours: how units begin that are removed when they are not among them
    + reloads: units beside the main one that reload when a file among the items has changed: its path
    + units_dir: where units are
    + check: the command that judges a configuration
    + keys: more items, which an earlier operation of this deploy may have made
    + restarts: whether a changed main unit is started anew at once; by default it holds from its next start
    """
    items = [*items, *keys()]
    files = [*items, config, *units]
    there = host.get_fact(FileStates, paths=[item.path for item in files])
    wrong = {item.path for item in files if not as_wanted(item, there.get(item.path))}
    names = [unit.path.rpartition("/")[2] for unit in units]
    now = host.get_fact(UnitStates, units=names)
    found = [name for prefix in ours for name in host.get_fact(FoundUnits, folder=units_dir, prefix=prefix)]
    gone = sorted(set(found) - set(names))
    asleep = [name for name in names if now.get(name) != {"active": "active", "enabled": "enabled"}]
    if not wrong and not gone and not asleep:
        host.noop("it runs as wanted")
        return
    for item in items:
        if item.path in wrong:
            yield from put(item)
    if config.path in wrong:
        beside = config._replace(path=f"{config.path}.next")
        yield from put(beside)
        # What is wrong with it is said now, and the process that runs goes on with the old one.
        yield StringCommand(
            check,
            QuoteString(beside.path),
            "&& mv -f",
            QuoteString(beside.path),
            QuoteString(config.path),
        )
    for unit in units:
        if unit.path in wrong:
            yield from put(unit)
    for name in gone:
        yield StringCommand("systemctl disable --now --quiet", QuoteString(name))
        yield StringCommand("rm -f", QuoteString(f"{units_dir}/{name}"))
    changed = [name for name in names if f"{units_dir}/{name}" in wrong]
    if changed or gone:
        yield StringCommand("systemctl daemon-reload")
    # A gateway goes on as it is: a restart would end its streams. Its unit holds from its next start.
    again = [name for name in changed if (restarts or name != main) and name not in asleep]
    ran = main in now and now[main]["active"] == "active"
    if ran and main not in again and any(item.path in wrong for item in [*items, config]):
        yield StringCommand("systemctl reload", QuoteString(main))
    reads = reloads or {}
    fresh = [name for name, path in reads.items() if path in wrong and name not in (*again, *asleep)]
    for words, of in (("reload", fresh), ("restart", again), ("enable --now --quiet", asleep)):
        if of:
            yield StringCommand(f"systemctl {words}", *(QuoteString(name) for name in of))


@operation()
def stopped(units: Sequence[str]) -> Commands:
    """
    Ensure that units run neither now nor at boot.

    + units: their names
    """
    now = host.get_fact(UnitStates, units=list(units))
    on = [name for name, state in now.items() if state["active"] == "active" or state["enabled"] == "enabled"]
    if on:
        yield StringCommand("systemctl disable --now --quiet", *(QuoteString(name) for name in on))
    else:
        host.noop("none of them runs")


@operation()
def let_in(line: str, path: str = KEYS_FILE) -> Commands:
    """
    Ensure that a key may open the connected user's SSH, in the way that its line says.

    + line: of authorized_keys; another line with the same key is replaced
    + path: that file
    """
    lines = host.get_fact(Lines, path=path)
    if line in lines:
        host.noop("the gateway's key is let in")
        return
    key = line.split()[-2]
    # Its owner alone may read it, or sshd leaves it aside.
    text = (
        'umask 077; mkdir -p "${1%/*}"; touch "$1"; { grep -vF -- "$2" "$1" || true; printf "%s\\n" "$3"; } '
        '>"$1.new" && cat "$1.new" >"$1" && rm -f "$1.new"'
    )
    yield StringCommand("sh -c", QuoteString(text), "let-in", home(path), QuoteString(key), QuoteString(line))


class _Roll:
    """One host at a time is out of a gateway. A gateway whose last host did not come back gives up no other."""

    def __init__(self) -> None:
        self.turn = BoundedSemaphore()
        self.failed: str | None = None


_rolls: dict[str, _Roll] = {}


def rolled(command: StringCommand, behind: Behind) -> FunctionCommand:
    """
    A command that takes the host out of its gateway, does what is given, and puts the host back, whatever came of it.

    :param command: what is done while no request goes to the host
    """

    def roll(state: State, host: Host) -> bool:
        shared = _rolls.setdefault(behind.gateway, _Roll())
        with shared.turn:
            if shared.failed is not None:
                logger.error(
                    f"{host.print_prefix}{shared.failed} did not come back behind gateway {behind.gateway}, so this "
                    f"host goes on as it is. Fix: see why {shared.failed} did not, then deploy again"
                )
                return False
            if not _told(state, host, behind, "drain", behind.wait_s):
                return False
            done = False
            try:
                done = _ran(host, command, host)
            finally:
                back = _told(state, host, behind, "ready", READY_S)
                if not back:
                    shared.failed = host.name
            return done and back

    return FunctionCommand(roll, (), {})


def _told(state: State, host: Host, behind: Behind, what: str, wait_s: int) -> bool:
    """Tell the gateway; one that is not set up yet has nobody to drain."""
    gateway = state.inventory.get_host(behind.gateway)
    try:
        if not gateway.connected:  # a run that is limited to others has not connected to it
            gateway.connect(reason="to drain", show_errors=False, raise_exceptions=True)
    except PyinfraError as error:
        logger.error(
            f"{host.print_prefix}gateway {behind.gateway}, which should {what} this host, is not reached: {error}. "
            "Fix: bring it up, or set llama_drain to false for this run"
        )
        return False
    words = ("python3", behind.tool, what, behind.socket, behind.server, str(wait_s))
    told = StringCommand("! test -e", QuoteString(behind.tool), "||", *(QuoteString(word) for word in words))
    return _ran(gateway, StringCommand("sh -c", QuoteString(str(told))), host)


def _ran(where: Any, command: StringCommand, whose: Host) -> bool:
    sudo = {key: where.data.get(key) for key in ("_sudo", "_use_sudo_password") if where.data.get(key)}
    ok, output = where.run_shell_command(command, print_output=False, print_input=False, **sudo)
    for line in output.output_lines:
        say = logger.info if ok else logger.error
        say(f"{whose.print_prefix}{line}")
    return bool(ok)
