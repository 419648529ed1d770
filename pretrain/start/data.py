"""The data of a run: found or prepared, checked, and opened."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch.distributed as dist

from augment.core.errors import nearest_name
from augment.core.vocabulary import Vocabulary
from augment.spec.build import require
from augment.spec.grammar import needs_synonyms, parse, writes_del
from augment.tokens.synonyms import SynonymTable, find_synonyms, read_synonyms
from pretrain.common.errors import UserError
from pretrain.common.ranks import on_rank_zero
from pretrain.common.run_folder import LOWER_IS_BETTER
from pretrain.config.data import DataConfig
from pretrain.config.objectives import DISTILLING, ObjectiveConfig
from pretrain.config.run import Config
from pretrain.data.batch import NEGATIVE, BatchSpec, RankBatch, ViewSpec, column_of, number_of_labels
from pretrain.data.damage import describe_record
from pretrain.data.loader import Loader, LoaderSettings, Position, require_negatives
from pretrain.data.manifest import MANIFEST, outdated, read_manifest, require_files
from pretrain.data.masking import Masking
from pretrain.data.remote import copy_prepared
from pretrain.data.shards import MixedShardReader, ShardReader
from pretrain.data.tokenizer import DEL, load_tokenizer, prompt_tokens, tokenizer_hash, without_del
from pretrain.data.worker import build_for, synonyms_for
from pretrain.export.folder import interface_of
from pretrain.export.sentence_transformers import Interface
from pretrain.model.encoder import own_tokenizer
from pretrain.model.pooling import WORDS
from pretrain.objectives import SYSTEMS, Objective, WholeObjective, view_specs
from pretrain.prepare.cache import views as cached_views
from pretrain.prepare.run import find_or_prepare
from pretrain.start import continuity
from pretrain.start.encoder import adopt_interface, check_sources
from pretrain.step.heldout import Heldout
from pretrain.step.progress import Progress
from pretrain.telemetry.run import Telemetry

DROWNED = 0.05  # least `signal_to_noise` at which a sentence loss learns; from 0.11 it did, by short excerpts


@dataclass(frozen=True)
class Data:
    """Opened data.

    config: of what the loader reads: the run's own, or that of views made once (`cached_views.trains_on`).
    views: that the loader makes of a sequence. vocabulary: what augmentations know of the tokenizer.
    inputs: hashes of all that decides the batches. interface: what the starting model says of its use.
    """

    config: Config
    views: list[ViewSpec]
    train: ShardReader
    heldout: ShardReader
    tokenizer: Any
    vocabulary: Vocabulary
    synonyms: SynonymTable | None
    inputs: continuity.Inputs
    interface: Interface | None = None

    @property
    def of_start(self) -> dict[str, Any]:
        """What exports must know of the starting model and of the run's tokenizer, as JSON."""
        said = {} if self.interface is None else asdict(self.interface)
        return {"interface": said, "tokens": len(self.tokenizer)}

    def export_interface(self, longest: int) -> Interface:
        """Return what the run's exports say of their use. longest: most tokens that the encoder takes."""
        return interface_of(self.config.model_dump(), self.of_start["interface"], longest)

    @property
    def labels(self) -> int:
        """How many labels the labelled view has; 0 if none is labelled."""
        labelled = next((view for view in self.views if view.labelled), None)
        return 0 if labelled is None else number_of_labels(labelled, self.train)


