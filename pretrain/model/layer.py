"""The encoder's layers: what BERT, RoBERTa, ELECTRA, DistilBERT and ModernBERT compute, on packed rows.

    post-norm (Vaswani et al. 2017; Devlin et al. 2019)     pre-norm (ModernBERT, Warner et al. 2024)

    x = norm(x + dropout(attend(x) Wo + bo))                x = x + dropout(attend(norm(x)) Wo)
    x = norm(x + dropout(gelu(x W1 + b1) W2 + b2))          x = x + dropout(gelu(norm(x) W1) * (norm(x) V)) W2

A layer takes over the modules of the library's layer under the same names, so that parameters, checkpoints
and exports are the library's. It differs in how it computes: queries, keys and values in one product; bias,
activation, dropout, residual and norm in one operation each (`pretrain.model.kernels`); dropout by hash
(`pretrain.model.kernels.dropout`); products in a working type, from copies of the float32 weights that are
made once for as long as the weights stay.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from types import ModuleType

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.activations import ACT2FN
from transformers.modeling_layers import GradientCheckpointingLayer

from pretrain.common.errors import UserError
from pretrain.model.architectures import family_of
from pretrain.model.attention import PackedLayout, attend, takes_flash
from pretrain.model.kernels import fused
from pretrain.model.kernels.dropout import ATTENTION, EMBEDDING, MLP, PROBABILITIES, Dropout, apply, site_of
from pretrain.model.kernels.plain import How, Norm
from pretrain.model.weights import WorkingCopies


@dataclass(frozen=True, eq=False)
class ForwardState:
    """What all layers know of one forward pass over a packed row of T tokens, filler included.

    layout: where its sequences lie.
    keys: int64[T], `dropout.token_keys`; None: no dropout.
    dtype: of products and activations. residual: of the residual stream.
    copies: where working copies of weights are kept; None: they are not. leaf: whether they are leaves.
    exact: whether dropout on the probabilities of long sequences is by hash on a GPU, too.
    rotary: kind of layer -> cosines and sines [T, 1, 1, head size] of the tokens' positions (ModernBERT).
    """

    layout: PackedLayout
    kernels: ModuleType
    keys: Tensor | None
    dtype: torch.dtype
    residual: torch.dtype
    copies: WorkingCopies | None
    leaf: bool = False
    exact: bool = False
    rotary: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def dropout(self, rate: float, layer: int, place: int) -> Dropout | None:
        if self.keys is None or not rate:
            return None
        return Dropout(rate, self.keys, site_of(layer, place))

    def attend(self, qkv: Tensor, half_window: int | None, dropout: Dropout | None) -> Tensor:
        """Attend within each sequence: qkv [T, 3, heads, D] -> [T, heads * D]."""
        if self._takes_flash(qkv):
            rate = 0.0 if dropout is None else dropout.rate
            return attend(qkv, self.layout, rate, half_window).flatten(1)
        scale = qkv.shape[-1] ** -0.5
        return self.kernels.attention(qkv, self.layout, scale, half_window, dropout).flatten(1)

    def attends_by_slots(self, qkv: Tensor) -> bool:
        """Return whether `attend` takes tensors like `qkv` [T, 3, heads, D] without looking at lengths.

        Of the layout it then needs `longest`, `buckets` and the tensors that lie on the device.
        """
        return self._takes_flash(qkv) or (self.kernels is fused and fused.attends_by_slots(qkv, self.layout))

    def _takes_flash(self, qkv: Tensor) -> bool:
        short = self.kernels is fused and fused.takes_attention(qkv, self.layout)
        return takes_flash(qkv) and not (short or self.exact)

    def product(self, x: Tensor, *maps: nn.Linear, bias: bool = True) -> Tensor:
        """Apply linear maps side by side, as one product in the working type: [T, in] -> [T, sum of outs]."""
        weight = self._read(self.dtype, *(part.weight for part in maps))
        biases = [part.bias for part in maps if bias and part.bias is not None]
        added = self._read(self.dtype, *biases) if biases else None
        return functional.linear(x.to(self.dtype), weight, added)

    def wide(self, parameter: Tensor | None) -> Tensor | None:
        """Return a bias or a norm's parameter in float32 at least, as the kernels take them."""
        if parameter is None:
            return None
        return self._read(torch.promote_types(parameter.dtype, torch.float32), parameter)

    def norm(self, module: nn.Module) -> Norm:
        return Norm(self.wide(module.weight), self.wide(module.bias), module.eps)

    def _read(self, dtype: torch.dtype, *masters: Tensor) -> Tensor:
        """Return parameters one under the other, in a type."""
        if self.copies is not None:
            return self.copies.read(masters, dtype, self.leaf)
        return (masters[0] if len(masters) == 1 else torch.cat(masters)).to(dtype)


def _take_over(own: nn.Module, library: nn.Module) -> None:
    """Make the library module's children this one's, in their order, under their names."""
    for name, child in library.named_children():
        own.add_module(name, child)


