"""What a token adds to the text, in bytes.

`tokenizers` decodes whole lists.  A stream needs the same answer token by token, and the honest unit
of a token is not text but bytes: one character may be spread over several tokens.  So the ``decoder``
section of a tokenizer.json is read here once as a rule from one token to its bytes; UTF-8 decoding
their concatenation gives what `tokenizers` gives for the list.

Two families of decoders cover the language models that are served: byte level (GPT-2, Llama 3, Qwen,
SmolLM) and SentencePiece's (Llama 2, Mistral, Gemma: ``▁`` for a space, ``<0xE2>`` for one byte).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from headstart.errors import UnsupportedModelError

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _byte_alphabet() -> dict[str, int]:
    """The character that stands for each byte in byte-level vocabularies (GPT-2's alphabet).

    Bytes that print as one Latin-1 character stand for themselves; the others follow from U+0100.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(0x100) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(hidden)}


_BYTE_OF = _byte_alphabet()


@dataclass(frozen=True, slots=True)
class TokenBytes:
    """The bytes of each token, by the rule that ``from_decoder`` read.

    ``strip`` is the one rule that belongs to the text as a whole: up to ``strip[1]`` leading
    characters ``strip[0]`` of it are dropped, by whoever joins the pieces.
    """

    byte_level: bool = False
    byte_fallback: bool = False
    replacements: tuple[tuple[str, str], ...] = ()
    dropped_from_first: str = ""
    separator: str = ""
    strip: tuple[str, int] = ("", 0)

    def __call__(self, token: str, *, first: bool) -> bytes:
        """What ``token`` adds; ``first`` says that nothing was decoded before it."""
        if self.byte_fallback and (match := _BYTE_TOKEN.fullmatch(token)):
            return bytes.fromhex(match[1])
        if first and self.dropped_from_first:
            token = token.replace(self.dropped_from_first, "")
        for old, new in self.replacements:
            token = token.replace(old, new)
        if self.byte_level:
            try:
                return bytes(map(_BYTE_OF.__getitem__, token))
            except KeyError:  # an added token, spelled in plain text
                return token.encode()
        return ("" if first else self.separator).encode() + token.encode()

    @classmethod
    def from_decoder(cls, decoder: Mapping[str, Any] | None) -> TokenBytes:
        """The rule that a tokenizer.json's ``decoder`` section states; ``None`` joins tokens with spaces.

        Raises ``UnsupportedModelError`` for a decoder that cannot be told token by token.
        """
        if decoder is None:
            return cls(separator=" ")
        rule, fused = cls(), False
        for step in _steps(decoder):
            match step:
                # After Fuse a step sees the whole text: only stripping its beginning can be told early.
                case {"type": "Strip", "content": str(content), "start": int(start), "stop": 0} if fused:
                    rule = replace(rule, strip=(content, start))
                case _ if fused or rule.byte_level:
                    raise _unsupported(step)
                case {"type": "ByteLevel"} if not rule.byte_fallback:
                    rule = replace(rule, byte_level=True)
                case {"type": "ByteFallback"}:
                    rule = replace(rule, byte_fallback=True)
                case {"type": "Fuse"}:
                    fused = True
                case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)}:
                    rule = replace(rule, replacements=(*rule.replacements, (old, new)))
                case {"type": "Metaspace", "replacement": str(mark)}:
                    drop = "" if step.get("prepend_scheme", "always") == "never" else mark
                    rule = replace(
                        rule, dropped_from_first=drop, replacements=(*rule.replacements, (mark, " "))
                    )
                case _:
                    raise _unsupported(step)
        return rule


def _steps(decoder: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    if decoder.get("type") == "Sequence":
        for step in decoder["decoders"]:
            yield from _steps(step)
    else:
        yield decoder


def _unsupported(step: Mapping[str, Any]) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"the tokenizer's decoder step {step.get('type')!r} cannot be decoded token by token there; "
        "supported are ByteLevel, or Replace, Metaspace and ByteFallback, then Fuse, then Strip at the start"
    )
