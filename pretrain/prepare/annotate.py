"""Parse the texts of a chunk with spaCy once, for the shard to keep beside the tokens (`--annotate`)."""

from collections import Counter
from collections.abc import Sequence

from augment.core.errors import AugmentationError
from augment.core.ragged import Ragged
from augment.text.parsed import ParsedSentence
from augment.text.parsing import check_language, find_parser, load_parser, parse_texts
from pretrain.common.errors import UserError, naming
from pretrain.data.annotation import MOST_CHARACTERS, pack


def describe_parser(model: str) -> dict[str, str]:
    """Describe a parser for the manifest: name, version, language ("auto" is `find_parser`'s)."""
    try:
        model = find_parser() if model == "auto" else model
        parser = load_parser(model)
    except AugmentationError as error:
        raise UserError(f"--annotate {model}: {error}") from error
    return {
        "parser": model,
        "name": parser.meta["name"],
        "version": parser.meta["version"],
        "language": parser.lang,
    }


def check_corpus(texts: Sequence[str], parser: dict[str, str]) -> None:
    """Refuse a corpus, of which texts are a sample, mostly in another script than the parser's language."""
    with naming(f"--annotate {parser['parser']}", AugmentationError):
        check_language(texts, parser["language"], parser["parser"])


def longest_text(max_length: int) -> int:
    """Return how many characters of a text are kept and parsed.

    Augmentations work on whole texts, and only then are tokens cut to `max_length`; so this is far above any
    sentence of a corpus that suits `max_length`, and bounds the work on documents.
    """
    return min(MOST_CHARACTERS, 64 * max_length)


def annotate(
    texts: Sequence[str], sequences: Ragged, parser: dict[str, str], max_length: int, counts: Counter[str]
) -> dict[str, bytes]:
    """Return the members of the shard for the texts of N stored sequences; an empty sequence has none.

    Texts are kept and parsed whole, also if their tokens in the shard are cut to max_length: an
    augmentation is to see all of a sentence, as it does in the papers.
    """
    longest, language = longest_text(max_length), parser["language"]
    kept = [text if length else "" for text, length in zip(texts, sequences.lengths.tolist())]
    counts["texts_too_long_to_parse_whole"] += sum(len(text) > longest for text in kept)
    kept = [_head(text, longest) for text in kept]
    rows = [row for row, text in enumerate(kept) if text]
    sentences = [ParsedSentence(text, (), (), (), (), (), (), (), language) for text in kept]
    # Any script: a chunk may be a single foreign text. `check_corpus` has judged the corpus as a whole.
    parsed = parse_texts((kept[row] for row in rows), parser["parser"], any_script=True)
    for row, sentence in zip(rows, parsed):
        sentences[row] = sentence
    try:
        members = pack(sentences)
    except ValueError as error:
        raise UserError(f"--annotate {parser['parser']}: {error}. Lower --chunk-tokens.") from error
    counts["annotated_words"] += len(members["word_tags.u16"]) // 2
    counts["annotation_bytes"] += sum(map(len, members.values()))
    return members


def _head(text: str, longest: int) -> str:
    """Cut a text before a word if it is too long."""
    if len(text) <= longest:
        return text
    cut = text.rfind(" ", 0, longest + 1)
    return text[: cut if cut > 0 else longest]
