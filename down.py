"""The opposite of deploy.py: stops a host's server and what keeps it running; files stay. Run: make down."""

from beeyard.deploys.gateway import serves, stop_gateway
from beeyard.deploys.host_spec import our_settings
from beeyard.deploys.monitor import stop_monitor
from beeyard.operations import servers

stop_gateway()
stop_monitor()
settings = our_settings() if serves() else None
if settings is not None:
    prefix = settings.prefix
    servers.stopped(name="Stop the server", prefix=str(prefix), guard=str(prefix / "bin" / "guard.py"))
