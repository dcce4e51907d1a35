"""Loading any OpenAI-compatible server with token-exact prompts, and saying how fast it was.

Read in this order: `client` measures one streamed request, `scenarios` decides what is sent when,
`report` turns what was measured into figures.
"""
