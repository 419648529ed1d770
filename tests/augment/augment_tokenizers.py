"""Train small tokenizers of the three families on a few sentences."""

import string
from typing import Any

TEXTS = [
    "The good movie was a big surprise, and everyone liked the big film (good films are rare).",
    "A house is big; HOUSE and House, HOME and Home, DWELLING and Dwelling: one word, said she.",
    "Don't run 42x: she ran well, he walked home. unbelievable unbelievably rewritten cinematography",
    "good big movie film films house home the a is was and well fine great large dwelling",
] * 5
ASCII = list(string.printable.strip())
SPECIAL = {
    "pad_token": "[PAD]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
    "unk_token": "[UNK]",
}


def byte_level(size: int = 420, delete: bool = True) -> Any:
    """Return a byte-level BPE without a leading space, as GPT-2 and RoBERTa have it."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    return _finish(backend, trainers.BpeTrainer, size, delete, initial_alphabet=alphabet)


def word_piece(size: int = 400, lowercase: bool = True, delete: bool = True) -> Any:
    """Return a WordPiece tokenizer, as BERT has it."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    backend = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    return _finish(backend, trainers.WordPieceTrainer, size, delete, initial_alphabet=ASCII)


def metaspace(size: int = 260, delete: bool = True) -> Any:
    """Return a Unigram tokenizer with SentencePiece's mark, as XLM-R has it."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    backend = Tokenizer(models.Unigram())
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    return _finish(backend, trainers.UnigramTrainer, size, delete, unk_token="[UNK]", initial_alphabet=ASCII)


def _finish(backend: Any, trainer: type, size: int, delete: bool, **options: Any) -> Any:
    from transformers import PreTrainedTokenizerFast

    special = [*SPECIAL.values(), *(["[DEL]"] if delete else [])]
    trained = trainer(vocab_size=size, special_tokens=special, show_progress=False, **options)
    backend.train_from_iterator(TEXTS, trained)
    more = {"additional_special_tokens": ["[DEL]"]} if delete else {}
    return PreTrainedTokenizerFast(tokenizer_object=backend, **SPECIAL, **more)
