"""Prepare a corpus: raw text in, a tokenizer and shuffled, de-duplicated shards out.

    clearly prepare --source embedded --out data/embedded
    clearly prepare --source 'wiki.txt.gz,books/*.txt@0.5' --unit sequence --out data/mine
    clearly prepare --source nli_for_simcse.csv --unit record --max-length 32 --out data/nli
    clearly prepare --source 'docs/**/*.md' --pairs structure --out data/pairs
    clearly prepare --config data_wikipedia_bookcorpus --out DIR --workers 64

Memory does not grow with the corpus: a task holds 0.3 GB (Python and its libraries) plus, while reading, two
times 32 MB, while writing shards eight times its part of a bucket, of at most 64 MB: 0.8 GB. Measured:
0.39 GB for 207 MB of text in 16 buckets of 13 MB, 0.60 GB with buckets of 42 MB. The tokenizer's
sample is bounded by `tokenizer_megabytes`. Until the work is done, the disk holds the cleaned text once more,
and of units sequence and document 4 bytes per token too.
"""

import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from pydantic import BaseModel, Field

from augment.core.errors import shortened
from pretrain.common import cli
from pretrain.common.typed_values import parse_value
from pretrain.config.data import NAMED_DATA, DataConfig, Source, data_config
from pretrain.config.recipe import find_recipe
from pretrain.config.validation import read_yaml
from pretrain.data.tokenizer import MOST_ACCENTED, folds
from pretrain.prepare.jobs import run_figures


class PrepareFlags(BaseModel):
    """Flags of the command that are not of the data."""

    out: Path = Field(description="folder for the tokenizer, the shards and the manifest")
    config: Path | None = Field(None, description="YAML of data keys, or a recipe; flags override it")
    overwrite: bool = Field(False, description="remove data of another config, and prepare it again")
    workers: int | None = Field(None, ge=1, description="tasks at a time; none: the cores of this machine")
    progress: bool = Field(True, description="show progress bars")


def main(*, flags: PrepareFlags, **data: str) -> None:
    """Turn raw text into a tokenizer and shuffled, de-duplicated shards."""
    from pretrain.prepare.run import prepare

    tree = _recipe(flags.config) if flags.config is not None else {}
    if "source" in data:
        data["sources"] = data.pop("source")
    fields = DataConfig.model_fields
    tree |= {key: parse_value(text, fields[key].annotation, f"--{key}") for key, text in data.items()}
    config = data_config(tree)
    if "sources" not in tree:
        print("no --source: this prepares 'embedded', the documentation of installed Python packages")
    signal.signal(signal.SIGTERM, _terminate)
    manifest = prepare(config, flags.out, flags.workers, flags.progress, flags.overwrite)
    print(summary(manifest, flags.out))


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    """End by an exception, so that the workers and their manager end with this process."""
    print("terminated; run the same command again to resume", file=sys.stderr)
    raise SystemExit(128 + number)


def _folded(tokenizer: Path) -> str:
    """Say what a tokenizer, trained or given, takes away from letters."""
    lowercase, accents = folds(tokenizer)
    words = [*(["lower case"] if lowercase else []), *(["without accents"] if accents else [])]
    return f", {' '.join(words)}" if words else ""


def data_flags() -> list[cli.Flag]:
    """Return the flags that say what the data is: keys of a recipe, the sources as one text."""
    flags = cli.flags_of(DataConfig)
    return [flag._replace(name="source") if flag.name == "sources" else flag for flag in flags]


def source_keys() -> str:
    """Return the help of the keys of a source that is a mapping in YAML, and of the named corpora."""
    names = [f"  {name}  {', '.join(map(str, keys.values()))}" for name, keys in NAMED_DATA.items()]
    keys = cli.key_table(cli.flags_of(Source))
    about = "corpora that a name stands for (docs/data.md has sizes and licences):"
    return "\n".join(["keys of an entry of `sources:` in a YAML file:\n", keys, "", about, "", *names])


def _recipe(path: Path) -> dict[str, Any]:
    """Return the data keys of a data recipe, or those of a training recipe's data.prepare section."""
    tree = read_yaml(find_recipe(path))
    data = tree.get("data")
    return data.get("prepare") or {} if isinstance(data, dict) else tree


def summary(manifest: dict, out: Path) -> str:
    """Return the lines that say what was written."""
    lines = [
        f"{out}: unit {manifest['unit']}, up to {manifest['max_length']} tokens, vocabulary "
        f"{manifest['vocabulary_size']}{_folded(out / manifest['tokenizer'])}"
    ]
    unit = "sequences"
    if "columns" in manifest:
        unit = "records  "
        labels = f"; {manifest['labels']} labels" if "labels" in manifest else ""
        if bounds := manifest.get("scores"):
            labels = f"; scores from {bounds[0]:g} to {bounds[1]:g}"
        lines.append(f"  columns: {', '.join(manifest['columns'])}{labels}")
    for split, part in manifest["splits"].items():
        size = f"{part['sequences']:>12,} {unit} {part['tokens']:>14,} tokens in {len(part['shards'])} shards"
        lines.append(f"  {split:8s} {size}")
    if annotation := manifest.get("annotation"):
        size = annotation["bytes"] / max(1, sum(part["tokens"] for part in manifest["splits"].values()))
        lines.append(
            f"  annotated by {annotation['parser']} ({annotation['language']}): {annotation['words']:,} "
            f"words, {size:.1f} bytes per token"
        )
    if (accented := manifest.get("accented_letters", 0)) >= MOST_ACCENTED:
        share = f"{accented:.1%} of the letters"
        if folds(out / manifest["tokenizer"])[1]:
            mend = "name a cased --tokenizer" if manifest["config"]["tokenizer"] else "--lowercase false"
            lines.append(f"  WARNING: {share} lose an accent or a part in this tokenizer; to keep it: {mend}")
        else:
            lines.append(f"  capitals and accents are kept: {share} have one; --lowercase true drops both")
    counts = manifest.get("counts", {})
    unknown = counts.get("tokens_unknown", 0) / max(1, sum(p["tokens"] for p in manifest["splits"].values()))
    if unknown >= 0.01:  # Thai and Japanese have 0.2% and 0.1% in a WordPiece of their own
        mend = "name another --tokenizer" if manifest["config"]["tokenizer"] else "--tokenizer_type bpe"
        lines.append(f"  WARNING: {unknown:.1%} of the tokens are words that it does not know: {mend}")
    lines += [f"  {name.replace('_', ' '):32s} {count:>12,}" for name, count in counts.items() if count]
    for kind, pairs in manifest.get("pairs", {}).items():
        lines += [f"  {kind:10} {shortened(first, 50)} -> {shortened(second, 90)}" for first, second in pairs]
    lines += [f"  not read: {fault}" for fault in manifest.get("faults", [])]
    return "\n".join([*lines, *run_figures(manifest)])


FIRST = ("out", "source", "config", "unit", "pairs", "max_length", "vocabulary", "annotate", "workers")

if __name__ == "__main__":
    cli.run(main, keys=data_flags, first=(*FIRST, "overwrite"), more_help=source_keys)
