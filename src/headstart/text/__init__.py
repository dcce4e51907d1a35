"""Text to tokens and back, without torch: tokenizer, incremental decoding, stop strings, chat templates."""

from headstart.text.request_templates import RequestTemplates
from headstart.text.stream import TextStream
from headstart.text.template import ChatTemplate
from headstart.text.tokenizer import IncrementalDecoder, Tokenizer

__all__ = ["ChatTemplate", "IncrementalDecoder", "RequestTemplates", "TextStream", "Tokenizer"]
