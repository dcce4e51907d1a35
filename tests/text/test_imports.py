from __future__ import annotations

import subprocess
import sys


def test_text_needs_neither_torch_nor_transformers_nor_numpy() -> None:
    """In a fresh interpreter, and after the package was used, not only imported."""
    program = """
import sys
from headstart.text import ChatTemplate, IncrementalDecoder, TextStream, Tokenizer
ChatTemplate("{{ messages[0].content }}").render([{"role": "user", "content": "hi"}])
print(*sorted({"torch", "transformers", "numpy", "huggingface_hub"} & sys.modules.keys()))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
