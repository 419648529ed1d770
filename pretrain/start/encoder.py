"""The encoder that a run trains, from a checkpoint or with random weights, and the one that guides it."""

from typing import Any

import numpy as np
import torch
from transformers import AutoConfig

from augment.core.errors import CannotLoad
from augment.core.pretrained import pretrained, require_source, require_weights
from pretrain.common.errors import UserError, naming
from pretrain.common.ranks import on_rank_zero
from pretrain.config.objectives import DISTILLING
from pretrain.config.run import DROPOUTS, SIZES, Config
from pretrain.data.shards import DamagedShard, ShardReader
from pretrain.export.folder import read_policy
from pretrain.export.sentence_transformers import Interface, read_modules
from pretrain.model.architectures import architecture_of, family_of
from pretrain.model.encoder import SentenceEncoder, build_encoder, check_tokenizer, load_encoder
from pretrain.model.pooling import WORDS, sif_weights
from pretrain.start.local_ranks import require_positions


def check_sources(config: Config) -> None:
    """Refuse models that cannot be found or read, or take too few positions for the data that is known."""
    for part in DISTILLING:
        if part in config.objective.parts and getattr(config.objective, part).model is None:
            what = "a start: give --init, or" if part == "retain" else "a teacher: set"
            raise UserError(f"objective {part} needs {what} objective.{part}.model")
    generator = config.objective.diffcse.generator if "diffcse" in config.objective.parts else None
    named = {
        "model.init": config.model.init,
        "objective.diffcse.generator": generator,
        config.objective.guide_key: config.objective.guide,
    }
    for key, source in named.items():
        with naming(f"{key}={source}", CannotLoad, UserError):
            if source is not None:
                require_source(source)
                require_weights(source)
                own = pretrained(AutoConfig, source)
                most = family_of(own.model_type).usable_positions(own)
        unused = key == "objective.diffcse.generator" and not config.objective.diffcse.replaced_token_weight
        if source is not None and not unused:
            require_positions(config, most, f"{key}={source}")
    adopt_interface(config)
    if config.model.token_weights != "equal" and (pooling := config.model.pooling) in ("cls", WORDS):
        what = "weighs tokens in a mean of states"
        raise UserError(f"model.token_weights {what}, and model.pooling is {pooling}: choose another pooling")


def adopt_interface(config: Config) -> Interface | None:
    """Return what `model.init` says of its use, which exports repeat; None: it says nothing.

    Its pooling becomes `model.pooling`, unless a flag, or the recipe that names the start, gives one. From
    then on `model.pooling` counts as given, so that a copy of the configuration keeps it.
    """
    if (init := config.model.init) is None:
        return None
    modules = read_modules(init)
    if modules is not None and "pooling" not in config.model.model_fields_set:
        policy = read_policy(init)
        lost = modules.others + (["Dense"] if modules.head is not None else [])
        if policy is None and lost:
            what = f"--init {init} makes its vectors by what training cannot keep ({', '.join(lost)})"
            raise UserError(f"{what}; give --model.pooling cls or mean to train it without that")
        pooling: Any = modules.pooling if policy is None else policy["pooling"]
        config.model.pooling = pooling
    config.model.model_fields_set.add("pooling")
    return None if modules is None else modules.interface


