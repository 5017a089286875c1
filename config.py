"""pyinfra's own settings, and what to do when it cannot reach a host."""

import logging
import sys

from pyinfra import config, logger

config.REQUIRE_PYINFRA_VERSION = "~=3.10"

# pyinfra lets Python keep nothing of what it compiles, so that each run would compile its later imports anew: half a
# second. deploy.py and its like are never kept.
sys.dont_write_bytecode = bool(sys.flags.dont_write_bytecode)

ADVICE = (
    ". Fix: check that it is up, and ssh_hostname, ssh_port, ssh_user and ssh_key in the inventory; if the machine "
    "was made anew, forget its old host key with ssh-keygen -R"
)

CHANGED_KEY = (
    " Fix: if the machine was made anew, as a rented one is at each start, forget its old key with the ssh-keygen -R "
    "above (and -f FILE where the inventory has an ssh_known_hosts_file); if not, do not connect"
)
FAILURES = ("Could not connect", "Could not resolve hostname", "Authentication error", "SSH error", "EOF error")


class ConnectAdvice(logging.Filter):
    """pyinfra says why it cannot connect; this adds what to do. The other hosts of the run go on."""

    def filter(self, record):  # noqa: ANN001, ANN201
        """Complete the sentence."""
        if "SSH host key error" in record.getMessage():
            record.msg, record.args = f"{record.getMessage()}{CHANGED_KEY}", ()
        elif any(words in record.getMessage() for words in FAILURES):
            record.msg, record.args = f"{record.getMessage()}{ADVICE}", ()
        return True


logger.addFilter(ConnectAdvice())
