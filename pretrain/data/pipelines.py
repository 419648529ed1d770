"""Build augmentation pipelines for prepared data, with its tokenizer and, where they need it, its text."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from augment.core.vocabulary import Vocabulary
from augment.spec.build import build
from augment.spec.grammar import needs_synonyms, needs_text
from augment.spec.pipeline import Pipeline
from augment.text.encoder import TextEncoder
from augment.tokens.synonyms import SynonymTable
from pretrain.common.errors import UserError
from pretrain.data.annotation import WHOLE
from pretrain.data.shards import ShardReader


def synonyms_for(
    specs: Iterable[str], path: Path | str | None, tokenizer: Any, vocabulary: Vocabulary
) -> SynonymTable | None:
    """Load the synonym table if any of the specifications needs one: loading takes seconds."""
    return SynonymTable.load(path, tokenizer, vocabulary) if any(map(needs_synonyms, specs)) else None


def build_for(
    reader: ShardReader, spec: str, vocabulary: Vocabulary, synonyms: SynonymTable | None
) -> Pipeline:
    """Build the pipeline of a specification for views of this data.

    Raises:
        AugmentationError: the specification is wrong, or what it needs is missing.
        UserError: it has augmentations of text, and the data was prepared without them, or has texts that
            were cut.
    """
    if not needs_text(spec):
        return build(spec, vocabulary, synonyms)
    if reader.annotation is None:
        raise UserError(
            f"the augmentation {spec!r} works on text, and {reader.folder} holds tokens only: prepare the "
            "data with "
            "--annotate MODEL (a spaCy pipeline, such as en_core_web_sm), which keeps text and parse beside "
            "the tokens"
        )
    if reader.annotation.get("texts") != WHOLE:
        raise UserError(
            f"the augmentation {spec!r} works on whole texts, and {reader.folder} was annotated by an "
            "earlier version, which cut "
            f"them to {reader.max_length} tokens before it parsed them: prepare the data again "
            "(--overwrite)"
        )
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(reader.tokenizer_path / "tokenizer.json"))
    encoder = TextEncoder(tokenizer, vocabulary.cls_id, vocabulary.sep_id, reader.max_length)
    return build(spec, vocabulary, synonyms, encoder)
