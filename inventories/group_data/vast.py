"""What rented pods at Vast.ai have in common; a pod's own data, as the preset that it was rented for, come first."""

# A pod that just starts is tried again for some twenty seconds.
ssh_connect_retries = 8
ssh_connect_retry_min_delay = 1.0
ssh_connect_retry_max_delay = 4.0
ssh_strict_host_key_checking = "accept-new"
# All that is to survive a stop is on the volume.
llama_prefix = "/workspace/beeyard"
llama_preset = "gemma-4-31b"
# An SSH tunnel brings the server to you; the deploy prints the line.
llama_bind = "127.0.0.1"
