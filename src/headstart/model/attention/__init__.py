"""Attention over blocks: one protocol, several ways to compute it."""

from headstart.model.attention.fused import FusedAttention, fused_attention
from headstart.model.attention.protocol import AttentionBackend, AttentionStep
from headstart.model.attention.reference import ReferenceAttention
from headstart.model.attention.sdpa import SdpaAttention

__all__ = [
    "AttentionBackend",
    "AttentionStep",
    "FusedAttention",
    "ReferenceAttention",
    "SdpaAttention",
    "fused_attention",
]
