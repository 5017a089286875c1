"""What runs on hosts themselves: standard library only, Python 3.9 or newer."""
