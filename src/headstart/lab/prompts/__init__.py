"""Prompts as text: what in them varies from request to request, how they are laid out, and what to change."""
