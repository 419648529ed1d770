"""Augment a corpus once: from prepared data to records with their augmentations and labels.

    clearly cache --data data/annotated --aug augcse-12-2 --out data/augcse
    clearly cache --data data/annotated --aug 'tense|yoda|random-swap' --resample 4 --out data/four
    clearly cache --data data/annotated --positive 'pi|mv|dn' --negative neg --out data/sda
    clearly train --objective augcse --data data/augcse --aug none --augment.augmented none

--aug writes AugCSE's records (text, augmented, label): one augmentation a sentence, drawn evenly from the set
and fixed by the seed; the last label, "none", if the sentence came out as it was, white space and quotes
aside. --positive and --negative write SDA's (text, positive, negative). A column is empty if nothing has
changed: its view is then the sentence itself, and a negative is absent. Such records stay, as in both papers.
Splits, their order and the tokenizer are those of the data; the cache holds tokens, no text or parse.

The same bytes come out with any number of workers, and after any number of kills: run the same command again.
A task holds one chunk (64 thousand tokens) and its parse.
"""

from pathlib import Path

from pretrain.common import cli
from pretrain.prepare.cache.run import CacheFlags, cache
from pretrain.prepare.jobs import run_figures


def summary(manifest: dict, out: Path) -> str:
    """Return the lines that say what was written."""
    lines = [f"{out}: columns {', '.join(manifest['columns'])}; {manifest.get('labels', 0)} labels"]
    for split, part in manifest["splits"].items():
        size = f"{part['sequences']:>12,} records {part['tokens']:>14,} tokens"
        lines.append(f"  {split:8s} {size} in {len(part['shards'])} shards")
    figures = f"{'drawn':>10s} {'changed':>9s} {'not applicable':>15s}"
    lines.append(f"  {'column':10s} {'augmentation':34s} {figures}")
    for column, rates in manifest["cache"]["rates"].items():
        for name, outcomes in rates.items():
            lines.append(
                f"  {column:10s} {name:34s} {outcomes['drawn']:>10,} {outcomes['rate']:>9.2%} "
                f"{outcomes['not_applicable'] / max(1, outcomes['drawn']):>15.2%}"
            )
    return "\n".join([*lines, *run_figures(manifest)])


def main(*, flags: CacheFlags) -> None:
    """Augment prepared data once, into records to train on."""
    print(summary(cache(flags), flags.out))


if __name__ == "__main__":
    cli.run(main)
