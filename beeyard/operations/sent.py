"""Files that a host gets from the machine that deploys, or through it from another host, over SSH as it is."""

import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol

from paramiko import Channel, SSHClient, SSHException
from pyinfra import logger
from pyinfra.api import FileUploadCommand, QuoteString, StringCommand
from pyinfra.api.exceptions import ConnectError, PyinfraError
from pyinfra.connectors.local import LocalConnector
from pyinfra.connectors.util import CommandOutput

from beeyard.operations.watched import watched

LOOPBACK = "127.0.0.1"
CHUNK = 2**20
SFTP_READ = 2**15  # the most that every SFTP server gives at once
_connecting = threading.Lock()


class HereFile(NamedTuple):
    """A file of the machine that deploys."""

    path: str

    @property
    def where(self) -> str:
        """For messages."""
        return f"{self.path}, on the machine that deploys"


class PeerFile(NamedTuple):
    """A file of another host of the inventory."""

    host: str
    path: str

    @property
    def where(self) -> str:
        """For messages."""
        return f"{self.path}, on {self.host}"


class SentCommand(StringCommand):
    """
    Has fetch.sh on the host fetch a file that this process gives it, through a port of the host's loopback.

    So it resumes, is verified and shows how far it is, as a download does. The port takes one secret, which travels
    on stdin, and is gone with the command.
    """

    source: HereFile | PeerFile
    wanted: tuple[str, int, str]  # path, size, sha256
    fetch: str
    log: str
    is_first_try: bool

    def execute(self, state: Any, host: Any, connector_arguments: Any) -> Any:
        """Send it. A first try that fails says so and is no failure."""
        try:
            with _opened(self.source, state, self.wanted[1]) as reader:
                return self._send(state, host, connector_arguments, reader)
        except (OSError, SSHException, PyinfraError) as error:
            what = f"{host.print_prefix}{self.source.where}: {getattr(error, 'strerror', None) or error}"
            if self.is_first_try:
                logger.warning(f"{what}. It comes from where the preset says")
            else:
                logger.error(f"{what}. Fix: see that it is there and can be read")
            return self.is_first_try, CommandOutput([])

    def _send(self, state: Any, host: Any, connector_arguments: Any, reader: "Reader") -> Any:
        try:
            with _port(host, reader, self.wanted[1]) as (port, secret):
                path, size, sha256 = self.wanted
                config = f'header = "Authorization: Bearer {secret}"\nnoproxy = "*"'
                words = (f"http://{LOOPBACK}:{port}/{Path(path).name}", path, str(size), sha256)
                get = StringCommand("sh", QuoteString(self.fetch), "get", *map(QuoteString, words))
                if self.is_first_try:
                    get = StringCommand(get, "|| echo 'Now from where the preset says.' >&2")
                get.connector_arguments["_stdin"] = config
                logger.info(f"{host.print_prefix}{Path(path).name} comes from {self.source.where}")
                return watched(get, self.log).execute(state, host, connector_arguments)
        except _NoPortError as error:
            if isinstance(self.source, PeerFile):
                raise OSError(str(error)) from error
        # As a whole, then, and again as a whole if it breaks off.
        folder = StringCommand("mkdir -p", QuoteString(self.wanted[0].rpartition("/")[0]))
        folder.execute(state, host, connector_arguments)
        FileUploadCommand(self.source.path, f"{self.wanted[0]}.partial").execute(state, host, connector_arguments)
        if self.is_first_try:
            return True, CommandOutput([])
        words = (f"{self.wanted[0]}.partial", self.wanted[0], str(self.wanted[1]), self.wanted[2])
        keep = StringCommand("sh", QuoteString(self.fetch), "keep", *map(QuoteString, words))
        return keep.execute(state, host, connector_arguments)


def sent(
    source: HereFile | PeerFile, path: str, size: int, sha256: str, fetch: str, log: str, is_first_try: bool
) -> SentCommand:
    """
    The command that brings ``source`` to ``path``, whole and verified.

    :param size: in bytes
    :param fetch: fetch.sh on the host
    :param log: where that writes how far it is
    :param is_first_try: whether another command comes after it if it fails
    """
    made = SentCommand("sh", QuoteString(fetch), "get", QuoteString(source.where), QuoteString(path))
    made.source, made.wanted, made.fetch, made.log = source, (path, size, sha256), fetch, log
    made.is_first_try = is_first_try
    return made


class Reader(Protocol):
    """Reads a file anywhere; several threads may ask at once."""

    def read(self, offset: int, length: int) -> bytes:
        """Return up to so many bytes from there; raises OSError or SSHException."""


