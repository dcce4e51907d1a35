"""From what a log's request says to the tokens that its model saw, and back."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Any

from rich.progress import Progress

from headstart.config import ModelConfig
from headstart.errors import RequestError
from headstart.model.source import resolve
from headstart.text import ChatTemplate, Tokenizer


class PromptReader:
    """A model's tokenizer and chat template, as a server of that model would use them.

    Without a template a conversation is written as ChatML, which most are close to, with its tools and calls:
    what matters to a prefix cache is which prompts begin alike.
    """

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate | None = None) -> None:
        self.tokenizer = tokenizer
        self._template = template or ChatTemplate(_CHATML)

    @classmethod
    def from_model(cls, name: str, progress: Progress | None = None) -> PromptReader:
        """Of a built-in model, a directory, a GGUF file or a hub id.  Raises ``ModelError``."""
        directory = resolve(name, progress=progress).tokenizer_dir
        return cls(Tokenizer.from_directory(directory), ChatTemplate.from_directory(directory))

    @classmethod
    def of(cls, name: str | None, progress: Progress | None = None) -> PromptReader:
        """`from_model`; for None the embedded model's tokenizer with ChatML, for a model that is not known.

        The embedded model's own template would add a system prompt of its own, and tools in Hermes' words.
        """
        if name is not None:
            return cls.from_model(name, progress)
        return cls(Tokenizer.from_directory(resolve(ModelConfig().model, progress=progress).tokenizer_dir))

    def body_text(self, body: Mapping[str, Any]) -> str:
        """The whole prompt that an OpenAI request's body asks for, as text.

        Raises ``RequestError`` for a body that is none, and for a prompt given as token ids.
        """
        if "messages" not in body:
            prompt = body.get("prompt")
            if isinstance(prompt, str):
                return prompt
            raise RequestError("the request has neither messages nor a prompt as text", param="prompt")
        messages, tools = body["messages"], body.get("tools")
        if not isinstance(messages, list) or not messages:
            raise RequestError("messages must be a list of at least one message", param="messages")
        if tools is not None and not isinstance(tools, list):
            raise RequestError("tools must be a list", param="tools")
        variables = body.get("chat_template_kwargs") or {}
        if not isinstance(variables, Mapping):
            raise RequestError("chat_template_kwargs must be an object", param="chat_template_kwargs")
        return self._template.render(
            [_as_system(message) for message in messages],
            add_generation_prompt=body.get("add_generation_prompt") is not False,
            tools=tools,
            **{name: value for name, value in variables.items() if name not in _RESERVED},
        )

    def body_tokens(self, body: Mapping[str, Any]) -> array[int]:
        """The same as token ids; a prompt that has them already is taken as it is."""
        prompt = body.get("prompt")
        if "messages" not in body and isinstance(prompt, list):
            return array("i", prompt)
        return self.tokens(self.body_text(body), add_special_tokens="messages" not in body)

    def tokens(self, text: str, *, add_special_tokens: bool = False) -> array[int]:
        """A text's token ids."""
        return array("i", self.tokenizer.encode(text, add_special_tokens=add_special_tokens))

    def text(self, token_ids: Sequence[int]) -> str:
        """The text of token ids, special tokens included."""
        return self.tokenizer.decode(token_ids, skip_special_tokens=False)


_RESERVED = {"self", "messages", "tools", "add_generation_prompt"}
_CHATML = (
    "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] or '' }}"
    "{% if message['tool_calls'] %}{{ message['tool_calls'] | tojson }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def _as_system(message: Any) -> Any:
    """Templates know no developer: OpenAI's newer word for the system role."""
    if isinstance(message, Mapping) and message.get("role") == "developer":
        return {**message, "role": "system"}
    return message
