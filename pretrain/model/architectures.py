"""The encoder families that packed training knows, and the three things it must know of each.

A family is a Hugging Face masked language model whose attention runs through the library's attention
interface and whose positions are given by `position_ids`. A new one is a row of `FAMILIES`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.nn.functional import gelu
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel

from pretrain.common.errors import UserError


@dataclass(frozen=True)
class Family:
    """`mlm_head(lm, [P, H])` gives what the model's output map takes to logits [P, V]."""

    mlm_head: Callable[[PreTrainedModel, Tensor], Tensor]
    names: Mapping[str, tuple[str, ...]]
    """Our name of a size -> the config's names for it."""
    positions_follow_padding: bool = False
    """RoBERTa has fairseq's numbering: position padding_idx is the padding's, the first token's the next."""

    def first_position(self, config: PreTrainedConfig) -> int:
        """Return the position of a sequence's first token."""
        return config.pad_token_id + 1 if self.positions_follow_padding else 0

    def usable_positions(self, config: PreTrainedConfig) -> int:
        """Return the longest sequence, special tokens included, that has a position for every token."""
        return config.max_position_embeddings - self.first_position(config)


_BERT_NAMES: dict[str, tuple[str, ...]] = {
    "layers": ("num_hidden_layers",),
    "hidden_size": ("hidden_size",),
    "heads": ("num_attention_heads",),
    "intermediate_size": ("intermediate_size",),
    "max_positions": ("max_position_embeddings",),
    "dropout": ("hidden_dropout_prob",),
    "attention_dropout": ("attention_probs_dropout_prob",),
}
_DISTILBERT_NAMES = _BERT_NAMES | {
    "intermediate_size": ("hidden_dim",),
    "dropout": ("dropout",),
    "attention_dropout": ("attention_dropout",),
}
_MODERNBERT_NAMES = _BERT_NAMES | {
    "dropout": ("embedding_dropout", "mlp_dropout"),
    "attention_dropout": ("attention_dropout",),
}


_ROBERTA = Family(
    lambda lm, hidden: lm.lm_head.layer_norm(gelu(lm.lm_head.dense(hidden))),
    _BERT_NAMES,
    positions_follow_padding=True,
)

FAMILIES: dict[str, Family] = {
    "bert": Family(lambda lm, hidden: lm.cls.predictions.transform(hidden), _BERT_NAMES),
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "camembert": _ROBERTA,
    "distilbert": Family(
        lambda lm, hidden: lm.vocab_layer_norm(lm.activation(lm.vocab_transform(hidden))), _DISTILBERT_NAMES
    ),
    "electra": Family(lambda lm, hidden: lm.generator_predictions(hidden), _BERT_NAMES),
    "modernbert": Family(lambda lm, hidden: lm.head(hidden), _MODERNBERT_NAMES),
}
"""transformers' `config.model_type` -> family."""


def family_of(model_type: str) -> Family:
    """Return the family of a model type, or raise a UserError that lists the supported ones."""
    if model_type not in FAMILIES:
        raise UserError(f"model type '{model_type}' is not supported; choose one of {', '.join(FAMILIES)}.")
    return FAMILIES[model_type]


def architecture_of(config: PreTrainedConfig) -> dict[str, Any]:
    """Describe a model in our names of its sizes: type, layers, hidden_size, ..., attention_dropout.

    `config_from` the other way round. Where a size goes by several of the library's names it is the largest.
    """
    family = family_of(config.model_type)
    named = {ours: max(getattr(config, name) for name in theirs) for ours, theirs in family.names.items()}
    return {
        "type": config.model_type,
        **named,
        "max_positions": family.usable_positions(config),
        "initializer_range": config.initializer_range,
    }


def set_dropout(config: PreTrainedConfig, dropout: float | None, attention_dropout: float | None) -> None:
    """Set a config's dropout on its layers (a classifier's as well) and on attention; None: leave it."""
    names = family_of(config.model_type).names
    for ours, rate in (("dropout", dropout), ("attention_dropout", attention_dropout)):
        if rate is not None:
            for name in names[ours]:
                setattr(config, name, rate)
    if dropout is not None and getattr(config, "classifier_dropout", None) is not None:
        config.classifier_dropout = dropout


def config_from(architecture: Mapping[str, Any], tokenizer: Any) -> PreTrainedConfig:
    """Return the Hugging Face config of a model to be trained from scratch with `tokenizer`.

    `architecture` has `type` (a key of `FAMILIES`), any of layers, hidden_size, heads, intermediate_size,
    max_positions (usable length of a sequence), dropout, attention_dropout, and any further key of that
    type's own config (`layer_norm_eps`, ModernBERT's `local_attention`, ...). What is absent keeps the
    library's default.
    """
    settings = dict(architecture)
    model_type = str(settings.pop("type"))
    family = family_of(model_type)
    arguments: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.cls_token_id,
        "eos_token_id": tokenizer.sep_token_id,
    }
    if model_type == "modernbert":
        arguments |= {"cls_token_id": tokenizer.cls_token_id, "sep_token_id": tokenizer.sep_token_id}
    for key, value in settings.items():
        arguments |= dict.fromkeys(family.names.get(key, (key,)), value)
    config = AutoConfig.for_model(model_type, **arguments)
    if "max_positions" in settings:
        config.max_position_embeddings = int(settings["max_positions"]) + family.first_position(config)
    return config
