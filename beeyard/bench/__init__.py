"""The benchmark: did drafting help here, by how much, and is the answer still good? HTTP only, no pyinfra."""
