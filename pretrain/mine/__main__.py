"""Add hard negatives to labelled pairs: texts that an encoder finds near, and that mean something else.

    clearly mine runs/mine --pairs pairs.jsonl --out data/mined --relative-margin 0.05
    clearly prepare --source data/mined/triples.jsonl --unit record --out data/triples
    clearly train --config simcse_supervised_micro --init runs/mine --data data/triples --run runs/supervised

Pairs are records with a text and a positive, as `clearly prepare --unit record` reads them. OUT gets
triples.jsonl, mined.yaml (settings, counts, cosines) and the vectors, in .vectors: the same command continues
after an interruption, and another one with other limits encodes nothing again.
"""

import json
import os
import statistics
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import yaml

from finetune.encoders.source import names_function, resolve
from finetune.flags import Model, Pooling, VectorPrecision
from pretrain.common import cli
from pretrain.common.errors import UserError
from pretrain.common.files import make_folder, replace_durably
from pretrain.common.folder_lock import folder_lock
from pretrain.config.data import Source
from pretrain.mine.mining import MiningOptions, Triple, Vectors, mine
from pretrain.mine.pairs import Pairs, read_pairs, read_texts

TRIPLES, SUMMARY, VECTORS = "triples.jsonl", "mined.yaml", ".vectors"


def main(
    model: Model,
    *,
    pairs: cli.Names,
    out: Path,
    options: MiningOptions,
    corpus: str = "",
    text_key: str = "text",
    positive_key: str = "positive",
    other_fields: Literal["refuse", "ignore"] = "refuse",
    unmatched: Literal["keep", "drop"] = "keep",
    query_prompt: str = "",
    document_prompt: str = "",
    pooling: Pooling = "",
    precision: VectorPrecision = "fp32",
) -> None:
    """Find hard negatives for labelled pairs, and write triples to train on.

    Args:
        pairs: files or data sets of pairs, by commas: jsonl, csv, tsv, parquet, a saved data set, hub:NAME.
        out: folder to write.
        corpus: further candidates, beside the pairs' own positives and negatives: a text file, one a line, or
            another source.
        text_key: column of the texts that negatives are sought for (also: anchor, sent0).
        positive_key: column of the texts that mean the same (also: sent1).
        other_fields: what to do about other columns.
        unmatched: a pair for which no negative was found: keep it as a pair, or drop it.
        query_prompt: stands before every text when it is encoded; without it, the model's own.
        document_prompt: the same for candidates.
    """
    place = _place(out)
    keys = {"text_key": text_key, "positive_key": positive_key, "other_fields": other_fields}
    # before the model: a damaged file should not cost its loading
    read = read_pairs([Source.model_validate({"source": name, **keys}) for name in pairs])
    candidates = read_texts(Source.model_validate(corpus)) if corpus else []
    print(f"{len(read):,} pairs; {_candidates(read, candidates):,} different candidates", file=sys.stderr)
    with folder_lock(place):
        vectors = _vectors(model, pooling, precision, place / VECTORS, query_prompt, document_prompt)
        triples = mine(read, candidates, vectors, options)
        if not triples:
            raise UserError(
                f"none of {len(read):,} pairs got a negative; loosen --max-score, --min-score or the "
                "margins, raise --range-max, or give more candidates with --corpus"
            )
        counts = write_triples(place / TRIPLES, read, triples, options.num_negatives, unmatched)
        cosines = {
            "positive": _quartiles([triple.positive_cosine for triple in triples]),
            "negative": _quartiles([triple.negative_cosine for triple in triples]),
        }
        about = {
            "model": model,
            "pairs": list(pairs),
            "corpus": corpus or None,
            "options": options.model_dump(),
            "counts": counts,
            "cosines": cosines,
        }
        replace_durably(place / SUMMARY, yaml.safe_dump(about, sort_keys=False, allow_unicode=True).encode())
    print(_told(place, counts, cosines, options.num_negatives, unmatched))


