"""The parts of starting a run that are not training: data, precision, resuming, and what is said aloud."""

from __future__ import annotations

import os
import shutil
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from augment.core.errors import CannotLoad
from augment.core.pretrained import require_source, require_weights
from augment.core.vocabulary import Vocabulary
from augment.tokens.synonyms import SynonymTable
from pretrain.cache import views as cached_views
from pretrain.cache.resources import require_resources
from pretrain.checkpoint import folder as checkpoint_folder
from pretrain.checkpoint import store
from pretrain.common import cli
from pretrain.common.errors import UserError
from pretrain.common.folder_lock import LOCK, folder_lock
from pretrain.config.run import DROPOUTS, SIZES, Config
from pretrain.data.damage import describe_record
from pretrain.data.manifest import outdated, require_files
from pretrain.data.pipelines import build_for, synonyms_for
from pretrain.data.shards import MANIFEST, ShardReader
from pretrain.data.tokenizer import load_tokenizer, tokenizer_hash
from pretrain.export.folder import export, is_export, read_policy
from pretrain.model.architectures import architecture_of
from pretrain.model.encoder import SentenceEncoder, build_encoder, load_encoder
from pretrain.objectives import view_specs
from pretrain.prepare.run import find_or_prepare
from pretrain.start import continuity, inputs
from pretrain.step.heldout import Heldout
from pretrain.telemetry.run import Telemetry
from pretrain.telemetry.throughput import choose_precision as measure_precision
from pretrain.trainer import Progress

T = TypeVar("T")
SECONDS_FOR_CHOICE = 5.0
"""How long a file with another run's choice may stay empty."""


@dataclass(frozen=True)
class Data:
    """Opened data: readers of both splits, the tokenizer and what the augmentations know of it, and the
    hashes of all that decides the batches (`pretrain.start.inputs`)."""

    train: ShardReader
    heldout: ShardReader
    tokenizer: Any
    vocabulary: Vocabulary
    synonyms: SynonymTable | None
    inputs: inputs.Inputs


def dry_run(config: Config) -> Config:
    """The same run in a folder of its own, with an evaluation and a checkpoint at its second step."""
    tree = config.model_dump(exclude_unset=True)  # what was not given must not look as if it were
    tree["folder"] = config.run_folder.with_name(config.run_folder.name + ".dry-run")
    tree["checkpoint"] = tree.get("checkpoint", {}) | {"resume": "never", "every": 2}
    tree["evaluate"] = tree.get("evaluate", {}) | {
        "every": 2,
        "heldout_sequences": min(200, config.evaluate.heldout_sequences),
        "partners": min(200, config.evaluate.partners),
    }
    tree["train"] = tree.get("train", {}) | {"log_every": 1}
    for section in tree.get("objective", {}).values():
        if isinstance(section, dict) and {"start_step", "warmup_steps"} & set(section):
            section |= {"start_step": 0, "warmup_steps": 0}  # try the whole step, not its first phase
    return Config.model_validate(tree)


@contextmanager
def one_writer(folder: Path) -> Iterator[None]:
    """Hold the run folder, on rank 0 for all ranks: no other process may write into it. Collective.

    Raises:
        UserError: another run holds it, or it cannot be made.
    """

    def hold() -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(
                f"cannot make the run folder {folder}: {error.strerror}; name another with --run"
            ) from None
        held.callback(remove_if_empty)
        held.enter_context(folder_lock(folder))

    def remove_if_empty() -> None:
        with suppress(OSError):
            folder.rmdir()  # of a start that was refused before it wrote anything

    with ExitStack() as held:
        on_rank_zero(hold)
        yield


def empty_folder(folder: Path) -> None:
    """Remove what an earlier dry run left in a folder that this run holds."""

    def empty() -> None:
        for path in folder.iterdir():
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            elif not path.name.startswith(LOCK):
                path.unlink()

    on_rank_zero(empty)


