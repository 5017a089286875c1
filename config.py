"""pyinfra's own settings."""

from pyinfra import config

config.REQUIRE_PYINFRA_VERSION = "~=3.10"
