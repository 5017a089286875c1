"""What the machines at home have in common."""

# A machine that just boots is tried again.
ssh_connect_retries = 3
# Only the machine itself can reach its server; an SSH tunnel brings it to you. For the whole house set this
# to the machine's own address: then every request needs the key that the deploy makes.
llama_bind = "127.0.0.1"
