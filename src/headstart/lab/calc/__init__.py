"""Calculators: what a model's KV cache takes, what hits are worth in money, what block sizes lose."""
