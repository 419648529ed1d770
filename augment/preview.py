"""Show sentences beside two augmented views, with the share of tokens that changed."""

import difflib
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rich.table import Table
from rich.text import Text

from augment.core.errors import AugmentationError, CannotLoad
from augment.core.keys import sequence_keys
from augment.core.pretrained import pretrained
from augment.core.ragged import Ragged
from augment.core.vocabulary import DEL_TOKEN, Vocabulary
from augment.spec.pipeline import Pipeline

VIEWS = 2


def preview(
    sentences: Sequence[str],
    tokenizer: Any,
    pipeline: Pipeline,
    seed: int,
    view_texts: Sequence[Mapping[int, str]],
) -> tuple[Table, str]:
    """Return a table of each sentence beside two views, by the keys of epoch 0 with this seed, and a summary.

    view_texts: for every view the texts that augmentations of text changed, by number (`Pipeline.texts`). A
    pipeline of such augmentations alone is shown as text, any other as its tokens decode.
    """
    batch = encode(sentences, tokenizer, Vocabulary.from_tokenizer(tokenizer))
    ids = np.arange(len(batch), dtype=np.uint64)
    views = [
        pipeline.tokens(batch, view_keys(seed, ids, view), texts) for view, texts in enumerate(view_texts)
    ]
    table = Table(show_lines=True, expand=True)
    for title in ("original", *(f"view {number}" for number in range(1, VIEWS + 1))):
        table.add_column(title, ratio=1)
    table.add_column("changed", justify="right", no_wrap=True)
    changed = np.array([[change(batch[row], view[row]) for view in views] for row in range(len(batch))])
    for row, sentence in enumerate(sentences):
        texts = [tokenizer.decode(version[row][1:-1].tolist()).strip() for version in (batch, *views)]
        if pipeline.needs_text:
            texts[0] = sentence
        if not pipeline.works_on_tokens:
            texts[1:] = [view.get(row, sentence) for view in view_texts]
        cells = [Text(text) for text in texts]
        for cell in cells:
            cell.highlight_words([DEL_TOKEN], style="bold red")
        table.add_row(*cells, Text("\n".join(f"{share:.0%}" for share in changed[row])))
    ratio = sum((view.lengths - 2).sum() for view in views) / max(VIEWS * (batch.lengths - 2).sum(), 1)
    return table, (
        f"{len(sentences):,} sentence{'s' * (len(sentences) != 1)}: {changed.mean():.0%} of the tokens "
        f"changed on average, {(changed > 0).mean():.0%} of the views differ from their sentence, and a view "
        f"has {ratio:.2f} times its tokens.\n"
        "changed = share of the longer one's tokens outside the blocks that both have in the same order."
    )


def view_keys(seed: int, ids: np.ndarray, view: int) -> np.ndarray:
    """Return the keys of a view in epoch 0 of a training run: uint64[N]."""
    return sequence_keys(seed, 0, ids, view, "augment")


def encode(sentences: Sequence[str], tokenizer: Any, vocabulary: Vocabulary) -> Ragged:
    """Return `[CLS] sentence [SEP]` for each sentence."""
    settings = {"add_special_tokens": False, "split_special_tokens": True, "verbose": False}
    rows = tokenizer(list(sentences), **settings)["input_ids"]
    return Ragged.from_sequences([[vocabulary.cls_id, *row, vocabulary.sep_id] for row in rows])


def change(original: np.ndarray, view: np.ndarray) -> float:
    """Return the share of tokens that changed, 0 to 1: those outside the blocks that both have in order."""
    before, after = original[1:-1].tolist(), view[1:-1].tolist()
    longer = max(len(before), len(after))
    if longer == 0:
        return 0.0
    blocks = difflib.SequenceMatcher(None, before, after, autojunk=False).get_matching_blocks()
    return 1.0 - sum(block.size for block in blocks) / longer


def load_tokenizer(folder: str) -> Any:
    """Load a transformers fast tokenizer from a folder, and add [DEL] if it has none, as preparation does."""
    from transformers import AutoTokenizer

    try:
        if not os.path.isdir(os.path.expanduser(folder)):
            raise CannotLoad("no such folder (a Hugging Face tokenizer folder is needed)")
        tokenizer = pretrained(AutoTokenizer, folder)
    except CannotLoad as error:
        raise AugmentationError(f"--tokenizer {folder}: {error}") from error
    if DEL_TOKEN not in tokenizer.get_vocab():
        # Not add_special_tokens, which replaces the tokenizer's other additional special tokens.
        tokenizer.add_tokens([DEL_TOKEN], special_tokens=True)
    return tokenizer


def train_tokenizer(texts: Sequence[str]) -> Any:
    """Train a WordPiece tokenizer on these texts' words alone, split at spaces and punctuation."""
    import string

    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    special = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "cls", "sep", "mask", "unk")}
    backend = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(
        vocab_size=50_000,
        min_frequency=1,
        special_tokens=[*special.values(), DEL_TOKEN],
        initial_alphabet=list(string.ascii_letters + string.digits),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=backend, additional_special_tokens=[DEL_TOKEN], **special)
