"""Kernels in C for what torch's operators are slow at; nothing needs them."""

from headstart.model.native.library import load_library

__all__ = ["load_library"]
