"""Train a tokenizer on a sample, or take an existing one and give it [DEL]; load and identify it."""

import hashlib
import json
import os
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from augment.core.errors import CannotLoad
from augment.core.pretrained import has_tokenizer, pretrained
from augment.core.ragged import Ragged
from augment.text.cleaning import with_cleaning, without_cleaning
from pretrain.common.errors import UserError
from pretrain.common.files import filled_folder, library_errors
from pretrain.common.run_folder import read_json_file

if TYPE_CHECKING:
    from tokenizers import Tokenizer

DEL = "[DEL]"
MOST_ACCENTED = 0.002
"""Share of letters that `lowercase: auto` may take something from; English Wikipedia has 0.0009."""
_ROLES = {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
_SENTENCES = ("A man plays the guitar.", "the 3rd of May", "Über den Fluss", "(nobody) was there")
LEAST_ALPHABET = 128
"""Characters of a small vocabulary: those of a language with some punctuation."""
_WORDPIECE_ROLES = {"unk_token": "[UNK]"}
_STAND_INS = {"cls_token": "bos_token", "sep_token": "eos_token"}  # of a decoder's tokenizer, as Gemma's


def round_vocabulary(size: int) -> int:
    """Return the next multiple of 64, for tensor cores."""
    return -(-size // 64) * 64


def train_tokenizer(
    texts: Iterable[str],
    kind: str,
    vocabulary: int,
    lowercase: bool = False,
    max_length: int = 512,
    exact: bool = False,
) -> Any:
    """Train byte-level BPE (`bpe`) or WordPiece (`wordpiece`); return a PreTrainedTokenizerFast.

    Special tokens have the lowest ids: [PAD] [CLS] [SEP] [MASK] [DEL], and [UNK] for WordPiece.
    `tokenizer(text)` gives [CLS] text [SEP]. A byte-level tokenizer puts a blank before the text, so that a
    word has the same token at the beginning as inside. The result depends on the texts alone. The
    vocabulary is rounded up to a multiple of 64 unless `exact`; a text too small to fill it gives a smaller
    one, made a multiple with [unusedN] tokens.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    wordpiece = kind == "wordpiece"
    if not exact:
        vocabulary = round_vocabulary(vocabulary)
    roles = {**_ROLES, **(_WORDPIECE_ROLES if wordpiece else {})}
    special = [*roles.values(), DEL]
    shared: dict[str, Any] = {"vocab_size": vocabulary, "special_tokens": special, "show_progress": False}
    if wordpiece:
        tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=300))  # of Thai
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase, strip_accents=lowercase)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = decoders.WordPiece(prefix="##")
        texts = sample = list(texts)
        alphabet = _alphabet(sample, tokenizer.normalizer, vocabulary)
        # Ties between merges are broken by the pieces' numbers, and the trainer numbers "##x" as it meets
        # them in a randomly seeded map. Named as special tokens they have their numbers beforehand.
        # BERT's normalizer makes a word of an ideograph, so that it is never inside one.
        apart = re.compile("[\u4e00-\u9fff\u3400-\u4dbf]")
        inner = [character for character in alphabet if not apart.match(character)]
        shared["special_tokens"] = [*special, *(f"##{character}" for character in inner)]
        trainer: Any = trainers.WordPieceTrainer(
            **shared, continuing_subword_prefix="##", initial_alphabet=alphabet, limit_alphabet=len(alphabet)
        )
    else:
        tokenizer = Tokenizer(models.BPE())
        folding = [normalizers.NFD(), normalizers.Lowercase(), normalizers.StripAccents()]
        tokenizer.normalizer = normalizers.Sequence(folding if lowercase else [normalizers.NFC()])
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(**shared, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.train_from_iterator(texts, trainer)
    if tokenizer.get_vocab_size() <= len(special):
        raise UserError("The text sample is empty: there is nothing to train a tokenizer on.")
    return _wrap(_canonical(tokenizer, special, wordpiece, exact), roles, max_length)


def tokenizer_of(texts: Iterable[str]) -> Any:
    """Train a tokenizer on a few texts, to look at them: its tokens are mostly whole words."""
    return train_tokenizer(texts, "wordpiece", 50_000, exact=True)


def accented_share(texts: Iterable[str]) -> float:
    """Return the share of letters that lose an accent, a vowel sign or a part where accents are stripped."""
    letters = lost = 0
    for text in texts:
        if text.isascii():
            letters += sum(map(str.isalpha, text))
            continue
        marks = [unicodedata.category(character) == "Mn" for character in text]
        letters += sum(map(str.isalpha, text)) + sum(marks)
        lost += sum(marks) + sum(unicodedata.normalize("NFD", c) != c for c in text if c.isalpha())
    return lost / max(1, letters)


def _alphabet(texts: list[str], normalizer: Any, vocabulary: int) -> list[str]:
    """Return the most frequent characters of the normalised texts, sorted; words with others become [UNK].

    They are 99.95% of the text, as SentencePiece's, if half of the vocabulary holds them (Chinese has
    thousands); more where a 32nd of it does: each takes two pieces, "x" and "##x". BERT's has 997.
    """
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(normalizer.normalize_str(text))
    frequent = sorted((c for c in counts if not c.isspace()), key=lambda c: (-counts[c], c))
    enough = 0.9995 * sum(counts[character] for character in frequent)
    covered = accumulate(counts[character] for character in frequent)
    needed = 1 + sum(1 for count in covered if count < enough)
    return sorted(frequent[: max(LEAST_ALPHABET, vocabulary // 32, min(needed, vocabulary // 2))])


def _canonical(tokenizer: "Tokenizer", special: list[str], wordpiece: bool, exact: bool) -> "Tokenizer":
    """Renumber a tokenizer's tokens, so that ids do not depend on a hash map's order; it cleans.

    WordPiece matching does not look at the numbers, so they are handed out again: special tokens, then
    pieces by length and spelling. The vocabulary is padded to a multiple of 64.
    """
    from tokenizers import Tokenizer

    content = json.loads(tokenizer.to_str())
    vocabulary = content["model"]["vocab"]
    if wordpiece:
        known = set(special)
        pieces = sorted(vocabulary.keys() - known, key=lambda p: (len(p.removeprefix("##")), p))
        vocabulary = {piece: number for number, piece in enumerate([*special, *pieces])}
        content["added_tokens"] = [token for token in content["added_tokens"] if token["content"] in known]
    size = len(vocabulary)
    for number in range(size, size if exact else round_vocabulary(size)):
        vocabulary[f"[unused{number - size}]"] = number
    content["model"]["vocab"] = vocabulary
    return Tokenizer.from_str(json.dumps(with_cleaning(content), ensure_ascii=False))


def _wrap(tokenizer: "Tokenizer", roles: dict[str, str], max_length: int) -> Any:
    from tokenizers import processors
    from transformers import PreTrainedTokenizerFast

    pair = [("[CLS]", tokenizer.token_to_id("[CLS]")), ("[SEP]", tokenizer.token_to_id("[SEP]"))]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=pair
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=max_length,
        additional_special_tokens=[DEL],
        clean_up_tokenization_spaces=False,
        **roles,
    )


def adopt_tokenizer(place: str, max_length: int) -> Any:
    """Load an existing fast tokenizer (folder or Hugging Face name), with [DEL] added if it lacks it."""
    from transformers import AutoTokenizer

    try:
        tokenizer = pretrained(AutoTokenizer, place, use_fast=True)
        if not has_tokenizer(place):
            raise CannotLoad("the folder has no tokenizer.json")
    except CannotLoad as error:
        mend = "Name a folder with tokenizer.json, or leave it out"
        raise UserError(f"tokenizer {place} cannot be opened: {error}. {mend}.") from error
    if not tokenizer.is_fast:
        raise UserError(f"tokenizer {place} has no fast version (tokenizer.json); convert it first.")
    tokenizer = _as_written(tokenizer, place)
    for role, other in _STAND_INS.items():
        if getattr(tokenizer, role) is None:
            setattr(tokenizer, role, getattr(tokenizer, other))
    missing = [role for role in _ROLES if getattr(tokenizer, role) is None]
    if missing:
        raise UserError(f"tokenizer {place} has no {', '.join(missing)}: training needs them.")
    if DEL not in tokenizer.get_vocab():
        tokenizer.add_special_tokens({"additional_special_tokens": [DEL]}, replace_extra_special_tokens=False)
    tokenizer.model_max_length = min(tokenizer.model_max_length, max(max_length, 512))
    inner = tokenizer("word", add_special_tokens=False)["input_ids"]
    if tokenizer("word")["input_ids"] != [tokenizer.cls_token_id, *inner, tokenizer.sep_token_id]:
        raise UserError(f"tokenizer {place} does not write {tokenizer.cls_token} text {tokenizer.sep_token}")
    return cleaning_tokenizer(tokenizer)


def _as_written(tokenizer: Any, place: str) -> Any:
    """Return a SentencePiece Unigram tokenizer as its tokenizer.json has it.

    transformers builds XLM-R's anew, and of its normalizer takes a compiled table alone: any other step would
    be lost, and texts would have other ids than those that the checkpoint was trained with.
    """
    from tokenizers import Tokenizer
    from transformers.utils import cached_file

    if type(tokenizer.backend_tokenizer.model).__name__ != "Unigram":
        return tokenizer
    folder = os.path.expanduser(place)
    file = cached_file(folder, "tokenizer.json", _raise_exceptions_for_missing_entries=False)
    return tokenizer if file is None else with_backend(tokenizer, Tokenizer.from_file(file))


def cleaning_tokenizer(tokenizer: Any) -> Any:
    """Make a transformers fast tokenizer clean text as preparation does (`augment.text.cleaning`).

    It is a plain PreTrainedTokenizerFast: classes such as BertTokenizer build a normalizer of their own when
    they are loaded.
    """
    from tokenizers import Tokenizer

    backend = json.loads(tokenizer.backend_tokenizer.to_str())
    settings = with_cleaning(backend)
    if settings is backend:
        return tokenizer
    return with_backend(tokenizer, Tokenizer.from_str(json.dumps(settings, ensure_ascii=False)))


def without_del(tokenizer: Any) -> Any:
    """Return the tokenizer without [DEL]; other tokens keep their ids."""
    from tokenizers import Tokenizer

    backend = json.loads(tokenizer.backend_tokenizer.to_str())
    backend["added_tokens"] = [token for token in backend["added_tokens"] if token["content"] != DEL]
    return with_backend(tokenizer, Tokenizer.from_str(json.dumps(backend, ensure_ascii=False)))


def with_backend(tokenizer: Any, backend: "Tokenizer") -> Any:
    """Return a plain transformers tokenizer with another backend, and the roles and settings of this one."""
    from transformers import PreTrainedTokenizerFast

    roles = {role: token for role, token in tokenizer.special_tokens_map.items() if isinstance(token, str)}
    others = [
        token
        for token in tokenizer.all_special_tokens
        if token not in roles.values() and backend.token_to_id(token) is not None
    ]
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        model_max_length=tokenizer.model_max_length,
        model_input_names=tokenizer.model_input_names,
        padding_side=tokenizer.padding_side,
        truncation_side=tokenizer.truncation_side,
        clean_up_tokenization_spaces=tokenizer.clean_up_tokenization_spaces,
        additional_special_tokens=others,
        **roles,
    )


def save_tokenizer(tokenizer: Any, folder: Path) -> None:
    """Save as a Hugging Face folder, whole or not at all. Raises: UserError when the disk is full."""
    from pretrain.data.shard_writer import naming_full_disk

    with naming_full_disk(folder), filled_folder(folder) as hidden, library_errors():
        tokenizer.save_pretrained(hidden)


def load_tokenizer(path: str | Path) -> Any:
    """Load the fast tokenizer of a prepared folder, its tokenizer/ folder, or any model folder."""
    from transformers import AutoTokenizer

    folder = Path(path)
    if (folder / "tokenizer" / "tokenizer.json").is_file():
        folder = folder / "tokenizer"
    if not (folder / "tokenizer.json").is_file():
        raise UserError(f"{path} holds no tokenizer.json. Prepare the data again, or name its folder.")
    return pretrained(AutoTokenizer, folder)


def folds(folder: Path) -> tuple[bool, bool]:
    """Return whether the tokenizer in a folder writes letters in lower case, and without accents."""
    from tokenizers import Tokenizer

    normalizer = Tokenizer.from_file(str(folder / "tokenizer.json")).normalizer

    def normalized(text: str) -> str:
        return text if normalizer is None else normalizer.normalize_str(text)

    return normalized("A") == "a", normalized("\u00fc") == "u"


def prompt_tokens(tokenizer: Any, prompts: Mapping[str, str]) -> dict[str, np.ndarray]:
    """Return the tokens of texts that stand before sentences, by role: int32[p] each, without special ones.

    A prompt is refused whose tokens change with the sentence behind it: training would see others than use.
    """
    found = {}
    for role, prompt in prompts.items():
        tokens = tokenizer(prompt, add_special_tokens=False)["input_ids"] if prompt else []
        for sentence in _SENTENCES if prompt else ():
            first, *rest = tokenizer(sentence)["input_ids"]
            if not tokens or tokenizer(prompt + sentence)["input_ids"] != [first, *tokens, *rest]:
                other = prompt.rstrip() if prompt != prompt.rstrip() else f"{prompt} "
                raise UserError(f"data.prompts.{role}={prompt!r} joins {sentence!r}: try {other!r}")
        found[role] = np.array(tokens, np.int32)
    return found


def tokenizer_hash(path: str | Path) -> str:
    """Hash what decides the token ids of clean text: the tokenizer.json below `path`, keys sorted (sha256).

    Left out are padding and truncation, which `transformers` rewrites when it saves, and the cleaning: a
    tokenizer is the same with and without it, so that data and checkpoints from before tokenizers cleaned go
    with those of today.
    """
    folder = Path(path)
    file = folder if folder.is_file() else folder / "tokenizer.json"
    if not file.is_file():
        file = folder / "tokenizer" / "tokenizer.json"
    if not file.is_file():
        raise UserError(f"{path} holds no tokenizer.json.")
    content = without_cleaning(read_json_file(file, "restore it from a copy"))
    for setting in ("padding", "truncation"):
        content.pop(setting, None)
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode()).hexdigest()


def encode(tokenizer: "Tokenizer", texts: list[str], batch: int = 4096) -> Ragged:
    """Return the token ids of texts by a tokenizer without padding or truncation, no special tokens added.

    In batches, because an Encoding costs some hundred bytes per token until it is let go.
    """
    parts = []
    for start in range(0, len(texts), batch):
        some = tokenizer.encode_batch_fast(texts[start : start + batch], add_special_tokens=False)
        parts.append(Ragged.from_sequences(encoding.ids for encoding in some))
    return Ragged.concatenate(parts)