def check_sources(config: Config) -> None:
    """Look at the models that the configuration names, before processes meet and data is prepared.

    Raises:
        UserError: one is no folder and no hub's name, or its weights cannot be read.
    """
    generator = config.objective.diffcse.generator if "diffcse" in config.objective.parts else None
    for key, source in (("model.init", config.model.init), ("objective.diffcse.generator", generator)):
        try:
            if source is not None:
                require_source(source)
                require_weights(source)
        except CannotLoad as error:
            raise UserError(f"{key}={source}: {error}") from None


def check_budget(config: Config, encoder: SentenceEncoder) -> None:
    """One longest sequence must fit a micro-batch; found now, not on one rank at some step."""
    if config.train.micro_batch_tokens < encoder.max_positions:
        raise UserError(
            f"train.micro_batch_tokens={config.train.micro_batch_tokens} is less than one longest sequence; "
            "raise it "
            f"to {encoder.max_positions} (model.max_positions) or more"
        )


def sts_everywhere(config: Config, available: bool) -> bool:
    """Whether every rank sees the STS data; ranks must agree, since they embed it together.

    Raises:
        UserError: `evaluate.sts` names a folder without it.
    """
    if config.evaluate.sts is not None and not available:
        raise UserError(
            f"evaluate.sts={config.evaluate.sts} has no SentEval/STS/STSBenchmark; leave it out to train "
            "without STS"
        )
    flag = torch.tensor([int(available)])
    group = dist.new_group(backend="gloo")
    dist.all_reduce(flag, dist.ReduceOp.MIN, group=group)
    dist.destroy_process_group(group)
    return bool(flag)


def _ranks_here() -> int:
    return int(os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("LOCAL_SIZE") or 1)


def threads_of_user() -> int | None:
    """The number of threads that the user has set in OMP_NUM_THREADS; None: none.

    torchrun sets 1 for two or more ranks where the user has set nothing, so a 1 under torchrun is taken for
    its own.
    """
    # OpenMP's own form is a list, one number for each level of nesting; torch has one level.
    asked = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if not asked.isdecimal() or not int(asked):
        return None
    by_torchrun = int(asked) == 1 and "TORCHELASTIC_RUN_ID" in os.environ and _ranks_here() > 1
    return None if by_torchrun else int(asked)


def set_threads(config: Config) -> int:
    """CPU threads of this rank: `train.threads`, else OMP_NUM_THREADS (`threads_of_user`), else this
    machine's cores shared out over its ranks."""
    threads = (
        config.train.threads or threads_of_user() or max(1, len(os.sched_getaffinity(0)) // _ranks_here())
    )
    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)  # denormal gradients are hundreds of times slower on some CPUs
    return threads


def check_world(config: Config, world: int) -> None:
    """Lanes must divide evenly over the ranks.

    Raises:
        UserError: they do not; the message names lane counts that would.
    """
    lanes = config.data.lanes
    if lanes % world:
        fitting = [
            n
            for n in range(world, config.train.global_batch + 1, world)
            if config.train.global_batch % n == 0
        ]
        near = min(fitting, key=lambda n: abs(n - lanes), default=None)
        raise UserError(
            f"data.lanes={lanes} is not a multiple of the {world} ranks of this run; "
            + (
                f"set data.lanes={near} (the order of the data depends on it, so not in the middle of a run)"
                if near
                else f"no number of lanes is both a multiple of {world} and a divisor of train.global_batch="
                f"{config.train.global_batch}; change that too"
            )
        )


