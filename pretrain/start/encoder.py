"""The encoder that a run trains: from a checkpoint, or with random weights."""

from __future__ import annotations

from typing import Any

import torch

from augment.core.errors import CannotLoad
from augment.core.pretrained import require_source, require_weights
from pretrain.common.errors import UserError
from pretrain.config.run import DROPOUTS, SIZES, Config
from pretrain.model.architectures import architecture_of
from pretrain.model.encoder import SentenceEncoder, build_encoder, load_encoder


def check_sources(config: Config) -> None:
    """Check the models that the configuration names, before ranks meet and data is prepared.

    Raises:
        UserError: one is no folder and no name on the hub, or its weights cannot be read.
    """
    generator = config.objective.diffcse.generator if "diffcse" in config.objective.parts else None
    for key, source in (("model.init", config.model.init), ("objective.diffcse.generator", generator)):
        try:
            if source is not None:
                require_source(source)
                require_weights(source)
        except CannotLoad as error:
            raise UserError(f"{key}={source}: {error}") from None


def starting_encoder(config: Config, tokenizer: Any) -> SentenceEncoder:
    """Build the encoder as a run of this configuration starts with it; its seed decides the weights.

    As `make_encoder`, which draws from torch's generator. That is left as the encoder's weights leave it.
    """
    torch.manual_seed(config.train.seed)
    return make_encoder(config, tokenizer)


def make_encoder(config: Config, tokenizer: Any) -> SentenceEncoder:
    """Build the encoder that `model:` describes: from a checkpoint where `model.init` names one, else random.

    With a checkpoint, `config.model` afterwards holds the sizes and dropouts of the model that was built.

    Raises:
        UserError: a size is given that the checkpoint does not have; or a micro-batch is smaller than the
            longest sequence.
    """
    model = config.model
    if model.init is not None:
        given = {key: getattr(model, key) for key in (*SIZES, *DROPOUTS) if key in model.model_fields_set}
        encoder = load_encoder(
            model.init,
            tokenizer,
            model.pooling,
            given.get("dropout"),
            given.get("attention_dropout"),
            model.layer_code,
            model.residual,
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
        encoder = build_encoder(
            model.architecture(), tokenizer, model.pooling, model.layer_code, model.residual
        )
    if config.train.activation_checkpointing:
        encoder.recompute_layers()
    # now, rather than on one rank at some step
    if config.train.micro_batch_tokens < encoder.max_positions:
        raise UserError(
            f"train.micro_batch_tokens={config.train.micro_batch_tokens} is less than one longest sequence; "
            f"raise it to {encoder.max_positions} (model.max_positions) or more"
        )
    return encoder