def open_data(config: Config) -> Data:
    """Open the prepared data; if there is none, prepare it on rank 0. Collective."""
    # as the run augments them, whether once or in every epoch
    augmented = on_rank_zero(lambda: view_specs(config))
    on_rank_zero(lambda: _check_prompts(config, [view.role for view in augmented]))
    on_rank_zero(lambda: find_data(config, augmented))
    on_rank_zero(lambda: check_sources(config))  # by what has been fetched
    interface = adopt_interface(config)
    specs = [view.augmentation for view in augmented]
    with_del = any(map(writes_del, [*specs, *map(config.augment.of_role, ("anchor", "positive"))]))
    config = cached_views.trains_on(config, augmented)
    folder = config.data_folder
    train, heldout = open_train(config), ShardReader(folder, "heldout")
    views = view_specs(config)  # now that the number of hard negatives is known

    def check() -> None:
        check_parts(train, config.data.damaged)
        if tokenizer_hash(folder) != train.tokenizer_hash:
            raise UserError(f"{folder / 'tokenizer'} is not that of the shards beside it; put theirs back")
        require_negatives(train, views)

    on_rank_zero(check)
    tokenizer = load_tokenizer(folder / "tokenizer")
    if config.model.init is not None and not with_del and _added_del(tokenizer, config.model.init):
        tokenizer = without_del(tokenizer)
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    specs = [view.augmentation for view in views]
    synonyms = synonyms_for(specs, config.augment.synonyms, tokenizer, vocabulary)
    for spec in specs:
        build_for(train, spec, vocabulary, synonyms)  # fails now, by name, rather than in a worker
    hashes = on_rank_zero(lambda: continuity.collect(config, views, train, heldout))
    return Data(config, views, train, heldout, tokenizer, vocabulary, synonyms, hashes, interface)


def _added_del(tokenizer: Any, start: str) -> bool:
    """Return whether [DEL] is the last token, and none of the starting model's own."""
    if tokenizer.get_vocab().get(DEL) != len(tokenizer) - 1:
        return False
    own = own_tokenizer(start)
    return own is not None and DEL not in own.get_vocab()


def _check_prompts(config: Config, roles: list[str]) -> None:
    name, prompts = config.objective.name, config.data.prompts
    if unknown := [role for role in prompts if role not in roles]:
        there = ", ".join(roles) or "none"
        raise UserError(f"data.prompts.{unknown[0]}: no view of {name} has that role; there are: {there}")
    if prompts and "diffcse" in config.objective.parts:
        raise UserError("data.prompts: diffcse would replace tokens of a prompt; leave one of them out")


def open_train(config: Config) -> ShardReader:
    """Open the split to train on; let SimCSE take all that records have, unless a number is set."""
    if config.data.sets:
        parts = [ShardReader(one.folder, "train") for one in config.data.sets]
        weights = [
            part.num_sequences ** (1 / config.data.temperature) if one.weight is None else one.weight
            for one, part in zip(config.data.sets, parts)
        ]
        reader: ShardReader = MixedShardReader(parts, weights)
    else:
        reader = ShardReader(config.data_folder, "train")
    _check_scores(config, reader)
    simcse = config.objective.simcse
    for key, kind in (("hard_negatives", NEGATIVE), ("positives", "positive")):
        there, wanted = sum(column_of(name) == kind for name in reader.columns), getattr(simcse, key)
        if wanted is True and there > 1:
            setattr(simcse, key, there)
        if there < wanted and (there if kind == NEGATIVE else wanted > 1):
            raise UserError(
                f"objective.simcse.{key} is {wanted}, and {reader.folder} has {there}: set that number, or "
                "true for all"
            )
    return reader


def _check_scores(config: Config, reader: ShardReader) -> None:
    """Refuse scores if the objective takes every pair for one of equal meaning, or their absence."""
    parts = [part for part in config.objective.parts if part in SYSTEMS]
    taking = [part for part in parts if SYSTEMS[part].negatives is not Objective.negatives]
    if reader.scored and taking:
        raise UserError(
            f"{reader.folder} has scores, and {taking[0]} takes every pair for one of equal meaning: train "
            "with --objective scored, or prepare the pairs that mean the same, without scores"
        )
    if not any(SYSTEMS[part].scored for part in parts):
        return
    if not reader.scored:
        raise UserError(
            f"{reader.folder} has no scores to learn: give records a field `score`; a source "
            "that ignores other fields needs score_key: score too"
        )
    settings = config.objective.scored
    largest = max(abs(bound) for part in reader.parts for bound in part.manifest["scores"])
    if settings.loss == "cosine" and largest > settings.highest:
        raise UserError(f"{reader.folder} has scores up to {largest:g}: set objective.scored.highest")


