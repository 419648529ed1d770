"""What a sentence vector holds at each depth: of the text, of dropout, of the augmentation, of the position.

    python tests/benchmarks/bench_signal.py --data PREPARED --pooling cls random=EXPORT 300=EXPORT

Each argument is a name and an exported encoder; `random...=EXPORT` draws new weights of its sizes. For
[CLS] and the mean after 0 to L layers, of held-out sequences, it prints variances in per cent of the
vector's squared length: between sequences; between two passes with dropout; between a sequence and its del-
span,reorder; between a sequence and itself with its words a position further on. Then, by layer, the norm
of the gradients of NT-Xent (of views with dropout, temperature 0.1) and of the masked-language loss, and
the cosine of NT-Xent's gradients of two batches: near 0 an update is noise. With `--plot FILE` it draws
text over dropout by depth.
"""

import sys
from pathlib import Path

import fire
import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForMaskedLM

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from augment.core.keys import sequence_keys
from augment.core.ragged import Ragged
from augment.core.vocabulary import Vocabulary
from augment.spec.build import build
from pretrain.data.masking import mask_tokens
from pretrain.data.shards import ShardReader
from pretrain.losses.contrastive import nt_xent
from pretrain.losses.mlm import masked_lm_loss
from pretrain.model.encoder import SentenceEncoder, load_encoder, own_tokenizer
from pretrain.model.layer import layers_of
from pretrain.step.heldout import read_sound

TEMPERATURE = 0.1
BATCH = 32
POOLINGS = ("[CLS]", "mean")


def opened(name: str, folder: str, pooling: str) -> SentenceEncoder:
    """Load an export; under the name `random`, give it new weights of the same sizes."""
    encoder = load_encoder(folder, own_tokenizer(folder), pooling)
    if name.startswith("random"):
        torch.manual_seed(1)
        lm = AutoModelForMaskedLM.from_config(encoder.lm.config, dtype=torch.float32)
        encoder = SentenceEncoder(lm, pooling)
    return encoder.train()


def tokens_of(batch: Ragged) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(batch.ids).long(), torch.from_numpy(batch.lengths)


def vectors(encoder: SentenceEncoder, batch: Ragged, depth: int, dropout: np.ndarray | None) -> list[Tensor]:
    """Embed a batch after `depth` layers: float64[N, H] of each of POOLINGS."""
    encoder.train(dropout is not None)
    ids, lengths = tokens_of(batch)
    with torch.no_grad():
        read = encoder.states(ids, lengths, depth, keys=dropout).second
    assert read is not None
    states = read.double()
    firsts = lengths.cumsum(0) - lengths
    return [states[firsts], torch.stack([part.mean(0) for part in states.split(lengths.tolist())])]


def noise(first: Tensor, second: Tensor) -> float:
    return float((first - second).square().sum(1).mean() / 2)


def further(batch: Ragged) -> Ragged:
    """Move each sequence's last ordinary token behind [CLS]: the same words, a position further on."""
    sequences = (batch[number] for number in range(len(batch)))
    rows = [np.concatenate([row[:1], row[-2:-1], row[1:-2], row[-1:]]) for row in sequences]
    return Ragged.from_sequences(rows)


def print_signal(encoder: SentenceEncoder, batch: Ragged, changed: Ragged, keys: list[np.ndarray]) -> list:
    """Print the variances by depth; return text over dropout, [depths][POOLINGS]."""
    parts = ("text", "dropout", "views", "position")
    print("   layer" + "".join(f"{name:>8}" + "".join(f"{part:>9}" for part in parts) for name in POOLINGS))
    moved, ratios = further(batch), []
    for depth in range(encoder.lm.config.num_hidden_layers + 1):
        whole, edited, shifted = (vectors(encoder, part, depth, None) for part in (batch, changed, moved))
        one, two = (vectors(encoder, batch, depth, key) for key in keys)
        line, row = f"{depth:>8}", []
        for pooling, vector in enumerate(whole):
            text, dropout = float(vector.var(dim=0).sum()), noise(one[pooling], two[pooling])
            variances = (text, dropout, noise(vector, edited[pooling]), noise(vector, shifted[pooling]))
            length = float(vector.square().sum(1).mean())
            line += " " * 8 + "".join(f"{100 * part / length:>9.4f}" for part in variances)
            row.append(text / dropout)
        print(line)
        ratios.append(row)
    return ratios