def starting_encoder(config: Config, tokenizer: Any) -> SentenceEncoder:
    """Build the encoder that `model:` describes: from a checkpoint if `model.init` names one, else random.

    With a checkpoint, `config.model` afterwards holds the sizes and dropouts of the model that was built. The
    run's seed decides random weights; torch's generator is left as these leave it.
    """
    torch.manual_seed(config.train.seed)
    model = config.model
    if model.init is not None:
        given = {key: getattr(model, key) for key in (*SIZES, *DROPOUTS) if key in model.model_fields_set}
        encoder = load_encoder(
            model.init,
            tokenizer,
            model.pooling,
            dropout=given.get("dropout"),
            attention_dropout=given.get("attention_dropout"),
        )
        built = architecture_of(encoder.lm.config)
        if wrong := [key for key in SIZES if given.get(key) is not None and given[key] != built[key]]:
            has = ", ".join(f"model.{key} {built[key]}, not {given[key]}" for key in wrong)
            raise UserError(f"a checkpoint keeps its sizes: {model.init} has {has}. Leave that out")
        config.model = model.model_copy(update=built)
        modules = read_modules(model.init)
        if modules is not None and modules.pooling == model.pooling and not modules.others:
            encoder.weigh_tokens(modules.token_weights)
        if encoder.token_weights is not None and not config.data.prompts_pooled:
            raise UserError(f"{model.init} weighs tokens, which goes with data.prompts_pooled=true")
    else:
        encoder = build_encoder(model.architecture(), tokenizer, model.pooling)
    encoder.exact_attention = model.attention == "exact"
    if config.train.activation_checkpointing:
        encoder.recompute_layers()
    # now, rather than on one rank at some step
    if config.train.micro_batch < (longest := encoder.max_positions):
        raise UserError(f"train.micro_batch_tokens must be model.max_positions={longest} or more")
    return encoder


def start_at_frequencies(encoder: SentenceEncoder, data: ShardReader, tokenizer: Any) -> None:
    """Set the masked-language head's bias to the log of each token's relative frequency in the data.

    A head that starts at 0 teaches the encoder the frequencies first: the quickest way is one vector for
    every token of every text, and deep encoders stay there. 1 is added to each count; special tokens, which
    are never predicted, count as unseen.
    """
    bias = encoder.lm.get_output_embeddings().bias
    counts = count_tokens(data, len(bias))
    counts[tokenizer.all_special_ids] = 0
    with torch.no_grad():
        bias.copy_(torch.from_numpy(np.log((counts + 1) / (counts + 1).sum())))


def weigh_by_frequency(encoder: SentenceEncoder, data: ShardReader) -> None:
    """Let means over tokens be by SIF weights of the data's tokens, which exports keep. Collective."""
    counts = on_rank_zero(lambda: count_tokens(data, encoder.vocab_size))  # ranks may find other damage
    if not counts.any():
        raise UserError("model.token_weights: no token of the data can be read; see clearly inspect DATA")
    encoder.token_weights = torch.from_numpy(sif_weights(counts)).float()


def count_tokens(data: ShardReader, size: int) -> np.ndarray:
    """Count the tokens of at most 32 chunks (2 million tokens), evenly spread: int64[V]."""
    counts = np.zeros(size, np.int64)
    for chunk in np.unique(np.linspace(0, data.num_chunks - 1, 32).astype(int)):
        try:
            counts += np.bincount(data.read(int(chunk)).stored.ids, minlength=size)
        except DamagedShard:  # training says so, and decides what follows
            continue
    return counts


def guiding_encoder(config: Config, tokenizer: Any) -> SentenceEncoder | None:
    """Load the frozen encoder beside the trained one (`ObjectiveConfig.guide`); None: there is none.

    Its vectors are those that it is used by: its own pooling and, if it keeps one, its head.
    """
    if (source := config.objective.guide) is None:
        return None
    with naming(f"{config.objective.guide_key}={source}", UserError, CannotLoad):
        policy, modules = read_policy(source), read_modules(source)
        if policy is None and modules is not None and modules.others:
            raise UserError(f"packed rows have no counterpart of its {', '.join(modules.others)}")
        pooling = policy["pooling"] if policy else modules.pooling if modules else "mean"
        check_tokenizer(pretrained(AutoConfig, source).vocab_size, tokenizer, source, "guide")
        with torch.random.fork_rng(devices=[]):  # heads then start as they do without a guide
            guide = load_encoder(source, tokenizer, pooling)
    if modules is not None:
        modules.install(guide, tokenizer)
    return guide.requires_grad_(False).eval()
