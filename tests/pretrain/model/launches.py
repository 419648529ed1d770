"""Count what a micro-batch launches on a GPU, and the bytes it moves, on a machine without one.

Tensors of the device "meta" have shapes and no data. On them the encoder takes the branches that CUDA takes:
fused kernels, flash attention for long sequences, a vocabulary that is filled up. Whatever reads a value on
the host raises an error. Counted are operators that compute (no views, no allocations); flash attention's
backward is one, and three kernels on a GPU, and one over lists of tensors (`_foreach`) is a kernel for every
21 million numbers. A tensor counts once for an operator, however often that reads it.
`python tests/pretrain/model/launches.py` prints the operators of each family.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pretrain.common.transfer import laid_end_to_end, taken_apart
from pretrain.losses import mlm
from pretrain.losses.mlm import masked_lm_loss
from pretrain.model import attention as flash
from pretrain.model import encoder as encoder_module
from pretrain.model import rows
from pretrain.model.encoder import SentenceEncoder, build_encoder
from pretrain.model.kernels import fused

VOCABULARY, TOKENS, LENGTH = 30_522, 16_384, 128
SIZES = {"layers": 12, "hidden_size": 768, "heads": 12, "intermediate_size": 3072, "max_positions": 512}
FAMILIES = ("bert", "roberta", "distilbert", "electra", "modernbert")
META = torch.device("meta")
_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "linear")
_FREE = """
    _reshape_alias _unsafe_view alias as_strided detach empty empty_like empty_strided expand lift_fresh
    narrow new_empty new_empty_strided permute reshape select slice split split_with_sizes squeeze t transpose
    unbind unflatten unsqueeze view
""".split()  # noqa: SIM905


class Launches(TorchDispatchMode):
    """Operators by name, and the bytes that those move which are neither products nor attention."""

    def __init__(self):
        super().__init__()
        self.operators, self.bytes = Counter(), Counter()

    def __enter__(self):
        self._patch = patch.object(fused, "_launch", self._count_program)
        self._patch.start()
        return super().__enter__()

    def __exit__(self, *error):
        self._patch.stop()
        return super().__exit__(*error)

    def _count_program(self, name, grid, *arguments, **_):
        self.operators[name] += 1
        if name.startswith("attention"):
            return
        tensors = [x for x in tree_leaves(arguments) if isinstance(x, torch.Tensor)]
        self.bytes[name] += sum(x.numel() * x.element_size() for x in tensors)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        output = function(*args, **(kwargs or {}))
        tensors = [x for x in tree_leaves((args, kwargs, output)) if isinstance(x, torch.Tensor)]
        name = function.__name__.split(".")[0]
        if name not in _FREE and any(x.device == META for x in tensors):
            self.operators[name] += 1
            if name not in _PRODUCTS and not name.startswith("_flash"):
                self.bytes[name] += sum(x.numel() * x.element_size() for x in tensors)
        return output


@contextmanager
def as_on_a_gpu() -> Iterator[None]:
    """Let tensors without data take the branches of CUDA, under bfloat16."""
    with (
        patch.object(flash, "_runs_flash", lambda device: True),
        patch.object(torch.backends.cuda, "is_flash_attention_available", lambda: True),
        patch.object(encoder_module, "kernels_for", lambda device, dtype: fused),
        patch.object(mlm, "kernels_for", lambda device, dtype: fused),
        patch.object(encoder_module, "fills_up", lambda weight: True),
        patch.object(rows, "send", _send),
        patch.object(torch, "is_autocast_enabled", lambda kind: True),
        patch.object(torch, "get_autocast_dtype", lambda kind: torch.bfloat16),
        patch.object(torch, "autocast", lambda *_, **__: nullcontext()),
    ):
        yield


def _send(tensors: list[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
    """Move tensors as `send` does to a GPU: in one transfer."""
    buffer, sizes = laid_end_to_end(tensors, pinned=False)
    return taken_apart(buffer.to(device), sizes, tensors)


def make_encoder(family: str, **more: object) -> SentenceEncoder:
    tokenizer = SimpleNamespace(pad_token_id=0, cls_token_id=1, sep_token_id=2, vocab_size=VOCABULARY)
    tokenizer = type("Tokenizer", (SimpleNamespace,), {"__len__": lambda self: VOCABULARY})(**vars(tokenizer))
    sizes = SIZES | {"dropout": 0.1, "attention_dropout": 0.1} | more
    with META:
        encoder = build_encoder({"type": family} | sizes, tokenizer, "mean")
    return encoder.to(META).train()


def count_micro_batch(encoder: SentenceEncoder, length: int = LENGTH) -> tuple[Launches, Launches]:
    """Count forward and backward of the masked-language loss, and a forward without gradients.

    Each at its second run: weights are cast, and gradients there, as in all micro-batches of a step but the
    first.
    """
    lengths = torch.full((TOKENS // length,), length)
    ids = torch.zeros(TOKENS, dtype=torch.long, device=META)
    positions = torch.zeros(TOKENS * 15 // 100, dtype=torch.long, device=META)
    keys = np.arange(len(lengths), dtype=np.uint64)

    def train():
        masked_lm_loss(
            encoder, encoder.states(ids, lengths, None, keys=keys).last, positions, positions
        ).backward()
        encoder.copies.add_gradients(None)

    def embed():
        with torch.no_grad():
            encoder.embed(ids, lengths, keys=keys)

    counted = []
    with as_on_a_gpu(), encoder.weights_unchanged(leaf=True):
        for run in (train, embed):
            run()
            with Launches() as launches:
                run()
            counted.append(launches)
    return counted[0], counted[1]


def main() -> None:
    for family in FAMILIES:
        for name, launches in zip(("train", "embed"), count_micro_batch(make_encoder(family))):
            total = sum(launches.bytes.values()) / TOKENS
            print(f"{family} {name}: {launches.operators.total()} launches, {total / 1e3:.0f} kB a token")
            for operator, count in launches.operators.most_common():
                print(f"    {operator:32s} {count:4d}  {launches.bytes[operator] / TOKENS / 1e3:7.1f} kB")


if __name__ == "__main__":
    main()
