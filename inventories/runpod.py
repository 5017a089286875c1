"""
The pods that `beeyard pods up runpod` rented, asked of RunPod as they are now: RUNPOD_API_KEY must be set.

Without a key: BEEYARD_SSH=root@ADDRESS:PORT, as RunPod's console shows it. More: docs/clouds.md.
"""

from beeyard.clouds.inventory import hosts as _hosts

runpod = _hosts("runpod")