class _LocalReader:
    def __init__(self, file: BinaryIO) -> None:
        self.file, self.lock = file, threading.Lock()

    def read(self, offset: int, length: int) -> bytes:
        with self.lock:
            self.file.seek(offset)
            return self.file.read(length)


class _PeerReader:
    def __init__(self, file: Any) -> None:
        self.file, self.lock = file, threading.Lock()

    def read(self, offset: int, length: int) -> bytes:
        end = offset + length
        asked = [(at, min(SFTP_READ, end - at)) for at in range(offset, end, SFTP_READ)]
        with self.lock:
            return b"".join(self.file.readv(asked))


@contextmanager
def _opened(source: HereFile | PeerFile, state: Any, size: int) -> Iterator[Reader]:
    """Raises OSError or one of pyinfra's or paramiko's errors if it cannot be read or is not of this size."""
    path, client = source.path, None
    if isinstance(source, PeerFile):
        client = _client(state.inventory.get_host(source.host))
    if client is None:
        with Path(path).open("rb") as file:
            _check_size(Path(path).stat().st_size, size)
            yield _LocalReader(file)
        return
    with client.open_sftp() as sftp, sftp.open(path, "rb") as there:
        _check_size(there.stat().st_size or 0, size)
        yield _PeerReader(there)


def _check_size(found: int, wanted: int) -> None:
    if found != wanted:
        raise OSError(f"it has {found} bytes, {wanted} are wanted")


def _client(peer: Any) -> SSHClient | None:
    """The connection to a host; None where that is this machine."""
    with _connecting:  # a run that is limited to others has not connected to it
        if not peer.connected:
            peer.connect(reason="for its models", show_errors=False, raise_exceptions=True)
    if isinstance(peer.connector, LocalConnector):
        return None
    client = getattr(peer.connector, "client", None)
    if not isinstance(client, SSHClient):
        raise ConnectError("it is not reached over SSH")
    return client


class _NoPortError(Exception):
    """The host lets nobody forward a port."""


@contextmanager
def _port(host: Any, reader: Reader, size: int) -> Iterator[tuple[int, str]]:
    """A port of the host's loopback that gives what the reader reads to whoever has the secret."""
    secret = secrets.token_urlsafe(24)

    class Answer(_Answer):
        pass

    Answer.reader, Answer.size, Answer.secret = reader, size, secret
    if isinstance(host.connector, LocalConnector):
        with ThreadingHTTPServer((LOOPBACK, 0), Answer) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            yield server.server_port, secret
            server.shutdown()
        return
    client = getattr(host.connector, "client", None)
    transport = client.get_transport() if isinstance(client, SSHClient) else None
    if transport is None:
        raise _NoPortError("the host is not reached over SSH")
    try:
        port = transport.request_port_forward(LOOPBACK, 0, lambda channel, *_: _answer(Answer, channel))
    except SSHException as error:
        raise _NoPortError("its SSH server forwards no ports (AllowTcpForwarding)") from error
    try:
        yield port, secret
    finally:
        with suppress(EOFError, SSHException):  # where the connection broke, the port went with it
            transport.cancel_port_forward(LOOPBACK, port)


def _answer(answer: type["_Answer"], channel: Channel) -> None:
    """In a thread of its own: this one reads the connection."""

    def run() -> None:
        with channel:
            answer(channel, (LOOPBACK, 0), None)  # type: ignore[arg-type]

    threading.Thread(target=run, daemon=True).start()


class _Answer(BaseHTTPRequestHandler):
    reader: Reader
    size: int
    secret: str

    def do_GET(self) -> None:
        """Give all of it, or the one range that is asked for."""
        if not secrets.compare_digest(self.headers.get("Authorization", ""), f"Bearer {self.secret}"):
            self.send_error(401)
            return
        start, end = 0, self.size
        unit, _, wanted = self.headers.get("Range", "").partition("=")
        if unit == "bytes":
            first, _, last = wanted.partition("-")
            start, end = int(first), min(int(last or self.size) + 1, self.size)
            if start >= end:
                self.send_error(416)
                return
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{self.size}")
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(end - start))
        self.end_headers()
        try:
            while start < end:
                part = self.reader.read(start, min(CHUNK, end - start))
                if not part:
                    return
                self.wfile.write(part)
                start += len(part)
        except (OSError, EOFError, SSHException):
            return  # who asks sees that it broke off, and asks again

    def log_message(self, *_: Any) -> None:
        """fetch.sh says what there is to say."""
