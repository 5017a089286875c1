"""The opposite of deploy.py: stops a host's server and what keeps it running; files stay. Run: make down."""

from pyinfra import host

from beeyard.operations import servers
from beeyard.spec import host_settings

prefix = host_settings(host.data.dict()).prefix
servers.stopped(name="Stop the server", prefix=str(prefix), guard=str(prefix / "bin" / "guard.py"))
