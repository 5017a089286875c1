"""What a host gets, in order. Run: make deploy TARGET=homelab, or pyinfra inventories/homelab.py deploy.py."""

from beeyard.deploys import driver, fetch
from beeyard.deploys.firewall import put_firewall
from beeyard.deploys.gateway import gateway_plan, put_gateway, serves
from beeyard.deploys.host_spec import host_plan
from beeyard.deploys.monitor import let_monitors_in, monitor_plan, put_monitor
from beeyard.deploys.prepare import prepare
from beeyard.deploys.questions import questions
from beeyard.deploys.serve import serve

# None: this host cannot have its server, and was told why. Nothing was changed on it.
plan = None if not serves() or driver.comes_first() else host_plan()
if plan is not None:
    prepare(plan=plan, questions=questions(plan))
    fetch.engine(plan=plan)
    fetch.models(plan=plan)
    serve(plan=plan)

# Of a host of group `gateway`, behind which the servers of the inventory are.
gateway = gateway_plan()
if gateway is not None:
    put_gateway(gateway=gateway)

# Of a host of group `monitor`, which watches all the others.
let_monitors_in()
monitor = monitor_plan()
if monitor is not None:
    put_monitor(monitor=monitor)

# Where the data asks for it: SSH and what the above serves to others stay open, nothing else.
put_firewall(spec=plan.spec if plan is not None else None, gateway=gateway)
