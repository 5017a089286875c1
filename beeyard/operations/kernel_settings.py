"""Operations on a host's kernel settings (sysctl) and limits, each in a file of ours alone."""

from collections.abc import Generator, Mapping, Sequence

from pyinfra import host
from pyinfra.api import QuoteString, StringCommand, operation

from beeyard.facts.files import FileStates
from beeyard.facts.host import KernelSettings
from beeyard.facts.seen import seen
from beeyard.operations.file_set import File, as_wanted, put

SYSCTL_FILE = "/etc/sysctl.d/80-beeyard.conf"
LIMITS_FILE = "/etc/security/limits.d/80-beeyard.conf"
HEAD = "# Written by Beeyard: change the inventory ({}), not this file.\n"
# Makes a folder, and sets NAME VALUE pairs, as sysctl does, which a small host may not have.
SET = r"""
mkdir -p "$1" && shift
while [ $# -gt 0 ]; do
    file=/proc/sys/$(echo "$1" | tr './' '/.')
    said=$( { printf '%s\n' "$2" >"$file"; } 2>&1 ) || {
        echo "sysctl $1 cannot be set to $2: ${said##*: }. Fix: take it out of llama_sysctl; in a container, set" \
            "it on the machine below it" >&2
        exit 1
    }
    shift 2
done
"""
# Makes a folder, and raises limits of what runs: values by prlimit's names, then -- and process ids.
RAISE = r"""
mkdir -p "$1" && shift
options=""
while [ "$1" != -- ]; do options="$options --$1=$2:$2" && shift 2; done
shift
for pid do
    kill -0 "$pid" 2>/dev/null || continue
    # shellcheck disable=SC2086
    said=$(prlimit --pid "$pid" $options 2>&1) || {
        echo "this host does not let root raise limits ($said). Fix: take them out of llama_limits; a container" \
            "gets them from who starts it (docker run --ulimit memlock=-1)" >&2
        exit 1
    }
done
"""


@operation()
def present(values: Mapping[str, str], path: str = SYSCTL_FILE) -> Generator[StringCommand, None, None]:
    """
    Ensure that kernel settings are as given, now and at boot.

    + values: by their names, as vm.swappiness; none takes our file away, and leaves the values till the next boot
    + path: our file, all of it
    """
    there = seen(FileStates, paths=[path]).get(path)
    if not values:
        yield from _away(path, is_there=there is not None)
        return
    text = HEAD.format("llama_sysctl") + "".join(f"{name} = {value}\n" for name, value in values.items())
    now = seen(KernelSettings, names=list(values))
    wrong = [name for name, value in values.items() if now.get(name) != value.split()]
    file = File(path, text.encode())
    if as_wanted(file, there) and not wrong:
        host.noop(f"{len(values)} kernel settings are as wanted")
        return
    # First whether they can be had, then the file that would fail at boot.
    pairs = [QuoteString(word) for name in wrong for word in (name, values[name])]
    yield StringCommand("sh -c", QuoteString(SET), "set", _folder(path), *pairs)
    yield from put(file)


@operation()
def limited(
    users: Sequence[str],
    limits: Mapping[str, str],
    pids: Sequence[int],
    pid_file: str,
    path: str = LIMITS_FILE,
) -> Generator[StringCommand, None, None]:
    """
    Ensure that users' logins, and processes that run, have limits.

    + users: who logs in, or runs the server
    + limits: by the names of limits.conf, memlock and nofile; none takes our file away
    + pids: processes whose children shall have them at once
    + pid_file: where the number of another one is, if it runs
    + path: our file, all of it
    """
    there = seen(FileStates, paths=[path]).get(path)
    if not limits:
        yield from _away(path, is_there=there is not None)
        return
    lines = [f"{user} - {name} {value}\n" for user in users for name, value in limits.items()]
    file = File(path, (HEAD.format("llama_limits") + "".join(lines)).encode())
    if as_wanted(file, there):
        host.noop("limits are as wanted")
        return
    words = [QuoteString(word) for name, value in limits.items() for word in (name, _bytes(name, value))]
    running = StringCommand("$(cat", QuoteString(pid_file), "2>/dev/null)")
    yield StringCommand(
        "sh -c", QuoteString(RAISE), "raise", _folder(path), *words, "--", *(str(pid) for pid in pids), running
    )
    yield from put(file)


def _away(path: str, *, is_there: bool) -> Generator[StringCommand, None, None]:
    if is_there:
        yield StringCommand("rm", QuoteString(path))
    else:
        host.noop("nothing is asked for")


def _folder(path: str) -> QuoteString:
    return QuoteString(path.rpartition("/")[0])


def _bytes(name: str, value: str) -> str:
    """limits.conf counts locked memory in KiB, the kernel in bytes."""
    return str(int(value) * 1024) if name == "memlock" and value.isdigit() else value