def on_rank_zero(action: Callable[[], T], hours: float = 48) -> T | None:
    """Run `action` on rank 0 while the others wait; whatever it raises ends every rank, a UserError as
    itself. Rank 0 has printed it before the others hear of it.

    Returns what `action` returned, None on the other ranks.
    """
    result: T | None = None
    fault: list[str | None] = [None]
    raised: Exception | None = None
    group = dist.new_group(backend="gloo", timeout=timedelta(hours=hours))
    if dist.get_rank() == 0:
        try:
            result = action()
        except Exception as error:
            raised, fault = error, [str(error) or type(error).__name__]
            if dist.get_world_size() > 1:
                cli.tell_first(error)
    dist.broadcast_object_list(fault, src=0, group=group)
    dist.destroy_process_group(group)
    if raised is not None:
        raise raised
    if fault[0] is not None:
        error = UserError(fault[0])
        error.told = True
        raise error
    return result


def find_data(config: Config) -> None:
    """Prepare the data folder if it holds none, and make what `data.cache` wants once; call it on one rank.

    Raises:
        UserError: --data names a folder without prepared data, and nothing says what it should be prepared
            from; or `data.cache` wants views that cannot be made once.
        AugmentationError: the augmentations need something that this machine lacks.
    """
    folder, recipe = config.data_folder, config.data.prepare
    # What cannot be made, and what is missing for it, is said before hours of preparation.
    made = cached_views.is_made(config) if config.data.cache else (folder / MANIFEST).is_file()
    if not made:
        require_resources([view.augmentation for view in view_specs(config)], config.augment.synonyms)
    if (
        config.data.folder is not None
        and not (folder / MANIFEST).is_file()
        and "sources" not in recipe.model_fields_set
    ):
        raise UserError(
            f"{folder} holds no prepared data. Prepare it: python -m pretrain.prepare --source ... --out "
            f"{folder}; "
            "or say what from: --data.prepare.sources 'wiki.txt.gz,books/*.txt'"
        )
    if config.model.init is not None and recipe.tokenizer is None:
        # a checkpoint's ids are its own tokenizer's
        recipe = recipe.model_copy(update={"tokenizer": config.model.init})
    find_or_prepare(folder, recipe)
    if config.data.cache:
        cached_views.make(config)


def open_data(config: Config) -> Data:
    """Find the prepared data, or prepare it on rank 0; check that its tokenizer has what the run needs."""
    on_rank_zero(lambda: find_data(config))
    config = cached_views.trains_on(config)
    folder = config.data_folder
    train, heldout = ShardReader(folder, "train"), ShardReader(folder, "heldout")
    on_rank_zero(lambda: check_files(train, config.data.damaged))
    on_rank_zero(lambda: say_if_outdated(train))
    tokenizer = load_tokenizer(folder / "tokenizer")
    if tokenizer_hash(folder) != train.tokenizer_hash:
        raise UserError(
            f"{folder / 'tokenizer'} is not the tokenizer that the shards beside it were written with; put "
            "that one "
            "back, or prepare the data anew with it (--data.prepare.tokenizer FOLDER) in another folder"
        )
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    views = [view.augmentation for view in view_specs(config)]
    synonyms = synonyms_for(views, config.augment.synonyms, tokenizer, vocabulary)
    for spec in views:
        build_for(train, spec, vocabulary, synonyms)  # fails now, by name, rather than in a worker
    return Data(train, heldout, tokenizer, vocabulary, synonyms, inputs.collect(config, train, heldout))


def check_files(reader: ShardReader, damaged: str) -> None:
    """`require_files`; with `data.damaged` skip a warning in place of the error."""
    try:
        require_files(reader.folder, reader.manifest)
    except UserError as error:
        if damaged == "refuse":
            raise UserError(
                f"{error}; or train without the chunks that cannot be read: --data.damaged skip"
            ) from None
        print(
            f"WARNING: {error}. data.damaged is skip: chunks that cannot be read are replaced",
            file=sys.stderr,
            flush=True,
        )


def say_if_outdated(reader: ShardReader) -> None:
    """Say in one line that an earlier version prepared the data: a run would train on it without a word."""
    if said := outdated(reader.folder, reader.manifest):
        print(f"WARNING: {said}", file=sys.stderr, flush=True)


