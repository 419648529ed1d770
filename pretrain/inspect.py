"""`python -m pretrain.inspect`: a training batch as the model will see it, decoded.

The batch comes from training's own loader and configuration: --step N shows what step N of that run
trains on.

    python -m pretrain.inspect --data DATA --aug del-span,reorder
    python -m pretrain.inspect --config runs/NAME/config.yaml --step 1200 --rank 1 --world-size 2
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from augment.core.identity import equal_sequences, sequence_identities
from augment.core.ragged import Ragged
from augment.core.vocabulary import Vocabulary
from pretrain.common import cli
from pretrain.common.errors import UserError
from pretrain.config.recipe import DEFAULT_RECIPE, flags, load_config
from pretrain.config.run import Config
from pretrain.data.batch import BatchSpec, RankBatch, ViewSpec, label_names
from pretrain.data.manifest import MANIFEST
from pretrain.data.masking import Masked, Masking
from pretrain.data.pipelines import synonyms_for
from pretrain.data.shards import ShardReader

if TYPE_CHECKING:
    from pretrain.start.views import LengthShortcut


def inspect(
    *,
    config: str | None = None,
    step: cli.Natural = 0,
    show: cli.Natural = 3,
    rank: cli.Natural = 0,
    world_size: cli.Count = 1,
    split: Literal["train", "heldout"] = "train",
    **overrides: Any,
) -> None:
    """Print a training batch as the model will see it, decoded.

    Args:
        config: the recipe, or the config.yaml of a run; default: what training would take.
        step: which step of that run; any step costs the same.
        show: sequences to decode.
        rank, world_size: whose share of the global batch.
        split: train or heldout.
        overrides: any key of the configuration, as for training.

    Raises:
        UserError: a flag, the configuration, or the data is wrong.
    """
    if rank >= world_size:
        raise UserError(f"--rank {rank} of --world-size {world_size}: ranks count from 0 to {world_size - 1}")
    settings = load_config(config or DEFAULT_RECIPE, overrides)
    # these import torch and transformers: seconds, so not for --help and wrong flags
    from pretrain.cache.views import trains_on
    from pretrain.data.tokenizer import load_tokenizer
    from pretrain.objectives import view_specs
    from pretrain.start.data import open_train

    copies, settings = settings.data.cache, trains_on(settings)
    if copies and not (settings.data_folder / MANIFEST).is_file():
        raise UserError(
            f"the views that data.cache={copies} makes once are not in {settings.data_folder} yet: a run "
            "makes them (pretrain/main.py, with --dry-run too), and --data.cache 0 shows them as they would "
            "be drawn anew"
        )
    reader = open_train(settings) if split == "train" else ShardReader(settings.data_folder, split)
    tokenizer = load_tokenizer(reader.tokenizer_path)
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    views = view_specs(settings)
    batch = load_batch(settings, reader, tokenizer, vocabulary, views, step, rank, world_size)
    console = Console(highlight=False, markup=False)
    console.width = max(console.width, 110)  # the table's; lines wrap where the terminal does
    console.print(
        f"{settings.data_folder}/{split}: {reader.num_sequences:,} {described(reader)}, "
        f"{reader.num_tokens:,} tokens, {reader.num_chunks:,} chunks\n"
        f"step {batch.step}, epoch {batch.epoch} of {reader.num_sequences // settings.train.global_batch:,} "
        f"steps, rank {rank} of {world_size}: {len(batch.original):,} of "
        f"{settings.batch_sizes.at_step(batch.step):,} sequences"
    )
    for entry in batch.substitutions:
        console.print(
            f"chunk {entry['chunk']} is damaged ({entry['reason']}): chunk {entry['replacement']} in "
            "its place"
        )
    console.print(shape_table(batch, settings.train.micro_batch_tokens, views))
    names = names_of_labels(views, reader)
    for line in rate_lines(batch, vocabulary, views, names):
        console.print(line, soft_wrap=True)
    if lengths := _lengths(settings, reader, tokenizer, vocabulary, views):
        console.print(f"lengths: {lengths}", soft_wrap=True)
    for row in range(min(show, len(batch.original))):
        console.print()
        for line in sequence_lines(batch, row, tokenizer, views, names):
            console.print(line, soft_wrap=True)


def _lengths(
    settings: Config, reader: ShardReader, tokenizer: Any, vocabulary: Vocabulary, views: list[ViewSpec]
) -> LengthShortcut | None:
    from pretrain.start.views import measure_lengths

    synonyms = synonyms_for(
        [view.augmentation for view in views], settings.augment.synonyms, tokenizer, vocabulary
    )
    return measure_lengths(settings, reader.parts[0], vocabulary, views, synonyms, _longest(settings))


def _longest(settings: Config) -> int | None:
    # A checkpoint's own limit is in its configuration, which takes the model to read.
    return settings.model.max_positions if settings.model.init is None else None


def described(reader: ShardReader) -> str:
    """Return what the data consists of, in words."""
    if len(reader.columns) == 1 and not reader.labels:
        return f"sequences (unit {reader.unit})"
    labels = f"; {reader.labels} labels" if reader.labels else ""
    return f"records ({', '.join(reader.columns)}{labels})"


def names_of_labels(views: list[ViewSpec], reader: ShardReader) -> list[str] | None:
    """Return the name of each label of the labelled view; None without such a view.

    The names of labels in the data come from its manifest (a cache writes them), else they are numbers.
    """
    labelled = [view for view in views if view.labelled]
    if not labelled:
        return None
    if not reader.labels:
        return label_names(labelled[0])
    return reader.manifest.get("label_names") or [str(number) for number in range(reader.labels)]


def load_batch(
    settings: Config,
    reader: ShardReader,
    tokenizer: Any,
    vocabulary: Vocabulary,
    views: list[ViewSpec],
    step: int,
    rank: int,
    world_size: int,
) -> RankBatch:
    """Return the rank's batch of a step, from the Loader that training uses."""
    from pretrain.data.loader import Loader, LoaderSettings, Position, require_negatives
    from pretrain.data.tokenizer import prompt_tokens

    require_negatives(reader, views)
    synonyms = synonyms_for(
        [view.augmentation for view in views], settings.augment.synonyms, tokenizer, vocabulary
    )
    masking = Masking.of(settings.objective)
    loader = Loader(
        reader,
        BatchSpec(
            views,
            masking,
            vocabulary,
            synonyms,
            _longest(settings),
            prompt_tokens(tokenizer, settings.data.prompts),
        ),
        replace(LoaderSettings.of(settings), workers=0),
        Position(step, step + 1, rank, world_size),
    )
    return next(iter(loader))