class EmbeddingNorm(nn.Module):
    """The embedding block's norm and dropout; it holds its parameters itself, so ZeRO-3 gathers them."""

    def __init__(self, library: nn.LayerNorm):
        super().__init__()
        self.weight, self.bias, self.eps = library.weight, library.bias, library.eps

    def forward(self, x: Tensor, dropout: Dropout | None, run: ForwardState) -> Tensor:
        return run.kernels.norm_dropout(x, run.norm(self), dropout).to(run.residual)


class Embeddings(nn.Module):
    """The embedding block: dropout(norm(word + position + token type)); ModernBERT has words alone."""

    def __init__(self, library: nn.Module, rate: float):
        super().__init__()
        _take_over(self, library)
        self.norm_name = "norm" if hasattr(library, "norm") else "LayerNorm"
        setattr(self, self.norm_name, EmbeddingNorm(getattr(library, self.norm_name)))
        self.rate = rate

    def forward(
        self, ids: Tensor, positions: Tensor, token_types: Tensor | None, run: ForwardState
    ) -> Tensor:
        """ids, positions, token_types: int64[T]; token_types None: all 0. Returns [T, H]."""
        x = (self.tok_embeddings if hasattr(self, "tok_embeddings") else self.word_embeddings)(ids)
        if hasattr(self, "token_type_embeddings"):
            # one row for all: a table's gradient would add up equal rows one by one
            x = x + self.token_type_embeddings(ids.new_zeros(1) if token_types is None else token_types)
        if hasattr(self, "position_embeddings"):
            x = x + self.position_embeddings(positions)
        return getattr(self, self.norm_name)(x, run.dropout(self.rate, 0, EMBEDDING), run)


class PostNormLayer(GradientCheckpointingLayer):
    """A layer of BERT's kind: norms come after the residual connections.

    Whatever a family calls its parts, they are linear maps and norms in this order: query, key, value, output
    and norm of attention, the two maps of the MLP, its norm.
    """

    def __init__(self, library: nn.Module, config: PreTrainedConfig, number: int):
        super().__init__()
        _take_over(self, library)
        parts = {name: m for name, m in library.named_modules() if isinstance(m, (nn.Linear, nn.LayerNorm))}
        norms = [isinstance(part, nn.LayerNorm) for part in parts.values()]
        if norms != [False] * 4 + [True] + [False] * 2 + [True]:
            raise UserError(
                f"layers of {config.model_type} with {', '.join(parts)} are not supported: give a model "
                "without cross-attention"
            )
        self.parts, self.number = list(parts), number
        self.heads = config.num_attention_heads
        names, is_distilbert = family_of(config.model_type).names, config.model_type == "distilbert"
        self.activation = _activation(config.activation if is_distilbert else config.hidden_act)
        self.rate = getattr(config, names["dropout"][0])
        self.probability_rate = getattr(config, names["attention_dropout"][0])
        # DistilBERT drops nothing between attention and its norm
        self.attention_rate = 0.0 if is_distilbert else self.rate

    def forward(self, hidden: Tensor, normed: Tensor, run: ForwardState) -> tuple[Tensor, Tensor]:
        """Map [T, H] pairs to such pairs: the same twice, in the residual's type and, for products, the
        working type.
        """
        query, key, value, outwards, attention_norm, inner_map, outer_map, norm = map(
            self.get_submodule, self.parts
        )
        qkv = run.product(normed, query, key, value)
        dropout = run.dropout(self.probability_rate, self.number, PROBABILITIES)
        attended = run.attend(qkv.unflatten(1, (3, self.heads, -1)), None, dropout)
        dropout = run.dropout(self.attention_rate, self.number, ATTENTION)
        hidden, normed = self._residual_norm(attended, outwards, hidden, attention_norm, dropout, run)
        inner = run.product(normed, inner_map, bias=False)
        if self.activation is None:
            inner = run.kernels.bias_gelu(inner, run.wide(inner_map.bias))
        else:
            inner = self.activation(inner + inner_map.bias.to(inner.dtype))
        dropout = run.dropout(self.rate, self.number, MLP)
        return self._residual_norm(inner, outer_map, hidden, norm, dropout, run)

    @staticmethod
    def _residual_norm(
        x: Tensor,
        outwards: nn.Linear,
        hidden: Tensor,
        norm: nn.LayerNorm,
        dropout: Dropout | None,
        run: ForwardState,
    ) -> tuple[Tensor, Tensor]:
        """norm(hidden + dropout(x outwards)), in the residual's type and in the working type."""
        x = run.product(x, outwards, bias=False)
        bias, how = run.wide(outwards.bias), How(dropout, run.dtype, post=True)
        return run.kernels.residual_norm(x, bias, hidden, run.norm(norm), how)


