"""Encode clean texts with the tokenizer of the work folder."""

import json
import os
import re
from pathlib import Path
from typing import Any

from augment.core.ragged import Ragged
from augment.text.cleaning import SpecialTokens, for_clean_text
from pretrain.data.tokenizer import encode
from pretrain.prepare.progress import Heartbeat

_BATCH = 8192  # texts


class TextEncoder:
    """The tokenizer of a work folder.

    cls_id, sep_id: its special tokens. spelled: how many special tokens were in texts, and were read as text.
    """

    def __init__(self, work: Path, heartbeat: Heartbeat):
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # tasks run side by side: one core each
        from tokenizers import Tokenizer

        folder = work / "tokenizer"
        self._heartbeat = heartbeat
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._clean_tokenizer, _ = for_clean_text(self._tokenizer)
        for tokenizer in (self._tokenizer, self._clean_tokenizer):
            tokenizer.no_padding()
            tokenizer.no_truncation()
        added = [token.content for token in self._tokenizer.get_added_tokens_decoder().values()]
        self._added = re.compile("|".join(map(re.escape, added)) or "(?!)")
        self._special, self.spelled = SpecialTokens(self._tokenizer), 0
        # from the file: transformers takes a second to import
        settings = json.loads((folder / "tokenizer_config.json").read_text())
        self.cls_id, self.sep_id = (self._special_id(settings[f"{role}_token"]) for role in ("cls", "sep"))

    def _special_id(self, token: Any) -> int:
        number = self._tokenizer.token_to_id(token["content"] if isinstance(token, dict) else token)
        assert number is not None  # the tokenizer of a preparation has [CLS] and [SEP]
        return number

    def __call__(self, texts: list[str]) -> Ragged:
        """Return the tokens of texts, without special ones.

        All texts are clean: to clean them again would take a quarter of the time. It would change something
        only beside an added token inside a text, since the parts between are stripped.
        """
        parts = []
        for start in range(0, len(texts), _BATCH):
            batch = texts[start : start + _BATCH]
            tokenizer, given = self._clean_tokenizer, batch
            if self._added.search("\n".join(batch)) is not None:
                tokenizer, given = self._tokenizer, self._special.taken_apart(batch)
                self.spelled += self._special.count(batch)
            parts.append(encode(tokenizer, given))
            self._heartbeat.advance(sum(map(len, batch)))
        return Ragged.concatenate(parts)
