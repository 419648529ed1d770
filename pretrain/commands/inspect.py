"""`clearly inspect`: a training batch as the model will see it, decoded.

The batch comes from training's own loader and configuration: --step N shows what step N of that run
trains on.

    clearly inspect --data DATA --aug del-span,reorder
    clearly inspect --config runs/NAME/config.yaml --step 1200 --rank 1 --world-size 2
"""

from typing import Any, Literal

import numpy as np

from augment.core.identity import equal_sequences
from augment.core.ragged import Ragged
from pretrain.common import cli
from pretrain.common.errors import UserError
from pretrain.config.recipe import DEFAULT_RECIPE, flags, load_config
from pretrain.data.batch import RankBatch, ViewSpec, label_names
from pretrain.data.manifest import MANIFEST
from pretrain.data.masking import Masked
from pretrain.data.shards import ShardReader
from pretrain.telemetry.formats import columns


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
    """
    if rank >= world_size:
        raise UserError(f"--rank {rank} of --world-size {world_size}: ranks count from 0 to {world_size - 1}")
    settings = load_config(config or DEFAULT_RECIPE, overrides)
    # these import torch and transformers: seconds, so not for --help and wrong flags
    from pretrain.data.tokenizer import load_tokenizer
    from pretrain.objectives import view_specs
    from pretrain.start.data import load_batch, loader_config, open_train

    copies, settings = settings.data.cache, loader_config(settings)
    if copies and not (settings.data_folder / MANIFEST).is_file():
        raise UserError(f"no run has made the views of data.cache={copies} yet: start one, or --data.cache 0")
    reader = open_train(settings) if split == "train" else ShardReader(settings.data_folder, split)
    tokenizer = load_tokenizer(reader.tokenizer_path)
    views = view_specs(settings)
    batch = load_batch(settings, views, reader, tokenizer, step, rank, world_size)
    print(
        f"{settings.data_folder}/{split}: {reader.num_sequences:,} {described(reader)}, "
        f"{reader.num_tokens:,} tokens, {reader.num_chunks:,} chunks\n"
        f"step {batch.step}, epoch {batch.epoch} of {reader.num_sequences // settings.train.global_batch:,} "
        f"steps, rank {rank} of {world_size}: {len(batch.original):,} of "
        f"{settings.batch_sizes.at_step(batch.step):,} sequences"
    )
    for entry in batch.substitutions:
        print("chunk {chunk} is damaged ({reason}): chunk {replacement} in its place".format_map(entry))
    print("", shape_table(batch, settings.train.micro_batch, views), "", sep="\n")
    names = names_of_labels(views, reader)
    for role, view in batch.views.items():
        changed = 1 - equal_sequences(batch.original, view.tokens).mean()
        print(f"{role}: {changed:.1%} differ from the text, {view.present.mean():.1%} present")
    if names is not None and batch.labels is not None:
        shares = np.bincount(batch.labels, minlength=len(names)) / len(batch.labels)
        labels = ", ".join(f"{share:.1%} {name}" for share, name in zip(shares, names))
        print(f"labels: {labels}")
    for row in range(min(show, len(batch.original))):
        print("", *sequence_lines(batch, row, tokenizer, views, names), sep="\n")


def described(reader: ShardReader) -> str:
    """Return what the data consists of, in words."""
    if len(reader.columns) == 1 and not reader.labels:
        return f"sequences (unit {reader.unit})"
    labels = f"; {reader.labels} labels" if reader.labels else "; scores" if reader.scored else ""
    return f"records ({', '.join(reader.columns)}{labels})"


def names_of_labels(views: list[ViewSpec], reader: ShardReader) -> list[str] | None:
    """Return the name of each label of the labelled view (a number if the data says none); None: no view."""
    labelled = [view for view in views if view.labelled]
    if not labelled:
        return None
    if not reader.labels:
        return label_names(labelled[0])
    return reader.manifest.get("label_names") or [str(number) for number in range(reader.labels)]


def shape_table(batch: RankBatch, budget: int, views: list[ViewSpec]) -> str:
    """Return a table of the sequences, tokens, lengths and micro-batches of each part of the batch."""
    from pretrain.data.microbatches import count_micro_batches

    rows = []
    for name, part in parts_of(batch, views):
        lengths = part.lengths
        shape = f"{len(part):,} {part.num_tokens:,} {lengths.min()} {lengths.mean():.1f} {lengths.max()}"
        rows.append((name, *shape.split(), str(count_micro_batches(lengths, budget))))
    return columns(("", "sequences", "tokens", "min", "mean", "max", "micro-batches"), rows)


def parts_of(batch: RankBatch, views: list[ViewSpec]) -> list[tuple[str, Ragged]]:
    """Return the batch's parts with their names, in the order in which they are shown."""
    return [
        ("original", batch.original),
        *((f"masked {i + 1}", masked.batch) for i, masked in enumerate(batch.masked)),
        *((f"view {i + 1} {spec.role}", batch.views[spec.role].tokens) for i, spec in enumerate(views)),
    ]


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


if __name__ == "__main__":
    first = ("config", "data", "aug", "step", "show", "rank", "world_size", "split")
    cli.run(inspect, keys=flags, first=first)
