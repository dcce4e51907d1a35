"""Decision logs: what an engine's cache decided, read and decided again."""