def shape_table(batch: RankBatch, budget: int, views: list[ViewSpec]) -> Table:
    """Return a table of the sequences, tokens and lengths of each part of the batch.

    "fill" is the share of the micro-batches' token budget that is used; "fill if padded" is the share of real
    tokens if the batch were padded to its longest sequence.
    """
    from pretrain.data.microbatches import count_micro_batches

    headings = (
        "",
        "sequences",
        "tokens",
        "min",
        "median",
        "mean",
        "max",
        "micro-batches",
        "fill",
        "fill if padded",
    )
    table = Table(*headings, box=SIMPLE)
    table.columns[0].no_wrap = True
    for column in table.columns[1:]:
        column.justify = "right"
    for name, part in parts_of(batch, views):
        lengths = part.lengths
        count = count_micro_batches(lengths, budget)
        table.add_row(
            name,
            f"{len(part):,}",
            f"{part.num_tokens:,}",
            f"{lengths.min()}",
            f"{np.median(lengths):.0f}",
            f"{lengths.mean():.1f}",
            f"{lengths.max()}",
            f"{count}",
            f"{part.num_tokens / (count * budget):.0%}",
            f"{part.num_tokens / (len(part) * lengths.max()):.0%}",
        )
    return table


def parts_of(batch: RankBatch, views: list[ViewSpec]) -> list[tuple[str, Ragged]]:
    """Return the batch's parts with their names, in the order in which they are shown."""
    return [
        ("original", batch.original),
        *((f"masked {i + 1}", masked.batch) for i, masked in enumerate(batch.masked)),
        *((f"view {i + 1} {spec.role}", batch.views[spec.role].tokens) for i, spec in enumerate(views)),
    ]


