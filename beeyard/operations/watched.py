"""Commands that take long, and whose progress is seen while they run."""

from typing import Any

import gevent  # type: ignore[import-untyped]
from pyinfra import logger
from pyinfra.api import QuoteString, StringCommand

# Soon at first, so that what takes seconds is seen, too.
FIRST_S, LONGEST_S = 1, 10
# What is the command's own, and not how its host is reached.
OWN = ("_stdin", "_timeout")


class WatchedCommand(StringCommand):
    """
    A command that writes its progress into a file on the host; the file's last line is shown now and then.

    pyinfra shows nothing of a command before its end.
    """

    progress_file: str

    def execute(self, state: Any, host: Any, connector_arguments: Any) -> Any:
        """Run it, with a second command beside it that looks."""
        beside = {key: value for key, value in connector_arguments.items() if key not in OWN}
        watcher = gevent.spawn(_watch, host, self.progress_file, beside)
        try:
            return super().execute(state, host, connector_arguments)
        finally:
            watcher.kill()


def watched(command: StringCommand, progress_file: str) -> WatchedCommand:
    """
    The same command, watched.

    :param progress_file: on the host; its last line says how far the command is.
    """
    made = WatchedCommand(*command.bits, _separator=command.separator, **command.connector_arguments)
    made.progress_file = progress_file
    return made


def _watch(host: Any, progress_file: str, connector_arguments: Any) -> None:
    look = StringCommand("tail -n 1", QuoteString(progress_file), "2>/dev/null || true")
    shown, pause_s = "", FIRST_S
    while True:
        gevent.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_S)
        _, output = host.run_shell_command(look, **connector_arguments)
        line = output.stdout.strip()
        if line and line != shown:
            logger.info(f"{host.print_prefix}{line}")
            shown = line
