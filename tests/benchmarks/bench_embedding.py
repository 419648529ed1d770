"""Sentence vectors for evaluation, sentences/s beside `SentenceTransformer.encode` of the same weights.

    python tests/benchmarks/bench_embedding.py [--model RUN] [--sentences 4000] [--rounds 5] [--threads 1]

All sides get texts, and give float32 vectors by mean pooling: tokenizing is in the time. Ours is what the
evaluations call, which packs, with `--precision fp32` and `bf16`; theirs pads, sorted by length, in batches
of --batch, as it stands and under autocast to bfloat16. They take turns over the same sentences; CPU time of
the process, medians over rounds. Vectors in float32 must agree to 1e-4. Without --model: a BERT of 4 layers,
256 wide, random.
"""

import argparse
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import pretrain.common.environment  # noqa: F401  (the allocator's settings, for both sides)

# isort: split
import numpy as np
import sentence_transformers
import torch
import transformers
from bench_helpers import architecture, load_sentences, processor
from rich.console import Console
from rich.table import Table
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

from finetune.encoders.models import open_model
from finetune.encoders.source import ModelSource, resolve
from pretrain.data.tokenizer import train_tokenizer
from pretrain.model.encoder import build_encoder

Encode = Callable[[list[str]], np.ndarray]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="", help="a run, an export, or a Hugging Face folder")
    parser.add_argument("--sentences", type=int, default=4000)
    parser.add_argument("--batch", type=int, default=32, help="of theirs; 32 is its default")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each side")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    transformers.utils.logging.set_verbosity_error()
    texts, origin = load_sentences(options.sentences)
    with tempfile.TemporaryDirectory() as folder:
        source = resolve(options.model or random_model(texts, folder))
        sides = {
            "ours, fp32": ours(source, "fp32"),
            "theirs, fp32": theirs(source.location, options.batch),
            "ours, bf16": ours(source, "bf16"),
            "theirs, bf16": torch.autocast("cpu", torch.bfloat16)(theirs(source.location, options.batch)),
        }
        times: dict[str, list[float]] = {name: [] for name in sides}
        found: dict[str, np.ndarray] = {}
        for round_number in range(options.rounds + 1):  # the first is not timed
            for name, encode in sides.items():
                start = time.process_time()
                found[name] = np.float32(encode(texts))
                if round_number:
                    times[name].append(time.process_time() - start)
    exact = found["theirs, fp32"]
    differences = {name: float(np.abs(vectors - exact).max()) for name, vectors in found.items()}
    if differences["ours, fp32"] > 1e-4:
        sys.exit(f"vectors differ by {differences['ours, fp32']:.1e}: the sides do not compute the same")
    table = Table(title=f"{len(texts)} {origin}, {options.threads} thread(s), CPU time")
    for column in ("", "sentences/s", "over theirs, fp32", "rounds", "largest difference"):
        table.add_column(column, justify="right")
    for name, seconds in times.items():
        ratios = [b / a for a, b in zip(seconds, times["theirs, fp32"])]
        table.add_row(
            name,
            f"{len(texts) / statistics.median(seconds):,.0f}",
            f"{statistics.median(ratios):.2f}x",
            f"{min(ratios):.2f} to {max(ratios):.2f}",
            f"{differences[name]:.0e}",
        )
    console = Console(width=120)
    console.print(table)
    console.print(
        f"{processor()}; Python {platform.python_version()}, torch {torch.__version__}, "
        f"sentence-transformers {sentence_transformers.__version__}, transformers {transformers.__version__}"
    )


def random_model(texts: list[str], folder: str) -> str:
    """Save a model of `architecture` with random weights, as a Hugging Face folder."""
    tokenizer = train_tokenizer(iter(texts), "wordpiece", 16_000, max_length=128)
    torch.manual_seed(0)
    config = build_encoder(architecture(), tokenizer).lm.config
    transformers.AutoModel.from_config(config, add_pooling_layer=False).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def ours(source: ModelSource, precision: str) -> Encode:
    return open_model(source, "mean", precision=precision).encode


def theirs(location: str, batch: int) -> Encode:
    words = Transformer(location)
    pooling = Pooling(words.get_embedding_dimension(), "mean")
    model = SentenceTransformer(modules=[words, pooling], device="cpu")
    return lambda texts: model.encode(texts, batch_size=batch, show_progress_bar=False)


if __name__ == "__main__":
    main()