def choose_precision(config: Config, before: dict[str, Any] | None) -> str:
    """`train.precision`; `auto` is what the run used before it was resumed, else what `train.precision_file`
    says, else measured; rank 0 decides (dtypes must agree)."""
    chosen: list[str | None] = [config.train.precision]
    if chosen[0] == "auto" and before is not None:
        chosen = [before["config"]["train"]["precision"]]
    elif chosen[0] == "auto":
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        chosen = [
            shared_choice(config.train.precision_file, device.type, lambda: measure_precision(device)[0])
        ]
        dist.broadcast_object_list(chosen, src=0)
    if chosen[0] == "fp16" and not torch.cuda.is_available():
        raise UserError("train.precision=fp16 is for GPUs; on a CPU use bf16, fp32 or auto")
    return chosen[0]


def shared_choice(path: Path | None, device: str, measure: Callable[[], str]) -> str:
    """What the first of several runs has measured: two measurements on a busy machine may differ, and runs of
    one comparison must not. Runs that start at once measure each, and the first to write decides.

    path: a file for each type of device is made by it, PATH-cpu or PATH-cuda; None: measure.

    Raises:
        UserError: the file cannot be written, or says something else.
    """
    if path is None:
        return measure()
    file = path.with_name(f"{path.name}-{device}")
    try:
        if not file.is_file():
            mine = file.with_name(f".{file.name}.{uuid.uuid4().hex}")
            file.parent.mkdir(parents=True, exist_ok=True)
            text = measure() + "\n"
            try:
                mine.write_text(text)
                _create_first(file, text, mine)
            finally:
                mine.unlink(missing_ok=True)
        found = _read_choice(file)
    except OSError as error:
        raise UserError(
            f"train.precision_file: {file} cannot be used ({error.strerror}); name another, or set "
            "--train.precision "
            "to bf16 or fp32"
        ) from None
    if found not in ("fp32", "bf16"):
        raise UserError(f"train.precision_file: {file} says {found!r}, not fp32 or bf16; remove it")
    return found


def _create_first(file: Path, text: str, mine: Path) -> None:
    """Create `file` with `text`, which `mine` holds too, unless another process has created it first."""
    with suppress(FileExistsError):
        try:
            os.link(mine, file)  # whole or not at all
        except FileExistsError:
            raise
        except OSError:  # no hard links there: CIFS, exFAT, many of FUSE
            with open(file, "x") as created:
                created.write(text)


def _read_choice(file: Path) -> str:
    """Read what the first run has chosen; without hard links the file is empty for a moment after it was
    created."""
    end = time.monotonic() + SECONDS_FOR_CHOICE
    while not (found := file.read_text().strip()) and time.monotonic() < end:
        time.sleep(0.01)
    return found


def make_encoder(config: Config, tokenizer: Any) -> SentenceEncoder:
    """The encoder that `model:` describes: from a checkpoint where `model.init` names one, else random.

    With a checkpoint `config.model` says afterwards what is true of the model that was built.

    Raises:
        UserError: a size is given that the checkpoint does not have.
    """
    model = config.model
    if model.init is not None:
        given = {key: getattr(model, key) for key in (*SIZES, *DROPOUTS) if key in model.model_fields_set}
        encoder = load_encoder(
            model.init, tokenizer, model.pooling, given.get("dropout"), given.get("attention_dropout")
        )
        built = architecture_of(encoder.lm.config)
        if wrong := [key for key in SIZES if given.get(key) is not None and given[key] != built[key]]:
            has = ", ".join(f"{key} {built[key]}, not {given[key]}" for key in wrong)
            raise UserError(
                f"a checkpoint keeps its sizes: {model.init} has {has}. Leave out "
                f"{', '.join(f'model.{key}' for key in wrong)}, or train from random weights, without "
                "model.init"
            )
        config.model = model.model_copy(update=built)
    else:
        architecture = model.model_dump(exclude={"init", "pooling"}, exclude_none=True)
        architecture["intermediate_size"] = model.intermediate_size or 4 * model.hidden_size
        encoder = build_encoder(architecture, tokenizer, model.pooling)
    return encoder