def load_batch(
    config: Config,
    views: Sequence[ViewSpec],
    reader: ShardReader,
    tokenizer: Any,
    step: int = 0,
    rank: int = 0,
    ranks: int = 1,
) -> RankBatch:
    """Return a rank's batch of a step, from the Loader that training uses; any step costs the same."""
    require_negatives(reader, views)
    # a checkpoint's own limit is in its configuration, which takes the model to read
    longest = config.model.max_positions if config.model.init is None else None
    spec = batch_spec(config, views, tokenizer, longest)
    settings = replace(LoaderSettings.of(config), workers=0)
    return next(iter(Loader(reader, spec, settings, Position(step, step + 1, rank, ranks))))


def batch_spec(config: Config, views: Sequence[ViewSpec], tokenizer: Any, longest: int | None) -> BatchSpec:
    """Return what a run makes of each sequence. longest: tokens that the model takes; None: any number."""
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    specs = [view.augmentation for view in views]
    return BatchSpec(
        views,
        Masking.of(config.objective),
        vocabulary,
        synonyms_for(specs, config.augment.synonyms, tokenizer, vocabulary),
        longest,
        prompt_tokens(tokenizer, config.data.prompts),
    )


def loader_config(config: Config) -> Config:
    """Return the configuration of what the loader reads: of views made once, or the run's own."""
    return cached_views.trains_on(config, view_specs(config))


def find_data(config: Config, views: Sequence[ViewSpec]) -> None:
    """Prepare the data folder if it is empty, and make the views that `data.cache` asks for; on one rank."""
    folder, recipe = config.data_folder, config.data.prepare
    if config.data.remote is not None:
        copy_prepared(config.data.remote, folder)
    # What cannot be made, and what is missing for it, fails here and not after hours of preparation.
    if not (cached_views.trains_on(config, views).data_folder / MANIFEST).is_file():
        specs = [view.augmentation for view in views]
        require(specs)
        if any(map(needs_synonyms, specs)):
            read_synonyms(config.augment.synonyms or find_synonyms())
    if config.data.sets:
        for one in config.data.sets:
            if not (one.folder / MANIFEST).is_file():
                raise UserError(
                    f"data.sets: {one.folder} holds no prepared data. Prepare it: clearly prepare "
                    f"--source ... --out {one.folder}, all sets with the tokenizer of one (--tokenizer)"
                )
        return
    named, has_sources = config.data.folder is not None, "sources" in recipe.model_fields_set
    if named and not has_sources and not (folder / MANIFEST).is_file():
        there = [manifest.parent.name for manifest in folder.absolute().parent.glob(f"*/{MANIFEST}")]
        near = nearest_name(folder.name, there)
        hint = f"; did you mean {folder.parent / near}?" if near else "."
        raise UserError(
            f"--data {folder} holds no prepared data{hint} To prepare your text: clearly prepare --source "
            f"FILES --out {folder}; or let this run do it: --data.prepare.sources FILES"
        )
    if has_sources and not named and config.data.remote is None:
        _refuse_other_sources(folder, recipe)
    if config.model.init is not None and recipe.tokenizer is None:
        # a checkpoint's ids are those of its own tokenizer
        recipe = recipe.model_copy(update={"tokenizer": config.model.init})
    find_or_prepare(folder, recipe)
    if config.data.cache:
        cached_views.make(config, views)


def _refuse_other_sources(folder: Path, recipe: DataConfig) -> None:
    """Refuse data that a run before prepared, in the folder that a recipe's name gives, from other text."""
    if not (folder / MANIFEST).is_file():
        return
    held = read_manifest(folder).get("config", {}).get("sources", [])
    wanted = [source.model_dump(mode="json") for source in recipe.sources]
    # a key that another version of this program did not have is no difference
    pairs = zip(held, wanted, strict=False)
    same = all(old[key] == new[key] for old, new in pairs for key in old.keys() & new.keys())
    if held and (len(held) != len(wanted) or not same):
        before, now = (", ".join(one["source"] for one in sources) for sources in (held, wanted))
        raise UserError(
            f"{folder} holds data that was prepared from {before}, and data.prepare.sources says {now} (or "
            "reads it in another way): name another folder with --data, or leave data.prepare.sources out"
        )


