"""
Machines at home. Change the names and addresses, then: make plan TARGET=homelab, make deploy TARGET=homelab.

Data of one machine stands beside it; data of all of them in group_data/homelab.py. Any of it can be overridden
for one run, as in `make deploy TARGET=homelab DATA="llama_variant=baseline"`. All keys: docs/inventories.md.
"""

homelab = [
    # A 4090 that answers to root over SSH.
    ("attic", {"ssh_hostname": "192.0.2.10", "llama_preset": "gemma-4-31b", "llama_variant": "dflash"}),
    # A 3090 with an ordinary user who may sudo without a password, and the models on another disk.
    (
        "cellar",
        {
            "ssh_hostname": "192.0.2.11",
            "ssh_user": "me",
            "_sudo": True,
            "llama_preset": "qwen3.6-27b",
            "llama_models_dir": "/mnt/models",
        },
    ),
]