def rate_lines(
    batch: RankBatch, vocabulary: Vocabulary, views: list[ViewSpec], names: list[str] | None
) -> list[str]:
    """Return what masking and augmentation did to the whole batch, in shares.

    names: of the labels (`names_of_labels`).
    """
    original = batch.original
    ordinary = max(1, int((~vocabulary.special[original.ids]).sum()))
    lines = []
    for number, masked in enumerate(batch.masked):
        seen = masked.batch.ids[masked.positions]
        count = max(1, len(seen))
        hidden, kept = (seen == vocabulary.mask_id).sum() / count, (seen == masked.labels).sum() / count
        lines.append(
            f"masked {number + 1}: {len(seen):,} tokens to predict, {len(seen) / ordinary:.1%} of the "
            f"ordinary ones: {hidden:.1%} [MASK], {1 - hidden - kept:.1%} another token, {kept:.1%} "
            "unchanged"
        )
    texts = sequence_identities(original)
    for number, spec in enumerate(views):
        view = batch.views[spec.role]
        of_text = np.flatnonzero(view.identities == texts)
        facts = []
        if len(of_text) < len(texts):
            facts.append(f"{1 - len(of_text) / len(texts):.1%} of the sequences from column {spec.column}")
        if not view.present.all():
            facts.append(f"{1 - view.present.mean():.1%} absent (the text fills their place)")
        if len(of_text):
            facts.append(_changes(original.take(of_text), view.tokens.take(of_text), vocabulary))
        lines.append(f"view {number + 1}, {spec.role} ({spec.augmentation}): " + "; ".join(facts))
    if len(batch.views) == 2:
        both = [view.tokens for view in batch.views.values()]
        lines.append(f"identical views: {_same(*both):.1%} of the sequences")
    if names is not None:
        assert batch.labels is not None  # the names are of its labels
        shares = np.bincount(batch.labels, minlength=len(names)) / len(texts)
        lines.append("labels: " + ", ".join(f"{share:.1%} {name}" for name, share in zip(names, shares)))
    repeated = len(texts) - len(np.unique(texts))
    lines.append(f"repeated texts: {repeated:,} of {len(texts):,}")
    return lines


def _changes(original: Ragged, view: Ragged, vocabulary: Vocabulary) -> str:
    deleted = (view.ids == vocabulary.del_id).mean() if vocabulary.del_id >= 0 else 0.0
    changed = 1 - shared_tokens(original, view, vocabulary.size) / max(1, original.num_tokens)
    return (
        f"{view.num_tokens / original.num_tokens:.1%} of the text's length, {changed:.1%} of its tokens "
        f"missing, {deleted:.1%} of the view is [DEL], {_same(original, view):.1%} of the sequences unchanged"
    )


def shared_tokens(first: Ragged, second: Ragged, size: int) -> int:
    """Return how many tokens sequence i of both has in common, whatever their order, summed over i."""
    a, b = (np.unique(part.rows() * size + part.ids, return_counts=True) for part in (first, second))
    _, here, there = np.intersect1d(a[0], b[0], assume_unique=True, return_indices=True)
    return int(np.minimum(a[1][here], b[1][there]).sum())


def sequence_lines(
    batch: RankBatch, row: int, tokenizer: Any, views: list[ViewSpec], names: list[str] | None
) -> list[str]:
    """Return one sequence of the batch as text: the original, its maskings and its views, with labels."""
    lines = [f"sequence {int(batch.sequence_ids[row])}"]
    parts = parts_of(batch, views)
    notes = {
        f"masked {number + 1}": ("labels", _labels(masked, row, tokenizer))
        for number, masked in enumerate(batch.masked)
    }
    for (name, _), spec in zip(parts[1 + len(batch.masked) :], views):
        if spec.labelled:
            assert names is not None and batch.labels is not None  # a labelled view gives both
            notes[name] = ("label", names[batch.labels[row]])
        elif not batch.views[spec.role].present[row]:
            notes[name] = ("absent", "the text fills its place")
    width = max(len(name) for name, _ in parts)
    for name, part in parts:
        lines.append(f"  {name:{width}s} {len(part[row]):4d} tokens  {_text(part[row], tokenizer)}")
        if name in notes:
            lines.append(f"  {'':{width}s} {notes[name][0]:>11s}  {notes[name][1]}")
    return lines


def _labels(masked: Masked, row: int, tokenizer: Any) -> str:
    one = masked.slice(row, row + 1)
    seen, labels = (_tokens(ids, tokenizer) for ids in (one.batch.ids[one.positions], one.labels))
    entries = (
        f"{place}: {label}" + ("" if token == tokenizer.mask_token else f" (seen as {token})")
        for place, token, label in zip(one.positions.tolist(), seen, labels)
    )
    return ", ".join(entries) or "none"


def _tokens(ids: np.ndarray, tokenizer: Any) -> list[str]:
    """Return each token as text; one that is a part of a character, or a blank, as the tokenizer names it."""
    names = tokenizer.convert_ids_to_tokens(ids.tolist())
    texts = [_text(ids[place : place + 1], tokenizer).strip() for place in range(len(ids))]
    return [text if text and "\ufffd" not in text else name for text, name in zip(texts, names)]


def _text(ids: np.ndarray, tokenizer: Any) -> str:
    return tokenizer.decode(ids.tolist(), skip_special_tokens=False, clean_up_tokenization_spaces=False)


def _same(first: Ragged, second: Ragged) -> float:
    return float(equal_sequences(first, second).mean())


if __name__ == "__main__":
    cli.run(
        inspect, keys=flags, first=("config", "data", "aug", "step", "show", "rank", "world_size", "split")
    )