def check_parts(reader: ShardReader, damaged: str) -> None:
    """Check the files of every set; warn of outdated ones, and of missing ones if `data.damaged` is skip."""
    for part in reader.parts:
        try:
            require_files(part.folder, part.manifest)
        except UserError as error:
            if damaged == "refuse":
                way = "or train without what cannot be read: --data.damaged skip"
                raise UserError(f"{error}; {way}") from None
            _warn(f"{error}. data.damaged is skip: chunks that cannot be read are replaced")
        if warning := outdated(part.folder, part.manifest):
            _warn(warning)


def _warn(text: str) -> None:
    print(f"WARNING: {text}", file=sys.stderr, flush=True)


def report_damage(data: Data, heldout: Heldout, progress: Progress, telemetry: Telemetry) -> None:
    """Warn of the damaged chunks in the run's record, and record held-out chunks found damaged now."""
    if dist.get_rank() == 0:
        in_training = describe_record(data.train, progress.substitutions)
        heldout_chunks = describe_record(data.heldout, progress.heldout_left_out, "left out of evaluations")
        for text in filter(None, (in_training, heldout_chunks)):
            telemetry.warn(text)
    for row in heldout.left_out:
        again = ", nor with this run's earlier ones; the best score starts anew" if progress.step else ""
        telemetry.warn(
            f"held-out chunk {row['chunk']} is damaged ({row['reason']}) and is left out from now on, also "
            f"when it is repaired: held-out scores are not comparable with those on the whole split{again}"
        )
        progress.heldout_left_out.append(row | {"step": progress.step})
    if heldout.left_out and progress.best_by in LOWER_IS_BETTER:
        progress.best_score = None


# -- whether the views can teach anything ------------------------------------------------


def require_signal(
    config: Config, objective: WholeObjective, signal: float, warn: Callable[[str], None]
) -> None:
    """Warn before the first step that the sentence loss will not learn, or refuse to go on."""
    if signal >= DROWNED or not objective.needs_views(config.train.steps - 1):
        return
    model, remedy = config.model, "views that differ less (--augment.excerpt, --aug)"
    if config.objective.view_dropout and (model.dropout or model.attention_dropout):
        remedy = "--objective.view_dropout false (masked language modelling keeps dropout), or " + remedy
    if model.pooling == "cls":
        remedy = "--model.pooling mean, or " + remedy
    message = (
        f"this setting will not learn the sentence loss: two views of a sequence differ more than two "
        f"sequences do (signal to noise {signal:.3f}, pooling {model.pooling}). Give {remedy}"
    )
    if config.train.faults.dead_loss == "stop":
        raise UserError(message)
    warn(message)


def require_different_views(config: Config, data: Data, objective: WholeObjective, spec: BatchSpec) -> None:
    """Refuse views of the same tokens that are embedded without dropout: a loss could only push apart.

    Objectives of the user's own may draw a difference themselves.
    """
    dropout = config.model.dropout or config.model.attention_dropout
    if config.objective.view_dropout and dropout and config.model.pooling != WORDS:
        return
    views = {view.role: view for view in data.views}

    def text_of(role: str) -> tuple[str, bytes]:
        column, prompt = views[role].column, spec.prompt(role)
        return column if column in data.train.columns else "text", b"" if prompt is None else prompt.tobytes()

    for name in objective.terms:
        if name not in SYSTEMS or name in DISTILLING:  # a teacher's vectors are others
            continue
        section, roles = ObjectiveConfig.section(name), objective.terms[name].compared
        augmented = not all(parse(views[role].augmentation).is_identity for role in roles)
        if augmented or len(set(map(text_of, roles))) > 1 or not getattr(config.objective, section).weight:
            continue
        specs = ", ".join(dict.fromkeys(f"{role} {config.augment.of_role(role)}" for role in roles))
        raise UserError(
            f"the objective {name} compares views of a sentence that are the same tokens (augment: {specs}), "
            "and no dropout tells them apart. Set an augmentation (--aug del-span,reorder) or dropout "
            "(--model.dropout 0.1, objective.view_dropout), or train on data with a column `positive`"
        )
