"""Looks at hosts and at what serves there, and changes nothing; `beeyard status` and `beeyard doctor` run it."""

from beeyard.deploys.examined import write_examination

write_examination()