def write_triples(
    path: Path, pairs: Pairs, triples: list[Triple], asked: int, unmatched: str
) -> dict[str, int]:
    """Write a record a triple, pairs in their order, and return how many there are of what.

    unmatched: "keep" writes a pair without a negative as a record without one.
    """
    of_pair: dict[tuple[str, str], list[str]] = {}
    for triple in triples:
        of_pair.setdefault((triple.text, triple.positive), []).append(triple.negative)
    rows: list[dict[str, str]] = []
    counts = {"pairs": len(pairs), "triples": len(triples), "pairs_with_fewer": 0, "pairs_without": 0}
    for text, positive in zip(pairs.texts, pairs.positives, strict=True):
        negatives = of_pair.get((text, positive), [])
        counts["pairs_with_fewer"] += 0 < len(negatives) < asked
        counts["pairs_without"] += not negatives
        rows += [{"text": text, "positive": positive, "negative": negative} for negative in negatives]
        if not negatives and unmatched == "keep":
            rows.append({"text": text, "positive": positive})
    replace_durably(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode())
    return counts


def _place(out: Path) -> Path:
    """Return the folder to write, made if need be.

    Raises:
        UserError: it holds something else.
    """
    if out.exists() and not out.is_dir():
        raise UserError(f"--out {out} is a file; name a folder")
    known = {TRIPLES, SUMMARY, VECTORS}
    other = (
        sorted(path.name for path in out.iterdir() if not path.name.startswith(".")) if out.exists() else []
    )
    if set(other) - known:
        raise UserError(f"--out {out} holds something else ({', '.join(other[:3])}); name another folder")
    make_folder(out)
    return out


def _candidates(pairs: Pairs, corpus: list[str]) -> int:
    return len({*pairs.positives, *pairs.negatives, *corpus})


def _vectors(
    model: str, pooling: str, precision: str, folder: Path, query_prompt: str, document_prompt: str
) -> Vectors:
    """Open the model; its vectors are kept where CLEAR_VECTORS says, or else in `folder`."""
    from finetune.encoders.models import KEPT_VECTORS, keeping, open_model

    named = model if names_function(model) else resolve(model)
    before = named if isinstance(named, str) else named.identity
    opened = open_model(named, pooling, precision=precision)
    if not os.environ.get(KEPT_VECTORS) and opened.source is not None:
        opened = keeping(opened, folder, before)
    for prompt in (query_prompt, document_prompt):
        opened.require_own(prompt)
    return Vectors(
        opened.without_prompt,
        query_prompt or opened.query_prompt,
        document_prompt or opened.document_prompt,
    )


def _quartiles(values: list[float]) -> dict[str, float]:
    if len(values) == 1:
        values = values * 2
    quartiles = statistics.quantiles(values, n=4, method="inclusive")
    return {f"{share}%": round(value, 4) for share, value in zip((25, 50, 75), quartiles)}


def _told(
    place: Path,
    counts: Mapping[str, int],
    cosines: Mapping[str, Mapping[str, float]],
    asked: int,
    unmatched: str,
) -> str:
    """Return what the command says when it is done."""
    lines = [f"{counts['triples']:,} triples of {counts['pairs']:,} pairs: {place / TRIPLES}"]
    if counts["pairs_with_fewer"]:
        lines.append(f"  {counts['pairs_with_fewer']:,} pairs got fewer than {asked} negatives")
    if counts["pairs_without"]:
        how = "stand there as pairs" if unmatched == "keep" else "are left out"
        lines.append(f"  {counts['pairs_without']:,} pairs got none, and {how}")
    if 2 * counts["pairs_without"] > counts["pairs"]:
        lines.append("  for more, raise --range-max, or loosen the margins by the cosines below")
    lines.append(f"  {'cosine with its':18s}{'25%':>8}{'median':>8}{'75%':>8}")
    for what, of_what in cosines.items():
        lines.append(f"    {what:16s}" + "".join(f"{value:8.3f}" for value in of_what.values()))
    lines.append(f"  train on them: --data.prepare.sources {place / TRIPLES} --data.prepare.unit record")
    return "\n".join(lines)


if __name__ == "__main__":
    cli.run(main)
