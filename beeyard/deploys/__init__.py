"""What a host gets: operations in order, for pyinfra."""
