"""Fixtures that several rings share."""
