"""Operations on what others reach a pod's server by: HAProxy with TLS, a program of its supervisor."""

import hashlib
from collections.abc import Generator, Sequence
from pathlib import PurePosixPath

from pyinfra import host
from pyinfra.api import QuoteString, StringCommand, operation

from beeyard.facts.files import FileStates
from beeyard.facts.fronts import ANSWERS, FrontState
from beeyard.facts.seen import seen
from beeyard.operations.file_set import Directory, File, as_wanted, put

READY_S = 15
# What is at fault when it does not answer is the end of its log.
AWAIT = f"""
{ANSWERS}
until=$(($(date +%s) + {READY_S}))
until answers "$1" "$2" "$3"; do
    if [ "$(date +%s)" -ge "$until" ]; then
        tail -n 5 "$4" >&2
        printf 'the TLS port %s of %s does not answer within {READY_S} s' "$3" "$(uname -n)" >&2
        printf '. Fix: see above whether another program has the port; llama_expose_port takes another\\n' >&2
        exit 1
    fi
    sleep 0.2
done
"""


@operation()
def serving(
    prefix: str,
    folder: str,
    items: Sequence[File],
    config: File,
    program: File,
    log: str,
    stamp: str,
    authority: str,
    certified: str,
    port: int,
) -> Generator[StringCommand, None, None]:
    """
    Ensure that TLS is spoken before the server, with these files. A change is taken up without an answer ending.

    + prefix: where Beeyard lives on the host; its supervisor runs
    + folder: of items and config
    + items: certificate and authority
    + config: HAProxy's configuration
    + program: what supervisor is told; its file is called like it
    + log: the program's
    + stamp: what it was last seen serving with
    + authority: the item that says who signed the certificate
    + certified: the name or address that the certificate is for
    + port: the host's
    """
    files, name = [*items, config, program], PurePosixPath(program.path).stem
    there = seen(FileStates, paths=[file.path for file in files])
    wrong = [file for file in files if not as_wanted(file, there.get(file.path))]
    wanted = hashlib.sha256(b"".join(hashlib.sha256(file.content).digest() for file in files)).hexdigest()
    state = seen(FrontState, stamp=stamp, authority=authority, certified=certified, port=port)
    if not wrong and state == {"stamp": wanted, "answers": True}:
        host.noop("TLS is spoken as wanted")
        return
    yield from put(Directory(folder, "700", config.owner))
    for file in wrong:
        if file is not config:
            yield from put(file)
    if config in wrong:
        beside = config._replace(path=f"{config.path}.next")
        yield from put(beside)
        # What is wrong with it is said now, and what runs goes on with the old one.
        both = QuoteString(beside.path), QuoteString(config.path)
        yield StringCommand("haproxy -c -q -f", both[0], "&& mv -f", *both)
    # What supervisor is told anew it starts anew.
    yield _supervisor(prefix, "update", name)
    if program not in wrong:
        # Where it does not run, there is none to be restarted: whether it answers then is what counts.
        yield _supervisor(prefix, *(["signal", "USR2", name] if state["answers"] else ["restart", name, "|| true"]))
    yield StringCommand(
        "sh -c", QuoteString(AWAIT), "await", QuoteString(authority), QuoteString(certified), str(port),
        QuoteString(log),
    )  # fmt: skip
    yield StringCommand("echo", wanted, ">", QuoteString(stamp))


@operation()
def absent(prefix: str, folder: str, program: str, stamp: str) -> Generator[StringCommand, None, None]:
    """
    Ensure that none is there any more, nor its certificate's key.

    + prefix: where Beeyard lives on the host
    + folder: where its files would be
    + program: the file that supervisor would be told by
    + stamp: what it was last seen serving with
    """
    if not seen(FileStates, paths=[program, folder]):
        host.noop("there is no TLS port")
        return
    yield StringCommand("rm -f", QuoteString(program), QuoteString(stamp))
    yield _supervisor(prefix, "update", PurePosixPath(program).stem)
    yield StringCommand("rm -rf", QuoteString(folder))


def _supervisor(prefix: str, *words: str) -> StringCommand:
    return StringCommand(
        "env", QuoteString(f"PYTHONPATH={prefix}/lib/supervisor"), "python3 -m supervisor.supervisorctl -c",
        QuoteString(f"{prefix}/etc/supervisord.conf"), *words,
    )  # fmt: skip
