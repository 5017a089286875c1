"""The test hosts of tests/testbed: `make testbed`, then `make deploy TARGET=testbed`."""

testbed = [
    ("systemd", {"ssh_port": 2201}),
    ("pod", {"ssh_port": 2202, "llama_prefix": "/workspace/beeyard"}),
    ("light", {"ssh_port": 2203}),
    # Debian 13 with a Docker Engine of its own, for runtime compose; `make image` first.
    (
        "docker",
        {
            "ssh_port": 2204,
            "llama_runtime": "compose",
            "llama_docker": "distribution",
            "llama_engine": "llama.cpp-b11434",
        },
    ),
]
