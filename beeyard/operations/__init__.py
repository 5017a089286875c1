"""What shall be: idempotent steps on hosts, for pyinfra."""
