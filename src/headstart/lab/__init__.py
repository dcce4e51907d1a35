"""The lab: load a server, and later replay and explain its traffic.  No torch."""
