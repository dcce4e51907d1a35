"""Recorded traffic: its formats, and the one shape that all of them become."""