def resume_from(config: Config, data: Data) -> tuple[Path | None, dict[str, Any] | None]:
    """The checkpoint to go on from and its state, or (None, None) for a start from the beginning. Makes the
    run folder.

    Raises:
        UserError: the folder holds a run and `store.resume` is never; other inputs (`pretrain.start.inputs`)
            or an incompatible recipe.
    """
    folder, wish = config.run_folder, config.checkpoint.resume
    checkpoints = folder / "checkpoints"
    choice = None
    if wish == "never":
        if found := [
            *checkpoint_folder.candidates(checkpoints),
            *checkpoint_folder.set_aside_folders(checkpoints),
        ]:
            raise UserError(
                f"{folder} already holds a run ({found[0].name}): go on with it by --resume auto, or name "
                "another "
                "folder with --run"
            )
    elif wish == "auto":
        choice = store.resume_point(checkpoints)
    else:
        choice = _named_checkpoint(Path(wish), checkpoints)
    state = None if choice is None else _state_of(choice.path, config, data)
    on_rank_zero(lambda: _make_run_folder(folder, config.data_folder / "tokenizer"))
    if choice is None:
        return None, None
    on_rank_zero(lambda: _set_others_aside(choice, state["step"], checkpoints))
    return choice.path, state


def _state_of(source: Path, config: Config, data: Data) -> dict[str, Any]:
    """The state in a checkpoint, with what this start changes written into its progress.

    Raises:
        UserError: it is of other inputs, or of another recipe.
    """
    state = store.read_state(source)
    others = inputs.require_same(source, inputs.recorded(state), data.inputs, config.checkpoint.accept)
    continuity.record_changes(config, state, source)
    state["progress"]["changes"] += [{"step": state["step"], **other} for other in others]
    return state


def _named_checkpoint(source: Path, checkpoints: Path) -> checkpoint_folder.Choice:
    """The checkpoint that --resume names.

    Raises:
        UserError: it cannot be used, or lies elsewhere while the run folder holds checkpoints of its own.
    """
    if problem := store.problem_with(source):
        raise UserError(
            f"--resume {source}: it {problem}. Or --resume auto, which goes on from the newest good "
            "checkpoint of "
            f"{checkpoints.parent}"
        )
    own = checkpoint_folder.candidates(checkpoints)
    if own and source.resolve().parent != checkpoints.resolve():
        raise UserError(
            f"--resume {source} is of another run, and {checkpoints.parent} holds checkpoints of its own "
            f"({own[0].name}), which it would replace: name another folder with --run"
        )
    return checkpoint_folder.Choice(source)


def _set_others_aside(choice: checkpoint_folder.Choice, step: int, checkpoints: Path) -> None:
    """Rename the checkpoints that this resume passes over: a later start must not take them for the newest of
    this run."""
    passed = {path: ("damaged", f"it {problem}") for path, problem in choice.damaged}
    if choice.path.parent.resolve() == checkpoints.resolve():
        for path in checkpoint_folder.candidates(checkpoints):
            if checkpoint_folder.step_of(path) > step:
                passed.setdefault(path, ("abandoned", f"--resume {choice.path} goes on from an earlier one"))
    for path, (kind, why) in passed.items():
        try:
            there = checkpoint_folder.set_aside(path, kind)
        except OSError as error:
            raise UserError(
                f"cannot rename {path}, which must not be resumed from ({why}): {error.strerror}"
            ) from None
        print(
            f"warning: {path} is kept as {there.name}: {why}. This run goes on from {choice.path.name}",
            file=sys.stderr,
            flush=True,
        )