def gradients(encoder: SentenceEncoder, loss: Tensor) -> list[Tensor]:
    """Return the gradient on the weights of each layer, flat."""
    encoder.zero_grad()
    loss.backward()
    layers = layers_of(encoder.lm)
    return [
        torch.cat([p.grad.flatten() for p in layer.parameters() if p.grad is not None]) for layer in layers
    ]


def print_gradients(
    encoder: SentenceEncoder, batches: list, originals: Ragged, vocabulary: Vocabulary
) -> None:
    encoder.train()
    of_batches = []
    for views, keys in batches:
        pair = [encoder.embed(*tokens_of(view), keys=key) for view, key in zip(views, keys, strict=True)]
        loss = nt_xent(torch.stack(pair), TEMPERATURE)
        of_batches.append(gradients(encoder, loss))
    keys = batches[0][1]
    masked = mask_tokens(originals, keys[0], vocabulary)
    hidden = encoder.states(*tokens_of(masked.batch), None, keys=keys[1]).last
    labels = torch.from_numpy(masked.labels).long()
    mlm = masked_lm_loss(encoder, hidden, torch.from_numpy(masked.positions), labels) / len(labels)
    of_mlm = gradients(encoder, mlm)
    print(f"NT-Xent {loss.item():.4f} (guessing {np.log(2 * BATCH - 1):.4f}), MLM {mlm.item():.3f}")
    print(f"{'layer':>8}{'NT-Xent':>12}{'MLM':>12}{'cosine of two batches':>24}")
    for number, (one, two, other) in enumerate(zip(*of_batches, of_mlm, strict=True), 1):
        cosine = float(torch.nn.functional.cosine_similarity(one, two, dim=0))
        print(f"{number:>8}{float(one.norm()):>12.5f}{float(other.norm()):>12.5f}{cosine:>24.3f}")


def draw(ratios: dict[str, list], file: str) -> None:
    figure, axes = plt.subplots(1, 2, figsize=(8, 3), sharey=True, layout="constrained")
    for pooling, axis in enumerate(axes):
        for name, rows in ratios.items():
            axis.plot([row[pooling] for row in rows], marker=".", label=name)
        axis.axhline(1, color="grey", linewidth=0.8, linestyle="--")
        axis.set(title=POOLINGS[pooling], xlabel="layer", yscale="log")
    axes[0].set_ylabel("variance: text / dropout")
    axes[0].legend(frameon=False, fontsize=8)
    figure.savefig(file, dpi=110)


def main(*exports: str, data: str, sequences: int = 64, pooling: str = "cls", plot: str = "") -> None:
    def read(split: str, count: int) -> tuple[Ragged, np.ndarray]:
        batch, ids, _, _ = read_sound(ShardReader(data, split), count, False, {})
        return batch.slice(0, count), ids[:count]

    heldout, train, ratios = read("heldout", sequences), read("train", 2 * BATCH), {}
    for named in exports:
        name, folder = str(named).split("=", 1)
        encoder = opened(name, folder, pooling)
        vocabulary = Vocabulary.from_tokenizer(own_tokenizer(folder))
        augment = build("del-span,reorder", vocabulary, None)

        def keys(ids: np.ndarray, purpose: str) -> list[np.ndarray]:
            return [sequence_keys(1, 0, ids, view, purpose) for view in range(2)]

        def views(start: int, pipeline=augment) -> tuple[list[Ragged], list[np.ndarray]]:
            batch, ids = train[0].slice(start, start + BATCH), train[1][start : start + BATCH]
            return [pipeline(batch, key) for key in keys(ids, "augment")], keys(ids, "view")

        print(f"\n{name}")
        batch, ids = heldout
        changed = augment(batch, keys(ids, "augment")[0])
        ratios[name] = print_signal(encoder, batch, changed, keys(ids, "view"))
        print_gradients(encoder, [views(0), views(BATCH)], train[0].slice(0, BATCH), vocabulary)
    if plot:
        draw(ratios, plot)


if __name__ == "__main__":
    fire.Fire(main)
