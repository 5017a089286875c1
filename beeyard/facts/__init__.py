"""What is: questions asked of hosts, for pyinfra."""
