"""Show what an augmentation does to sentences, or list all augmentations: `clearly augment`.

    clearly augment --list
    clearly augment --aug del-span,reorder --text "A sentence of your own."
    clearly augment sentences.txt --aug "subs,del-word:rate=0.5" --tokenizer DATA/tokenizer
    head -20 corpus.txt | clearly augment --aug "repeat|crop"

How to write a specification:

    none                         no augmentation: dropout alone tells the views apart
    del-span,reorder             one after the other
    subs|repeat                  one of them for each sentence, evenly; | binds tighter than ,
    del-span:spans=3:rate=0.1    parameters
    pi|mv|dn,del-word            augmentations of text stand before those of tokens
    my.py:shout:rate=0.5         a function of your own, from a file (docs/augmentations.md)
    augcse-12-2                  a set of alternatives, by name: augcse-4, augcse-8, augcse-12, augcse-16,
                                 augcse-4-1, augcse-8-2, augcse-12-2, augcse-16-2
"""

import itertools
import os
import re
import stat
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from augment.core.errors import AugmentationError
from augment.core.identity import change
from augment.core.keys import sequence_keys
from augment.core.vocabulary import DEL_TOKEN, Vocabulary, encode
from augment.spec.build import build, build_texts
from augment.spec.catalogue import CATALOGUE
from augment.spec.grammar import needs_parse, needs_synonyms, needs_text
from augment.spec.pipeline import Pipeline
from augment.text.encoder import TextEncoder
from augment.text.parsed import without_parse
from augment.text.parsing import find_parser, parse_texts
from augment.tokens.synonyms import SynonymTable, find_synonyms, read_synonyms
from pretrain.common import cli
from pretrain.common.errors import UserError, naming
from pretrain.data.tokenizer import adopt_tokenizer, tokenizer_of
from pretrain.prepare.sources.readers import naming_damage, open_file

EXAMPLES = (
    "Contrastive learning pulls two views of a sentence together and pushes all other sentences apart.",
    "The old lighthouse keeper climbed the stairs every evening to light the lamp that guided the ships.",
    "After months of careful work the engineers announced that the new bridge would open in summer.",
    "Rain fell.",
)
LONGEST = 1 << 20  # tokens of a sentence shown: no limit
VIEWS = 2
SYNTAX = __doc__[__doc__.index("How to write") :]
NEEDS = {
    "synonyms": "a synonym table (--synonyms)",
    "del": "a tokenizer with [DEL]",
    "punctuation": "a tokenizer with punctuation marks",
    "parse": "a dependency parse (--parser; data prepared with --annotate)",
    "tags": "tags and lemmas (--parser; data prepared with --annotate)",
    "wordnet": "WordNet",
}


