"""The test hosts of tests/testbed: `make testbed`, then `make deploy TARGET=testbed`."""

testbed = [
    ("systemd", {"ssh_port": 2201}),
    ("pod", {"ssh_port": 2202, "llama_prefix": "/workspace/beeyard"}),
    ("light", {"ssh_port": 2203}),
]
