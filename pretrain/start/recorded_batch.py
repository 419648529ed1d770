"""Compare the last batch that a checkpoint records with what this start reads there, before it goes on."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch.distributed as dist

from augment.core.errors import AugmentationError
from augment.spec.grammar import loads_models
from pretrain.common.error_output import mark_printed, print_before_sending
from pretrain.common.errors import UserError
from pretrain.common.ranks import gathered, host_group
from pretrain.config.run import Config
from pretrain.data.batch import BatchSpec
from pretrain.data.loader import Loader, LoaderSettings, Position
from pretrain.data.shards import ShardReader
from pretrain.ledger import chain
from pretrain.ledger.hashes import COLUMNS, sum_words
from pretrain.start.inputs import BATCHES, accepted_names
from pretrain.step.progress import Progress

_WHY = {
    "sequences": "the data is not what the run has read: another folder, or shards that were changed. "
    "Restore the data, and resume again",
    "views": "the sequences are the same, but augmentation or masking makes something else of them: another "
    "version of this program, another vocabulary, or another library. Use the version and the environment "
    "that the run began with",
}


def verify_resumed_batch(
    config: Config, reader: ShardReader, spec: BatchSpec, progress: Progress, source: Path | None
) -> str | None:
    """Begin the ledger, or make its last batch again and compare; return a line to print. Collective.

    An accepted difference goes into `progress.changes`.

    Args:
        config, reader, spec: as the loader takes them.
        progress: as the checkpoint has it.
        source: the checkpoint; None: a new run.

    Raises:
        UserError: the batch is not as recorded, and `checkpoint.accept` does not name `batches`; or its data
            cannot be read any more.
    """
    if not progress.ledger:
        progress.ledger = chain.begin(progress.step)
        if source is None:
            return None
        return f"ledger     {source.name} is older than the ledger: batches are recorded from this step on"
    recorded = progress.ledger["last"]
    if not recorded:  # no step since it began
        return None
    found, damaged = _make_again(config, reader, spec, progress)
    if damaged:
        return "ledger     a chunk of the last batch is damaged since: it cannot be compared with the record"
    kinds = ["sequences"] if _views_may_differ(spec, progress) else list(chain.KINDS)
    differ = next((kind for kind in kinds if found[kind] != recorded[kind]), None)
    if differ is None:
        return f"ledger     the batch of step {progress.step} is as recorded ({', '.join(kinds)})"
    if BATCHES in accepted_names(config.checkpoint.accept):
        before, now = (f"{differ} {sums[differ][:12]}" for sums in (recorded, found))
        progress.changes.append({"step": progress.step, "key": BATCHES, "from": before, "to": now})
        return None
    raise UserError(
        f"{source}: the batch of step {progress.step}, made again, is not the one that the run recorded: its "
        f"{differ} have the hash {found[differ][:12]}, recorded is {recorded[differ][:12]}; {_WHY[differ]}. "
        "Nothing was changed: the checkpoint is good, and exports and evaluations of it stay valid. To "
        f"continue with the present batches, as another run from here on: --checkpoint.accept {BATCHES}, "
        "which is written into the checkpoints and metrics.jsonl"
    )


def _views_may_differ(spec: BatchSpec, progress: Progress) -> bool:
    """Return whether views need not be the same: models make them, or other inputs were accepted just now.

    A model's results depend on the machine, and on what else is in its batch.
    """
    accepted = any(
        change["step"] == progress.step and change["key"].startswith("input ") for change in progress.changes
    )
    return accepted or any(loads_models(view.augmentation) for view in spec.views)


def _make_again(
    config: Config, reader: ShardReader, spec: BatchSpec, progress: Progress
) -> tuple[dict[str, str], bool]:
    """Make the last batch, each rank its share; return its sums, and whether a chunk is damaged since.

    Raises:
        UserError, AugmentationError: on every rank, where it cannot be made on one.
    """
    rank, world = dist.get_rank(), dist.get_world_size()
    recorded = progress.substitutions
    position = Position(progress.step - 1, progress.step, rank, world, recorded, replaying=True)
    settings = replace(LoaderSettings.of(config), workers=0)
    if recorded:  # such a run goes on without what it cannot read
        settings = replace(settings, damaged="skip")
    mine: tuple[tuple[int, ...], bool, str | None] = ((0,) * COLUMNS, False, None)
    raised: Exception | None = None
    try:
        (batch,) = Loader(reader, spec, settings, position)
        mine = (sum_words(batch.words), bool(batch.substitutions), None)
    except (UserError, AugmentationError) as error:
        raised = error
        print_before_sending(error)
        mine = (mine[0], False, str(error))
    every = gathered(mine, host_group())
    if raised is not None:
        raise raised
    if failed := next((text for *_, text in every if text is not None), None):
        failure = UserError(failed)
        mark_printed(failure)
        raise failure
    sums = np.array([sums for sums, *_ in every], np.int64).sum(axis=0)  # modulo 2^64
    return chain.sums_in_hexadecimal(sums.tolist()), any(damaged for _, damaged, _ in every)
