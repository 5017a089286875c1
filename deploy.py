"""What a host gets, in order. Run: make deploy TARGET=homelab, or pyinfra inventories/homelab.py deploy.py."""

from beeyard.deploys import driver, fetch
from beeyard.deploys.host_spec import host_plan
from beeyard.deploys.prepare import prepare
from beeyard.deploys.serve import serve

# None: this host cannot have its server, and was told why. Nothing was changed on it.
plan = None if driver.comes_first() else host_plan()
if plan is not None:
    prepare(plan=plan)
    fetch.engine(plan=plan)
    fetch.models(plan=plan)
    serve(plan=plan)
