"""Removes the model files of ours that nothing on the host names any more. Run: make prune."""

from beeyard.deploys.gateway import serves
from beeyard.deploys.prune import prune

if serves():
    prune(name="Remove models that nothing names")
