"""The commands of `beeyard`, a module a subject; ``beeyard.cli`` puts them together."""