def main(
    file: str = "",
    *,
    aug: str = "del-span,reorder",
    text: str = "",
    tokenizer: str = "",
    synonyms: str = "",
    parser: str = "",
    seed: int = 0,
    limit: cli.Count = 10,
    list: bool = False,
) -> None:
    """Show what an augmentation does to sentences: original, view 1, view 2 and the share of tokens changed.

    Args:
        file: sentences, one per line, .gz too, or - for standard input. Without it and without --text: what
            is piped in, else a few built-in sentences.
        aug: the specification, as training takes it; --help all says how to write one, --list has all names.
        text: one sentence, instead of a file.
        tokenizer: folder of a Hugging Face fast tokenizer; a prepared corpus has one. Without it a WordPiece
            tokenizer is made from the given sentences; its tokens are mostly whole words.
        synonyms: a table for subs; JSON {word: [synonyms]}, .gz too, or a WordNet folder or zip. Without it:
            $CLEAR_DATA/synonyms/counterfitted_neighbors.json, else $CLEAR_WORDNET or an installed WordNet.
        parser: a spaCy pipeline, by name or folder; augmentations that read a parse need one. Without it:
            $CLEAR_PARSER, else an installed one.
        seed: another seed gives other views.
        limit: the largest number of sentences.
        list: print the catalogue instead; every augmentation with its paper, parameters and an example.
    """
    # Lines are for the terminal to wrap: a path that is cut in two cannot be copied.
    console = Console(
        width=None if sys.stdout.isatty() else max(100, int(os.environ.get("COLUMNS", 140))),
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
    if list:
        print_catalogue(console)
        return
    needs_table = needs_synonyms(aug)  # checks the specification before anything is read or loaded
    sentences = read_sentences(file, text, limit)
    texts = view_texts(aug, sentences, parser, seed)
    if tokenizer:
        fast = adopt_tokenizer(tokenizer, LONGEST)
        console.print(f"tokenizer: {tokenizer}")
    else:
        extra = related_words(sentences, synonyms) if needs_table else []
        # the tokenizer needs their words too
        extra += [text for view in texts for text in view.values()]
        fast = tokenizer_of([*sentences, *extra])
        console.print("tokenizer: made of these sentences; --tokenizer FOLDER takes a real one")
    vocabulary = Vocabulary.from_tokenizer(fast)
    table = SynonymTable.load(synonyms or None, fast, vocabulary) if needs_table else None
    encoder = TextEncoder(fast.backend_tokenizer, vocabulary.cls_id, vocabulary.sep_id, LONGEST)
    pipeline = build(aug, vocabulary, table, encoder)
    rows, summary = preview(sentences, fast, pipeline, seed, texts)
    console.print(f"augmentation: {pipeline.name}   seed: {seed}")
    if table is not None:
        share = table.coverage(encode(sentences, fast, vocabulary))
        console.print(f"synonyms: {table.source}: {share:.1%} of the tokens (CLEAR's corpus: about 40%)")
    console.print(rows, soft_wrap=False)
    console.print(summary)


def preview(
    sentences: Sequence[str],
    tokenizer: Any,
    pipeline: Pipeline,
    seed: int,
    texts_of_views: Sequence[Mapping[int, str]],
) -> tuple[Table, str]:
    """Return a table of each sentence beside two views, by the keys of epoch 0 with this seed, and a summary.

    texts_of_views: for every view the texts that augmentations of text changed, by number. A pipeline of such
    augmentations alone is shown as text, any other as its tokens decode.
    """
    batch = encode(sentences, tokenizer, Vocabulary.from_tokenizer(tokenizer))
    ids = np.arange(len(batch), dtype=np.uint64)
    numbered = enumerate(texts_of_views)
    views = [pipeline.tokens(batch, view_keys(seed, ids, view), texts) for view, texts in numbered]
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
            texts[1:] = [view.get(row, sentence) for view in texts_of_views]
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


def view_texts(aug: str, sentences: Sequence[str], parser: str, seed: int) -> list[dict[int, str]]:
    """Return the texts that augmentations of text change, by sentence number, for every view."""
    if not needs_text(aug):
        return [{}] * VIEWS
    pipeline, ids = build_texts(aug), np.arange(len(sentences), dtype=np.uint64)
    with_parse = needs_parse(aug)
    parsed = parse_texts(sentences, find_parser(parser)) if with_parse else map(without_parse, sentences)
    parses = [*parsed]
    return [pipeline.texts(view_keys(seed, ids, view), parses) for view in range(VIEWS)]


def read_sentences(file: str, text: str, limit: int) -> list[str]:
    """Return the sentences to show."""
    if file and text:
        raise AugmentationError("give a file or --text, not both")
    if os.path.isfile(text):
        raise UserError(f"--text is a sentence, and {text} is a file: give it without --text")
    if text:
        try:
            text.encode()
        except UnicodeEncodeError as error:  # Python keeps an argument's bad bytes as surrogates
            raise AugmentationError(f"--text is not UTF-8: {error}") from error
        lines = [text]
    elif file or is_piped():
        is_file, place = file not in ("", "-"), file if file not in ("", "-") else "standard input"
        if is_file and (not os.path.exists(file) or os.path.isdir(file)):
            raise UserError(f"there is no file {file}; a sentence is given by --text")
        not_text = naming(f"{place} cannot be read as text", UnicodeDecodeError)
        with not_text, naming_damage(place), open_file(file) if is_file else sys.stdin.buffer as stream:
            # the rest of a large file is not read
            lines = [line.decode() for line in itertools.islice(filter(bytes.strip, stream), limit)]
    else:
        return [*EXAMPLES][:limit]
    if not any(map(str.strip, lines)):
        raise AugmentationError(f"no sentences in {file or ('--text' if text else 'standard input')}")
    return [line.strip() for line in lines]


def is_piped() -> bool:
    """Return whether standard input is a pipe or a file: a terminal would wait, /dev/null has nothing."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (OSError, ValueError):
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)


def related_words(sentences: list[str], synonyms: str) -> list[str]:
    """Return synonyms of the sentences' words, which a tokenizer of the sentences alone would spell out."""
    table = read_synonyms(synonyms or find_synonyms())
    words = {word.lower() for sentence in sentences for word in re.findall(r"\w+", sentence)}
    return sorted({synonym for word in words for synonym in table.get(word, [])})


def print_catalogue(console: Console) -> None:
    """Print every augmentation with its paper, parameters and an example."""
    for entry in CATALOGUE.values():
        console.print(f"[bold]{entry.name}[/bold]  ({entry.kind})", markup=True)
        lines = [entry.description, f"paper: {entry.paper}", f"meaning: {entry.meaning}"]
        if entry.languages:
            lines.append(f"languages: {', '.join(entry.languages)}")
        if entry.needs:
            needs = [NEEDS.get(need, need.replace("model:", "a model: ")) for need in entry.needs]
            lines.append(f"needs: {', '.join(needs)}")
        for parameter in entry.parameters:
            bounds = "" if parameter.low is None else f" ({parameter.low:g} to {parameter.high:g})"
            bounds = f" (one of {', '.join(parameter.choices)})" if parameter.choices else bounds
            without = f"; without it: ${parameter.variable}" if parameter.variable else ""
            lines.append(f"  {parameter.name}={parameter.default}{bounds}: {parameter.meaning}{without}")
        lines.append(f"example: --aug {entry.example}")
        if entry.sample:
            lines.append(" -> ".join(entry.sample))
        for line in lines:
            console.print("    " + line)
        console.print()
    console.print(SYNTAX, end="")


if __name__ == "__main__":
    cli.run(main)
