"""Beeyard turns a GPU machine into a verified, measured llama-server, as code."""
