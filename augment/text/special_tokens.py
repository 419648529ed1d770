"""Read the spelling of a special token in a text, as "[SEP]" in an article on encoders, as text."""

import re
from typing import Any


class SpecialTokens:
    """The special tokens of a `tokenizers.Tokenizer`, which from now on reads their spelling as text."""

    def __init__(self, tokenizer: Any):
        spelled = [t.content for t in tokenizer.get_added_tokens_decoder().values() if t.special]
        self._spelled = re.compile("|".join(map(re.escape, spelled)) or "(?!)")
        # Unigram has special tokens among its pieces, and finds them there
        self._is_unigram = type(tokenizer.model).__name__ == "Unigram"
        tokenizer.encode_special_tokens = True

    def count(self, texts: list[str]) -> int:
        """Return how many special tokens are spelled in texts."""
        return sum(len(self._spelled.findall(text)) for text in texts)

    def taken_apart(self, texts: list[str]) -> list[str]:
        """Return the texts as the tokenizer must have them."""
        if not self._is_unigram:
            return texts
        return [self._spelled.sub(lambda found: f"{found[0][0]} {found[0][1:]}", text) for text in texts]
