"""
The pods that `beeyard pods up vast` rented, asked of Vast.ai as they are now: VAST_API_KEY must be set.

Without a key: BEEYARD_SSH=root@ADDRESS:PORT, as Vast.ai's console shows it. More: docs/clouds.md.
"""

from beeyard.clouds.inventory import hosts as _hosts

vast = _hosts("vast")
