"""The sentence encoder: a Hugging Face masked language model that reads packed rows of sequences.

Weights, names and config stay the library's own: `encoder.lm.save_pretrained(folder)` writes a plain Hugging
Face folder.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForMaskedLM, AutoTokenizer, PreTrainedModel

from augment.core.pretrained import has_tokenizer, pretrained, pretrained_model
from pretrain.common.errors import UserError
from pretrain.common.memory import limit_kernel_cache
from pretrain.common.transfer import send
from pretrain.model.architectures import FAMILIES, config_from, family_of, set_dropout
from pretrain.model.kernels import kernels_for
from pretrain.model.layer import ForwardState, install, layers_of, rotations, run_layers
from pretrain.model.modules import unsound
from pretrain.model.pooling import SECOND_STATE, WORDS, PackedStates, check_pooling, pool
from pretrain.model.rows import EditEmbeddings, PackedRow
from pretrain.model.weights import Read, WorkingCopies

limit_kernel_cache()  # at import: oneDNN looks once, at the first product of the process

VOCABULARY_MULTIPLE = 128
"""What the width of logits is filled up to on a GPU."""


class SentenceEncoder(nn.Module):
    """Packed token ids -> hidden states, sentence vectors and masked-token logits.

    A packed batch is `ids` int64[T], the sequences (special tokens included) end to end, and `lengths`
    int64[N] ON THE CPU, where attention groups are laid out without a device synchronisation. Any order of
    lengths is correct; equal lengths next to each other (sorted, say) save two gathers. Run it under
    `torch.autocast` for bfloat16 or float16: sentence vectors and losses are float32 all the same.
    """

    def __init__(self, lm: PreTrainedModel, pooling: str = "mean"):
        """lm: of a supported family. Its embedding block and layers are replaced in place by own ones
        (`pretrain.model.layer`); weights and names stay.
        """
        super().__init__()
        self.family = family_of(lm.config.model_type)
        if getattr(lm.config, "is_decoder", False):
            raise UserError(
                "the model's config has is_decoder=true; packed training takes bidirectional encoders only."
            )
        self.lm = lm
        self.pooling = check_pooling(pooling)
        self.head: nn.Module | None = None
        """What sentence vectors [N, H] by the own pooling go through, of an export that keeps one. (Heads in
        training are the objective's.)"""
        self.exact_attention = False
        """Whether a GPU drops attention's probabilities of long sequences by hash (`model.attention`)."""
        self.normalize = False
        """Whether vectors by the encoder's own pooling have length 1 in use; training goes without."""
        self.random_head = False
        """Whether the masked-language head was not in the checkpoint, and starts at random values."""
        install(lm)
        self.token_weights: Tensor | None
        """float32[V]: the weight of each token in means; None: all alike."""
        self.register_buffer("token_weights", None)
        self.left_out: list[Tensor] = []
        self.copies: WorkingCopies | None = None
        self._leaf, self._reads = False, dict[Read, None]()
        self._first_position = self.family.first_position(lm.config)
        self._pad_id = lm.config.pad_token_id or 0

    @property
    def hidden_size(self) -> int:
        return self.lm.config.hidden_size

    @property
    def vocab_size(self) -> int:
        return self.lm.config.vocab_size

    @property
    def max_positions(self) -> int:
        """The longest sequence that the encoder takes, special tokens included."""
        return self.family.usable_positions(self.lm.config)

    @contextmanager
    def weights_unchanged(self, anew: bool = False, leaf: bool = False) -> Iterator[None]:
        """Make working copies of weights once for all forward passes inside; the weights must not change.

        anew: do not share those of a caller that is inside already.
        leaf: layers read them as leaves: `WorkingCopies.add_gradients` has to follow a backward pass.
        """
        before = self.copies, self._leaf
        if self.copies is None or anew:
            self.copies = WorkingCopies({} if anew else self._reads)
        self._leaf = leaf
        try:
            yield
        finally:
            self.copies, self._leaf = before

    def leave_out(self, prompts: Iterable[np.ndarray]) -> None:
        """Leave the first token and a prompt's, if they begin a sequence, out of means over tokens.

        As sentence-transformers does with `include_prompt: false`. A sequence that begins with a prompt's
        tokens counts as one with that prompt.

        Args:
            prompts: tokens of each, int32[p], without special ones.
        """
        self.left_out = [torch.from_numpy(prompt).long() for prompt in prompts if len(prompt)]

    def weigh_tokens(self, weights: Tensor | None) -> None:
        """Weigh tokens in means by float32[V]; rows added since weigh 1. None: as they are."""
        if weights is not None:
            added = weights.new_ones(max(0, self.vocab_size - len(weights)))
            self.token_weights = torch.cat([weights, added]).to(self.lm.device)

    def recompute_layers(self) -> None:
        """Keep of each layer what goes into it, and compute it again in the backward pass (Chen et al. 2016).

        Gradients stay what they are: dropout by hash is the same again, and torch's generator is set back for
        what draws from it.
        """
        # Without early stop: it leaves a layer by an exception, past the hook by which ZeRO-3 lets go of it.
        self.lm.gradient_checkpointing_enable({"use_reentrant": False, "early_stop": False})

    def embed(
        self,
        ids: Tensor,
        lengths: Tensor,
        pooling: str | None = None,
        edit: EditEmbeddings | None = None,
        keys: np.ndarray | None = None,
    ) -> Tensor:
        """Return sentence vectors [N, H], float32 (float64 from a float64 model).

        pooling: None for the encoder's own. edit, keys: as in `states`.
        """
        return self.embed_row(self.pack(ids, lengths, keys=keys), pooling, edit)

    def embed_row(
        self, row: PackedRow, pooling: str | None = None, edit: EditEmbeddings | None = None
    ) -> Tensor:
        """Return `embed`'s vectors of a row that `pack` has made."""
        pooling = check_pooling(pooling or self.pooling)
        return self.vectors(self.states_for(pooling, row, edit), pooling)

    def states_for(self, pooling: str, row: PackedRow, edit: EditEmbeddings | None = None) -> PackedStates:
        """Return the hidden states of a row that a pooling reads, with fewest layers run."""
        if pooling != WORDS:
            return self.states_of_row(row, SECOND_STATE[pooling], edit)
        with torch.autocast(row.ids.device.type, enabled=False):
            words = row.edited(self.lm.get_input_embeddings()(row.ids), edit)
        return PackedStates(row.in_input_order(words), None, row.lengths, self._weights_of(row))

    def vectors(self, states: PackedStates, pooling: str) -> Tensor:
        """Pool hidden states into sentence vectors [N, H].

        They go through the encoder's head, if it has one, and are normalised, if it does so, where `pooling`
        is its own.
        """
        vectors = pool(states, pooling)
        if pooling != self.pooling:
            return vectors
        vectors = vectors if self.head is None else self.head(vectors)
        return torch.nn.functional.normalize(vectors) if self.normalize else vectors

    def mlm_logits(self, hidden: Tensor) -> Tensor:
        """Vocabulary logits [P, V] of hidden states [P, H], by the library's own head."""
        return self.lm.get_output_embeddings()(self.family.mlm_head(self.lm, hidden))

    def filled_logits(self, hidden: Tensor) -> Tensor:
        """`mlm_logits` for a loss to read: on a GPU [P, V'], V' the next multiple of 128, zeros behind V.

        A GPU's products of half-precision numbers want widths in multiples. Zeros are added to the working
        copy of the weights, once a step: parameters, checkpoints and exports keep the vocabulary's size.
        """
        output = self.lm.get_output_embeddings()
        if self.copies is None or not fills_up(output.weight):
            return self.mlm_logits(hidden)
        dtype = torch.get_autocast_dtype(hidden.device.type)
        states = self.family.mlm_head(self.lm, hidden).to(dtype)
        weight, bias = (
            None if part is None else self.copies.read((part,), dtype, multiple=VOCABULARY_MULTIPLE)
            for part in (output.weight, output.bias)
        )
        return torch.nn.functional.linear(states, weight, bias)

    def states(
        self,
        ids: Tensor,
        lengths: Tensor,
        second: int | None,
        token_types: Tensor | None = None,
        edit: EditEmbeddings | None = None,
        keys: np.ndarray | None = None,
    ) -> PackedStates:
        """Return the last hidden states and, if `second` is given, those of that layer.

        second: 0 for the embeddings, i for the output of layer i, -2 for the last but one. token_types:
        int64[T], for models that have them; all 0 when not given. edit: changes the output [T, H] of the
        embedding block (words and positions, after norm and dropout), in the order of `ids`.

        keys: uint64[N], one for each sequence: in training mode its dropout depends on its key alone (a
        flash kernel's on torch's generator). None: drawn from torch's generator.

        An empty batch is a row of filler, which still reaches every parameter (with a zero gradient): a rank
        without work takes part in the collectives of those that have some.
        """
        return self.states_of_row(self.pack(ids, lengths, token_types, keys), second, edit)

    def pack(
        self,
        ids: Tensor,
        lengths: Tensor,
        token_types: Tensor | None = None,
        keys: np.ndarray | None = None,
        dropout: bool = True,
    ) -> PackedRow:
        """Return the row that a pass over a packed batch reads; arguments and errors as those of `states`.

        dropout: whether training mode has any.
        """
        self._check(ids, lengths)
        if not self.training or not dropout:
            keys = None
        elif keys is None:
            keys = torch.randint(-(2**63), 2**63 - 1, (len(lengths),)).numpy().view(np.uint64)
        device, pooled = self.lm.device, self._pooled(ids, lengths) if self.left_out else None
        row = PackedRow.build(ids, lengths, device, self._pad_id, self._first_position, token_types, keys)
        return row if pooled is None else replace(row, pooled=pooled)

    def states_of_row(
        self, row: PackedRow, second: int | None = None, edit: EditEmbeddings | None = None
    ) -> PackedStates:
        """Return `states` of a row that `pack` has made."""
        device, base = row.ids.device, self.lm.base_model
        run = self._state(row)
        with torch.autocast(device.type, enabled=False):
            hidden = base.embeddings(row.ids, row.positions, row.token_types, run)
            hidden = row.edited(hidden, edit)
            if hasattr(base, "embeddings_project"):  # ELECTRA's, where embeddings are narrower
                hidden = base.embeddings_project(hidden.to(self.lm.dtype)).to(run.residual)
            if hasattr(base, "rotary_emb"):
                run.rotary.update(rotations(base.rotary_emb, hidden, row.positions))
            last, other = run_layers(self.lm, hidden, run, second)
        return PackedStates(
            last=row.in_input_order(last),
            second=None if other is None else row.in_input_order(other),
            lengths=row.lengths,
            pooled=self._weights_of(row),
        )

    def _weights_of(self, row: PackedRow) -> Tensor | None:
        """Return `PackedRow.pooled`, the tokens' weights if that has nothing else."""
        if row.pooled is not None or self.token_weights is None:
            return row.pooled
        return row.in_input_order(self.token_weights[row.ids])

    def _pooled(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """Return which tokens a mean is over, bool[T], or their weights: none for those of `leave_out`."""
        weights = self.token_weights
        pooled = torch.ones_like(ids, dtype=torch.bool) if weights is None else weights[ids]
        starts = lengths.cumsum(0) - lengths
        for prompt in self.left_out:
            # [CLS], the prompt, and at least one token more
            longer = starts[lengths > len(prompt) + 1]
            places, tokens = send([longer[:, None] + torch.arange(len(prompt) + 1), prompt], ids.device)
            pooled[places] *= ~(ids[places[:, 1:]] == tokens).all(1, keepdim=True)
        return pooled

    def _state(self, row: PackedRow) -> ForwardState:
        device, dtype = row.ids.device, self.lm.dtype
        if torch.is_autocast_enabled(device.type):
            dtype = torch.get_autocast_dtype(device.type)
        # the residual stream: float16 would overflow if it has grown, bfloat16 round every sum
        residual = torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype
        kernels = kernels_for(device, dtype)
        # ZeRO-3 holds a weight for the time of its layer
        copies = None if hasattr(next(self.lm.parameters()), "ds_id") else self.copies
        return ForwardState(
            row.layout, kernels, row.keys, dtype, residual, copies, self._leaf, self.exact_attention
        )

    def why_not_repeatable(self, row: PackedRow) -> str:
        """Return why a pass over a row launches other things than over others of its `shape`; "" else."""
        if row.pooled is not None:
            return "prompts are left out of means"
        if row.order is not None:
            return "its sequences are not in order of length"
        heads = layers_of(self.lm)[0].heads
        run, size = self._state(row), (0, 3, heads, self.hidden_size // heads)
        if not run.attends_by_slots(torch.empty(size, dtype=run.dtype, device=row.ids.device)):
            return f"{str(run.dtype)[6:]} attention runs length by length here"
        return ""

    def _check(self, ids: Tensor, lengths: Tensor) -> None:
        # on the CPU: reading them from a device would stall it at every call
        assert lengths.device.type == "cpu" and int(lengths.sum()) == ids.numel()
        if not len(lengths):
            return
        if int(lengths.min()) < 1:
            raise UserError(
                f"sequence {int(lengths.argmin())} of the batch is empty; every sequence needs a token."
            )
        if int(lengths.max()) > self.max_positions:
            raise UserError(
                f"a sequence of {lengths.max()} tokens is longer than the {self.max_positions} positions "
                "of the encoder; prepare the data with a smaller max_length, or set model.max_positions."
            )


def fills_up(weight: Tensor) -> bool:
    """Return whether logits by this weight are filled up: on a GPU, under autocast, but not under ZeRO-3."""
    device = weight.device.type
    return device == "cuda" and torch.is_autocast_enabled(device) and not hasattr(weight, "ds_id")


def build_encoder(architecture: Mapping[str, Any], tokenizer: Any, pooling: str = "mean") -> SentenceEncoder:
    """Build a randomly initialised encoder of the given sizes (keys: `architectures.config_from`).

    Draws from torch's global generator: seed it first. Parameters are float32.
    """
    lm = AutoModelForMaskedLM.from_config(config_from(architecture, tokenizer), dtype=torch.float32)
    return _encoder_of(lm, tokenizer, pooling)


def load_encoder(
    source: str | Path,
    tokenizer: Any,
    pooling: str = "mean",
    dropout: float | None = None,
    attention_dropout: float | None = None,
    role: str = "encoder",
) -> SentenceEncoder:
    """Load the encoder in a Hugging Face folder, or of a hub name, for use with `tokenizer`.

    Parameters are float32.

    `dropout`, `attention_dropout`: instead of the checkpoint's own; None: its own.

    `tokenizer` must give the checkpoint's tokens the checkpoint's ids, and may have more tokens behind them
    ([DEL]): an encoder's embedding, and the masked-language head with it, is grown.

    `role`: what the checkpoint is for, as errors name it.

    Raises:
        UserError: nothing to load there, a model type that is not supported, weights missing, or a tokenizer
        that does not fit.
    """
    try:
        # Before any weights are read (or downloaded): whether it is a model that we can train at all.
        config = pretrained(AutoConfig, source)
        family_of(config.model_type)
        set_dropout(config, dropout, attention_dropout)
        lm, report = pretrained_model(
            AutoModelForMaskedLM, source, config=config, dtype=torch.float32, output_loading_info=True
        )
    except (OSError, ValueError) as error:
        raise UserError(
            f"cannot load the {role} '{source}': {error}\nGive a Hugging Face folder (config.json and "
            f"weights) or a hub name of a supported type: {', '.join(FAMILIES)}."
        ) from error
    missing = [key for key in sorted(report["missing_keys"]) if key.startswith(f"{lm.base_model_prefix}.")]
    if missing:
        raise UserError(f"'{source}' is incomplete: no weights for {missing[0]} ({len(missing)} missing).")
    if name := unsound(lm.state_dict().items()):
        raise UserError(
            f"'{source}' cannot be used: {name} has NaN, infinity or numbers whose squares are too large. "
            "Copy the model again, or take weights of an earlier step"
        )
    check_tokenizer(lm.config.vocab_size, tokenizer, source, role)
    if role == "encoder":
        _add_rows(lm, len(tokenizer))
    encoder = _encoder_of(lm, tokenizer, pooling)
    encoder.random_head = bool(report["missing_keys"])
    return encoder


def _encoder_of(lm: PreTrainedModel, tokenizer: Any, pooling: str) -> SentenceEncoder:
    encoder = SentenceEncoder(lm, pooling)
    if pooling == WORDS:  # as a `StaticEmbedding`, which tokenizes without special tokens
        if (width := lm.get_input_embeddings().weight.shape[1]) != encoder.hidden_size:
            raise UserError(
                f"pooling {WORDS}: this {lm.config.model_type} has words of {width} numbers, and states of "
                f"{encoder.hidden_size}; choose another pooling"
            )
        encoder.token_weights = torch.ones(lm.config.vocab_size)
        encoder.token_weights[tokenizer("")["input_ids"]] = 0
    return encoder


def _add_rows(lm: PreTrainedModel, size: int) -> None:
    """Grow the embedding and the masked-language head to `size` tokens.

    A new row begins as the mean of all, in the middle of the known ones (Hewitt 2021, "Initializing new word
    embeddings").
    """
    old = lm.config.vocab_size
    if size <= old:
        return
    lm.resize_token_embeddings(size, mean_resizing=False)
    output = lm.get_output_embeddings()
    tables = (lm.get_input_embeddings().weight, output.weight, output.bias)
    with torch.no_grad():
        for table in {id(table): table for table in tables if table is not None}.values():
            table[old:] = table[:old].mean(0)


def own_tokenizer(source: str | Path) -> Any:
    """Return a checkpoint's own tokenizer; None if it brings none."""
    if not has_tokenizer(source):
        return None
    try:
        return pretrained(AutoTokenizer, source)
    except (OSError, ValueError, KeyError):
        return None


def check_tokenizer(rows: int, tokenizer: Any, source: str | Path, role: str = "encoder") -> None:
    """Check that each token has the checkpoint's id, if that has a tokenizer; else compare counts.

    Args:
        rows: How many tokens the checkpoint has an embedding for.
        role: What the checkpoint is for, as errors name it.

    Raises:
        UserError: the tokenizer gives a token of the checkpoint another id, or has more tokens than the
            checkpoint.
    """
    advice = f"prepare the data with its tokenizer: --data.prepare.tokenizer {source}"
    if role != "encoder":
        advice += ", and train an encoder that has it"
    own = own_tokenizer(source)
    if own is not None:
        vocabulary = tokenizer.get_vocab()
        for token, number in sorted(own.get_vocab().items(), key=lambda item: item[1]):
            if vocabulary.get(token) != number and number < rows:
                raise UserError(
                    f"the tokenizer does not fit the {role} '{source}': token {token!r} has id "
                    f"{vocabulary.get(token)} in the tokenizer and {number} in the {role}'s own; {advice}"
                )
    elif tokenizer.vocab_size > rows:
        raise UserError(
            f"the tokenizer does not fit the {role} '{source}': it has {tokenizer.vocab_size} tokens "
            f"(added ones not counted), the {role} {rows}; {advice}"
        )
