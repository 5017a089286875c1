"""Rented machines: what is offered, rented, reached, and ended again. HTTP and SSH only; no pyinfra."""