class PreNormLayer(GradientCheckpointingLayer):
    """A layer of ModernBERT: norms come before attention and MLP, positions by rotation.

    What a layer's MLP gives is added to the residual stream by the next layer, whose norm reads the sum: one
    operation. So the stream is a pair, (sum so far, what is still to be added).
    """

    def __init__(self, library: nn.Module, config: PreTrainedConfig, number: int):
        super().__init__()
        _take_over(self, library)
        self.number, self.heads = number, config.num_attention_heads
        self.kind = config.layer_types[number]
        self.half_window = config.sliding_window if self.kind == "sliding_attention" else None
        self.activation = _activation(config.hidden_activation)
        self.rate, self.attention_rate = config.mlp_dropout, config.attention_dropout

    def forward(self, hidden: Tensor, added: Tensor | None, run: ForwardState) -> tuple[Tensor, Tensor]:
        """Map [T, H] pairs to [T, H] pairs: in the residual's type, and in the working type."""
        attention, mlp = self.attn, self.mlp
        hidden, normed = self._add(hidden, added, self.attn_norm, None, run)
        qkv = run.product(normed, attention.Wqkv).unflatten(1, (3, self.heads, -1))
        qkv = run.kernels.rotate(qkv, *run.rotary[self.kind])
        dropout = run.dropout(self.attention_rate, self.number, PROBABILITIES)
        added = run.product(run.attend(qkv, self.half_window, dropout), attention.Wo)
        dropout = run.dropout(self.attention_rate, self.number, ATTENTION)
        hidden, normed = self._add(hidden, added, self.mlp_norm, dropout, run)
        inner, dropout = run.product(normed, mlp.Wi), run.dropout(self.rate, self.number, MLP)
        if self.activation is None:
            inner = run.kernels.gelu_gate(inner, dropout)
        else:
            values, gate = inner.chunk(2, dim=1)
            inner = apply(self.activation(values) * gate, dropout)
        return hidden, run.product(inner, mlp.Wo)

    @staticmethod
    def _add(
        hidden: Tensor, added: Tensor | None, norm: nn.Module, dropout: Dropout | None, run: ForwardState
    ) -> tuple[Tensor, Tensor]:
        """(hidden + dropout(added), its norm); the first layer adds nothing and has no norm."""
        if added is None:
            return hidden, norm(hidden)
        how = How(dropout, run.dtype, post=False)
        return run.kernels.residual_norm(added, None, hidden, run.norm(norm), how)


def rotations(library: nn.Module, hidden: Tensor, positions: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """Return the cosines and sines [T, 1, 1, D] of positions int64[T], for each kind of layer."""
    wide = hidden.to(torch.promote_types(hidden.dtype, torch.float32))
    places = positions.unsqueeze(0).float()  # once, not for each kind
    both = {kind: library(wide, places, kind) for kind in library.layer_types}
    return {kind: (cos[0, :, None, None], sin[0, :, None, None]) for kind, (cos, sin) in both.items()}


def _activation(name: str) -> Callable[[Tensor], Tensor] | None:
    """Return a config's activation; None for the exact GELU, which the kernels have."""
    return None if name == "gelu" else ACT2FN[name]


def layers_of(lm: PreTrainedModel) -> nn.ModuleList:
    """Return the model's list of layers."""
    base = lm.base_model
    found = next((module for module in base.modules() if isinstance(module, nn.ModuleList)), None)
    if found is None:
        raise ValueError(f"no list of layers in {type(base).__name__}")
    return found


def layer_matrices(module: nn.Module) -> set[int]:
    """Return the id of each trained matrix in the layers of all language models of a module.

    Embeddings, heads, biases and norms are not among them.
    """
    matrices: set[int] = set()
    for part in module.modules():
        if isinstance(part, PreTrainedModel):
            with suppress(ValueError):  # of a kind that has no layers
                matrices |= {id(p) for p in layers_of(part).parameters() if p.ndim == 2 and p.requires_grad}
    return matrices


def install(lm: PreTrainedModel) -> None:
    """Replace the library's embedding block and layers by ours, in place; parameters keep their names."""
    config, layers = lm.config, layers_of(lm)
    rate = getattr(config, family_of(config.model_type).names["dropout"][0])
    lm.base_model.embeddings = Embeddings(lm.base_model.embeddings, rate)
    own = PreNormLayer if config.model_type == "modernbert" else PostNormLayer
    for number, layer in enumerate(layers):
        layers[number] = own(layer, config, number)


def run_layers(
    lm: PreTrainedModel, hidden: Tensor, run: ForwardState, second: int | None
) -> tuple[Tensor, Tensor | None]:
    """Pass the embedding block's output [T, H] through all layers: the last states, and those of one more.

    second: as in `SentenceEncoder.states`.
    """
    base, layers = lm.base_model, layers_of(lm)
    wanted = None if second is None else second % (len(layers) + 1)
    states = hidden if wanted == 0 else None
    if lm.config.model_type != "modernbert":
        normed = hidden.to(run.dtype)
        for number, layer in enumerate(layers, 1):
            hidden, normed = layer(hidden, normed, run)
            states = hidden if wanted == number else states
        return hidden, states
    stream: tuple[Tensor, Tensor | None] = (hidden, None)
    for number, layer in enumerate(layers, 1):
        stream = layer(*stream, run)
        states = stream[0] + stream[1] if wanted == number else states
    last = stream[0] if stream[1] is None else stream[0] + stream[1]
    last = base.final_norm(last.to(base.final_norm.weight.dtype))
    return last, last if wanted == len(layers) else states
