"""The opposite of deploy.py: stops a host's server and what keeps it running; files stay. Run: make down."""

from beeyard.deploys.host_spec import our_settings
from beeyard.operations import servers

settings = our_settings()
if settings is not None:
    prefix = settings.prefix
    servers.stopped(name="Stop the server", prefix=str(prefix), guard=str(prefix / "bin" / "guard.py"))
