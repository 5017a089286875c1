"""This machine, as the user that you are: `make up`. Everything lies below .beeyard/local in this clone."""

local = [
    (
        "@local",
        {
            "llama_preset": "smol",
            "llama_runtime": "supervisor",
            "llama_prefix": ".beeyard/local",
            "llama_user": "self",
        },
    )
]
