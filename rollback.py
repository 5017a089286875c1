"""Return a host to the server and engine before the current ones, under the gate. Run: make rollback."""

from pyinfra import host

from beeyard.deploys.gateway import serves
from beeyard.deploys.host_spec import our_settings
from beeyard.operations import servers

settings = our_settings() if serves() else None
if settings is not None:
    tools = {"prefix": str(settings.prefix), "guard": str(settings.prefix / "bin" / "guard.py")}
    servers.returned(name="Return to the server before", **tools)
    servers.summarised(
        name="What serves",
        sentence=lambda state: (
            f"{host.name} went back from {state['previous']} to {state['title']}. Another `make rollback` goes "
            "forward again; the next deploy brings what the inventory says"
        ),
        **tools,
    )
