"""What the machines at home have in common."""

# A machine that just boots is tried again for some ten seconds.
ssh_connect_retries = 6
ssh_connect_retry_min_delay = 1.0
ssh_connect_retry_max_delay = 3.0
# Only the machine itself can reach its server; an SSH tunnel brings it to you. For the whole house set this
# to the machine's own address: then every request needs the key that the deploy makes.
llama_bind = "127.0.0.1"
