"""The HTTP process: OpenAI-compatible routes, streaming, metrics.  Imports no torch."""
