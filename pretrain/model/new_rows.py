"""Give tokens that a checkpoint does not know a row in its embedding and in its masked-language head.

A new word begins as the mean of the pieces that it replaces, as in fast vocabulary transfer (Gee et al. 2022,
"Fast Vocabulary Transfer for Language Model Compression"). That paper speaks of embeddings; the head's row,
where it is not the same, and its bias begin as means of the same pieces. Any other token, as [DEL], begins as
the mean of all rows, in the middle of the known ones (Hewitt 2021, "Initializing new word embeddings").
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedModel

from augment.core.pretrained import has_tokenizer, pretrained


def own_tokenizer(source: str | Path) -> Any:
    """Return a checkpoint's own tokenizer; None where it brings none."""
    if not has_tokenizer(source):
        return None
    try:
        return pretrained(AutoTokenizer, source)
    except (OSError, ValueError, KeyError):
        return None


def add_rows(lm: PreTrainedModel, tokenizer: Any, own: Any) -> None:
    """Grow a masked language model for the tokens that `tokenizer` has more than `own`, its own tokenizer.

    Rows that there are stay. own: None where the checkpoint brings none; then all new rows are the mean.
    """
    old, size = lm.config.vocab_size, len(tokenizer)
    if size > old:
        lm.resize_token_embeddings(size, mean_resizing=False)
    replaced = {} if own is None else pieces_of_new_words(tokenizer, own)
    with torch.no_grad():
        for table in _tables(lm):
            table[old:] = table[:old].mean(0)
            for number, pieces in replaced.items():
                table[number] = table[pieces].mean(0)


def pieces_of_new_words(tokenizer: Any, own: Any) -> dict[int, list[int]]:
    """Return the ids of new words, each with the ids of the pieces that `own` takes it apart into.

    No words are special tokens, and those that `own` does not know at all.
    """
    known, special = own.get_vocab(), set(tokenizer.all_special_tokens)
    model = own.backend_tokenizer.model
    found = {}
    for token, number in tokenizer.get_vocab().items():
        if token in known or token in special:
            continue
        pieces = [piece.id for piece in model.tokenize(token)]
        if pieces and own.unk_token_id not in pieces:
            found[number] = pieces
    return found


def _tables(lm: PreTrainedModel) -> list[Tensor]:
    """Return what has a row for each token: the embedding, the head's weight where it is not the same, and
    its bias."""
    output = lm.get_output_embeddings()
    tables = (lm.get_input_embeddings().weight, output.weight, output.bias)
    return list({id(table): table for table in tables if table is not None}.values())
