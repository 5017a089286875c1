"""What the test hosts have in common. Their hard memlock limit is 8 MiB, as on some machines of users."""

ssh_user = "root"
ssh_hostname = "127.0.0.1"
ssh_key = ".testbed/id_ed25519"
ssh_known_hosts_file = ".testbed/known_hosts"
ssh_strict_host_key_checking = "yes"
ssh_connect_retries = 5
llama_preset = "tiny"
llama_memlock = 8388608
