"""Text to token ids and back, through the `tokenizers` library."""

from __future__ import annotations

import codecs
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

import tokenizers
from tokenizers.processors import TemplateProcessing

from headstart.errors import CorruptModelError, ModelNotFoundError, RequestError
from headstart.text.model_files import eos_ids, read_json, read_text, require_directory, special_tokens
from headstart.text.token_bytes import TokenBytes


class Tokenizer:
    """A model's tokenizer: ``encode`` text, ``decode`` ids, and the ids that end an answer.

    ``bos_token`` and ``eos_token`` count as special whatever the library says of them.
    ``eos_token_ids`` are further ids that end an answer.
    """

    def __init__(
        self,
        library: tokenizers.Tokenizer,
        *,
        bos_token: str | None = None,
        eos_token: str | None = None,
        eos_token_ids: Iterable[int] = (),
    ) -> None:
        self._library = library
        # Settings of the training run, which some files still carry; serving must not cut a prompt.
        library.no_truncation()
        library.no_padding()
        # Nor may the words of a prompt outlive it in the library's cache; encoding takes a fifth longer so.
        if forget_words := getattr(library.model, "_resize_cache", None):
            forget_words(0)
        self.bos_token = bos_token
        self.eos_token = eos_token
        markers = [token for token in (bos_token, eos_token) if token is not None]
        # A marker that is only a word of the vocabulary would be cut into pieces on its way in.
        added = {token.content for token in library.get_added_tokens_decoder().values()}
        library.add_special_tokens([token for token in markers if token not in added])

        vocab = library.get_vocab()
        self.vocab_size = max(vocab.values(), default=-1) + 1
        """One more than the largest token id; a few ids below it may have no token."""
        self.longest_token = max(map(len, vocab), default=0)
        """Characters of the longest token, as the vocabulary spells it."""
        self.eos_token_ids = frozenset(eos_token_ids) | self._ids_of(eos_token)
        """Ids that end an answer: whatever the model's files name."""
        self.token_bytes = TokenBytes.from_decoder(
            json.loads(library.decoder.__getstate__()) if library.decoder else None
        )
        special = {i for i, token in library.get_added_tokens_decoder().items() if token.special}
        self._special_ids = self._ids_of(*markers) | special

    @classmethod
    def from_directory(cls, path: str | Path) -> Tokenizer:
        """The tokenizer of a model directory: ``tokenizer.json`` and, where present, the files beside it.

        Raises ``ModelNotFoundError`` without a ``tokenizer.json``, ``CorruptModelError`` if a file is
        broken, ``UnsupportedModelError`` for a decoder that cannot stream.
        """
        directory = require_directory(path)
        source = directory / "tokenizer.json"
        text = read_text(source)
        if text is None:
            raise ModelNotFoundError(f"{directory} has no tokenizer.json")
        try:
            library = tokenizers.Tokenizer.from_str(text)
        except Exception as error:  # the library raises nothing narrower
            raise CorruptModelError(f"{source} is not a tokenizer: {error}") from error
        named = special_tokens(directory)
        for name in ("bos_token", "eos_token"):
            if name in named and library.token_to_id(named[name]) is None:
                raise CorruptModelError(f"{name} {named[name]!r} of {directory} is not in its tokenizer.json")
        config = read_json(directory / "tokenizer_config.json")
        adds = {name: config.get(f"add_{name}") for name in ("bos_token", "eos_token")}
        if any(value is not None for value in adds.values()):
            # Said in so many words, it overrides what tokenizer.json does, as in `transformers`.
            wanted = {name: bool(adds[name]) and name in named for name in adds}
            library.post_processor = _begin_and_end(library, named, **wanted)
        return cls(
            library,
            bos_token=named.get("bos_token"),
            eos_token=named.get("eos_token"),
            eos_token_ids=eos_ids(directory),
        )

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """The text's token ids, with the model's beginning-of-text token if it wants one.

        A chat template writes its special tokens itself: encode its output with
        ``add_special_tokens=False``.  Raises ``RequestError`` for half a surrogate pair, which JSON
        can spell and UTF-8 cannot.
        """
        [token_ids] = self.encode_all([text], add_special_tokens)
        return token_ids

    def encode_all(self, texts: Sequence[str], add_special_tokens: bool = True) -> list[list[int]]:
        """As `encode`, each of many texts, side by side on all cores."""
        for text in texts:
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise RequestError(
                    f"text must be valid Unicode: character {error.start} is half a surrogate pair",
                    code="invalid_value",
                ) from error
        # Of the library's ways to encode, only those for batches let other threads run meanwhile.
        encoded = self._library.encode_batch_fast(list(texts), add_special_tokens=add_special_tokens)
        return [one.ids for one in encoded]

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of the ids; bytes that are not UTF-8 become U+FFFD, as Unicode recommends.

        Where `tokenizers` would replace a whole run of byte tokens for one bad byte among them, the good
        characters of that run survive, since a stream has already shown them.  Raises ``RequestError``
        for an id that has no token.
        """
        for token_id in token_ids:
            if self.token(token_id) is None:
                raise RequestError(
                    f"token id {token_id} has no token; this tokenizer's ids are below {self.vocab_size}",
                    code="invalid_value",
                )
        decoder = IncrementalDecoder(self, skip_special_tokens)
        return decoder.push(token_ids) + decoder.finish()

    def token(self, token_id: int) -> str | None:
        """The token as the vocabulary spells it, or ``None`` if there is none of that id."""
        return self._library.id_to_token(token_id) if 0 <= token_id < self.vocab_size else None

    def is_special(self, token_id: int) -> bool:
        """Whether the token is markup (an end-of-turn token, say) rather than text."""
        return token_id in self._special_ids

    def special_ids(self, tokens: Iterable[str]) -> dict[str, int]:
        """Those of ``tokens`` that are special tokens of this vocabulary, with their ids."""
        ids = {token: self._library.token_to_id(token) for token in tokens}
        return {token: number for token, number in ids.items() if number in self._special_ids}

    def _ids_of(self, *tokens: str | None) -> frozenset[int]:
        ids = (self._library.token_to_id(token) for token in tokens if token is not None)
        return frozenset(token_id for token_id in ids if token_id is not None)


class IncrementalDecoder:
    """Text from token ids that arrive a few at a time; never half a character.

    All pieces of ``push`` and ``finish``, joined, are ``tokenizer.decode`` of all ids.  Work is constant
    per token, and a begun character, three bytes at most, is all that is held back.  An id that has no
    token adds no text: a model's embedding is often larger than its tokenizer, so it can be sampled.
    ``continued`` is for ids that follow others: the rules for a text's beginning do not apply.
    Special tokens with a ``visible`` id are text, whatever becomes of the others.

    (`tokenizers`' own `DecodeStream` holds back for as long as the text ends in U+FFFD, and cannot be
    asked for the rest.)
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        skip_special_tokens: bool = True,
        *,
        continued: bool = False,
        visible: Collection[int] = (),
    ) -> None:
        self._tokenizer = tokenizer
        self._visible = frozenset(visible)
        self._skip_special_tokens = skip_special_tokens
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._first = not continued
        self._strip, self._num_strippable = tokenizer.token_bytes.strip
        if continued:
            self._num_strippable = 0

    def push(self, token_ids: Iterable[int]) -> str:
        """The text that these ids complete."""
        pieces = []
        for token_id in token_ids:
            if self._skips(token_id):
                continue
            token = self._tokenizer.token(token_id)
            if token is not None:
                pieces.append(self._tokenizer.token_bytes(token, first=self._first))
                self._first = False
        return self._without_lead(self._utf8.decode(b"".join(pieces)))

    def finish(self) -> str:
        """U+FFFD if a character was begun and never completed, else nothing."""
        return self._without_lead(self._utf8.decode(b"", final=True))

    def _skips(self, token_id: int) -> bool:
        special = self._skip_special_tokens and self._tokenizer.is_special(token_id)
        return special and token_id not in self._visible

    def _without_lead(self, text: str) -> str:
        while text and self._num_strippable:
            if not text.startswith(self._strip):
                self._num_strippable = 0
                break
            text = text[len(self._strip) :]
            self._num_strippable -= 1
        return text


def _begin_and_end(
    library: tokenizers.Tokenizer, named: Mapping[str, str], *, bos_token: bool, eos_token: bool
) -> TemplateProcessing:
    """The post-processor that adds just these tokens around a text."""
    begin = [named["bos_token"]] if bos_token else []
    end = [named["eos_token"]] if eos_token else []
    return TemplateProcessing(
        single=[*begin, "$A", *end],
        special_tokens=[(token, library.token_to_id(token)) for token in dict.fromkeys(begin + end)],
    )