def _make_run_folder(folder: Path, tokenizer: Path) -> None:
    """checkpoints/, and the tokenizer, so that the run can be exported when its data is gone."""
    try:
        (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
        shutil.copytree(tokenizer, folder / "tokenizer", dirs_exist_ok=True)
    except OSError as error:
        raise UserError(
            f"cannot write the run folder {folder}: {error.strerror}; name another with --run"
        ) from None


def keep_start(folder: Path, save: Callable[[Path], Path], keep_best: Callable[[Path], None]) -> None:
    """Export the model as it starts to best/: until an evaluation is better, the start is the best.
    Collective.

    A checkpoint is what all ranks can write together at any ZeRO stage; this one is no place to resume from,
    and is removed.
    """
    aside = folder / ".start"
    on_rank_zero(lambda: shutil.rmtree(aside, ignore_errors=True))
    keep_best(save(aside / "checkpoints"))
    on_rank_zero(lambda: shutil.rmtree(aside, ignore_errors=True))


def repair_best(folder: Path, progress: Progress) -> None:
    """Make best/ the export of the best step that a resumed run records. Collective.

    It is another one where a kill came between a checkpoint and the export of it, where its files were
    damaged, and where it belongs to a future that this resume has left. Without a checkpoint of the best step
    there is nothing to export again: best/ is set aside, and the next evaluation is the best.

    Raises:
        UserError: that checkpoint cannot be read now, or best/ cannot be written.
    """
    holds = [True]

    def repair() -> None:
        holds[0] = _export_best(folder, progress)

    on_rank_zero(repair)
    dist.broadcast_object_list(holds, src=0)
    if not holds[0]:
        progress.best_score = None


def _export_best(folder: Path, progress: Progress) -> bool:
    """See to it that best/ holds the best step, if a checkpoint of it is whole; returns whether it does."""
    best, source = folder / "best", folder / "checkpoints" / f"step-{progress.best_step:08d}"
    try:
        policy = read_policy(best)
    except UserError:
        policy = None
    if policy is not None and policy["step"] == progress.best_step:
        return True
    problem = store.problem_with(source) if source.is_dir() else None
    if problem is not None and problem.kind != "damaged":
        raise UserError(f"{best} must be exported again from {source}, which {problem}. {problem.remedy}")
    exports = source.is_dir() and problem is None
    said = "is missing"
    if best.exists() and not (exports and is_export(best)):  # else the export replaces it
        kind, why = (
            ("damaged", "is not a whole export")
            if policy is None
            else ("abandoned", f"is of step {policy['step']}")
        )
        try:
            said = f"{why}, and is kept as {checkpoint_folder.set_aside(best, kind).name}"
        except OSError as error:
            raise UserError(f"cannot rename {best}, which {why}: {error.strerror}") from None
    elif exports or progress.best_score is None:
        said = ""
    if said:
        then = (
            f"exported again from {source.name}"
            if exports
            else "of which there is no checkpoint to export again: the next evaluation counts as the best"
        )
        print(
            f"warning: {best} {said}. The best step so far is {progress.best_step}, {then}",
            file=sys.stderr,
            flush=True,
        )
    if exports:
        export(source, best)
    return exports


def note_damage(data: Data, heldout: Heldout, progress: Progress, telemetry: Telemetry) -> None:
    """Warn of the damaged chunks in the run's record, and record the held-out chunks that were found damaged
    now."""
    if dist.get_rank() == 0:
        told = [
            describe_record(data.train, progress.substitutions),
            describe_record(data.heldout, progress.heldout_left_out, "left out of evaluations"),
        ]
        for text in filter(None, told):
            telemetry.warn(text)
    for row in heldout.left_out:
        telemetry.warn(
            f"held-out chunk {row['chunk']} is damaged ({row['reason']}) and is left out from now on, also "
            "when it is "
            "repaired: held-out scores are not comparable with those on the whole split"
            + (", nor with this run's earlier ones; the best score starts anew" if progress.step else "")
        )
        progress.heldout_left_out.append(row | {"step": progress.step})
    if heldout.left_out and progress.best_by != "stsb-dev":
        progress.best_score = None
