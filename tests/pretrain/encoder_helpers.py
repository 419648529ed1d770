"""Small encoders with random weights, and ids for them."""

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from pretrain.model.encoder import SentenceEncoder, build_encoder
from pretrain.model.kernels.plain import How, Norm

MAX_POSITIONS = 40
SIZES = {
    "layers": 3,
    "hidden_size": 32,
    "heads": 4,
    "intermediate_size": 48,
    "max_positions": MAX_POSITIONS,
    "dropout": 0.0,
    "attention_dropout": 0.0,
}


def make_tokenizer(*more: str) -> PreTrainedTokenizerFast:
    words = ["[PAD]", "[CLS]", "[SEP]", "[MASK]", "[UNK]"] + [f"w{i}" for i in range(60)]
    inner = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner,
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        unk_token="[UNK]",
    )
    tokenizer.add_tokens(list(more), special_tokens=True)
    return tokenizer


def make_encoder(family: str, pooling: str = "mean", **more: object) -> SentenceEncoder:
    torch.manual_seed(0)
    more = ({"local_attention": 8} if family == "modernbert" else {}) | more
    return build_encoder({"type": family} | SIZES | more, make_tokenizer(), pooling)


def random_ids(lengths: torch.Tensor, seed: int = 1) -> torch.Tensor:
    return torch.randint(5, 65, (int(lengths.sum()),), generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def scale_matrices(encoder: SentenceEncoder) -> None:
    """Give an encoder weights of ordinary size: tiny ones hide errors in attention."""
    for parameter in encoder.parameters():
        if parameter.ndim == 2:
            parameter.mul_(4)


def norm_dropout(kernels, x, weight, norm_bias, eps, dropout):
    return kernels.norm_dropout(x, Norm(weight, norm_bias, eps), dropout)


def add_norm(kernels, x, bias, residual, weight, norm_bias, eps, dropout):
    """The sum of a residual norm, and its layer norm, both in the residual's type."""
    dtype = x.dtype if residual is None else residual.dtype
    norm = Norm(weight, norm_bias, eps)
    return kernels.residual_norm(x, bias, residual, norm, How(dropout, dtype, post=False))
