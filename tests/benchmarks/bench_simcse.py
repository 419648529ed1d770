"""Unsupervised SimCSE in sentences/s beside `SentenceTransformerTrainer` with MultipleNegativesRankingLoss.

    python tests/benchmarks/bench_simcse.py [--batch 64] [--length 128] [--steps 6] [--rounds 3]
        [--precision bf16]

Same model (random weights, mean pooling, no head), same sentences, same batch, same precision, cosine / 0.05,
N - 1 negatives. The peer needs `pip install accelerate`; it tokenizes as it goes, as it always does; ours
reads token ids, as it always does (`--tokenize` adds tokenizing to ours too). They take turns of `--steps`
steps, the first of which is not timed. CPU time of the process; medians over rounds. `--length 32` cuts
sentences as SimCSE does, which leaves little to pad.
"""

import argparse
import os
import platform
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import pretrain.common.environment  # noqa: F401  (the allocator's settings of a training process, for both sides)

# isort: split
import numpy as np
import sentence_transformers
import torch
import transformers
from bench_helpers import (
    Turn,
    architecture,
    contest,
    library_turn,
    load_sentences,
    processor,
    small_step,
    timed,
)
from datasets import Dataset
from rich.console import Console
from rich.table import Table
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

from augment.core.ragged import Ragged
from pretrain.common.memory import FlatMemory
from pretrain.data.batch import RankBatch, View
from pretrain.data.tokenizer import train_tokenizer
from pretrain.model.encoder import build_encoder
from pretrain.step.engine import start_processes


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batch", type=int, default=64, help="sentences a step")
    parser.add_argument("--length", type=int, default=128, help="most tokens of a sentence")
    parser.add_argument("--steps", type=int, default=6, help="timed steps a turn")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each side")
    parser.add_argument("--precision", choices=["bf16", "fp32"], default="bf16")
    parser.add_argument("--tokenize", action="store_true", help="tokenize inside our time too")
    options = parser.parse_args()
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    transformers.utils.logging.set_verbosity_error()
    texts, origin = load_sentences(20_000)
    tokenizer = train_tokenizer(iter(texts), "wordpiece", 16_000, max_length=options.length)
    start_processes()
    mine, theirs = ours(texts, tokenizer, options), peer(texts, tokenizer, options)
    first, second, ratios = contest(mine, theirs, options)
    table = Table(
        title=f"SimCSE, sentences/s: 4 layers x 256, {options.batch} {origin} a step, up to "
        f"{options.length} tokens, "
        f"{options.precision}, CPU time, {torch.get_num_threads()} thread(s)"
    )
    for column in ("ours", "sentence-transformers", "ratio", "rounds"):
        table.add_column(column, justify="right")
    table.add_row(
        f"{first:,.1f}", f"{second:,.1f}", f"{first / second:.1f}x", f"{min(ratios):.1f}-{max(ratios):.1f}x"
    )
    console = Console(width=120)
    console.print(table)
    console.print(
        f"{processor()}; Python {platform.python_version()}, torch "
        f"{torch.__version__}, "
        f"sentence-transformers {sentence_transformers.__version__}, transformers {transformers.__version__}"
    )


def ours(texts: list[str], tokenizer, options: argparse.Namespace) -> Turn:
    """The project's own step, of token ids that are there (or of texts)."""
    objective = {"name": "simcse", "simcse": {"head": "none"}, "mlm": {"weight": 0.0}}
    whole, update = small_step(tokenizer, objective, options)
    memory = FlatMemory()

    def encode(rows: list[str]) -> Ragged:
        return Ragged.from_sequences(tokenizer(rows, truncation=True, max_length=options.length)["input_ids"])

    corpus, position = encode(texts), 0

    def step() -> int:
        nonlocal position
        chosen = np.random.default_rng([position]).integers(0, len(texts), options.batch)
        original = encode([texts[i] for i in chosen]) if options.tokenize else corpus.take(chosen)
        view = View(original, chosen, np.ones(len(chosen), bool))
        result = whole.compute(
            RankBatch(
                step=position,
                epoch=0,
                sequence_ids=chosen.astype(np.uint64),
                original=original,
                masked=[],
                views={"anchor": view, "positive": view},
                labels=None,
                substitutions=[],
            )
        )
        update.apply(result.losses["total"])
        memory.after_step()
        position += 1
        return options.batch

    return lambda steps: timed(step, steps)


def peer(texts: list[str], tokenizer, options: argparse.Namespace) -> Turn:
    """sentence-transformers as its documentation trains SimCSE: every sentence paired with itself."""
    torch.manual_seed(0)
    lm = transformers.AutoModel.from_config(
        build_encoder(architecture(), tokenizer).lm.config, attn_implementation="sdpa"
    )
    folder = tempfile.mkdtemp()
    lm.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    words = Transformer(folder, max_seq_length=options.length)
    model = SentenceTransformer(
        modules=[words, Pooling(words.get_embedding_dimension(), "mean")], device="cpu"
    )

    def train(arguments: dict, callbacks: list) -> None:
        SentenceTransformerTrainer(
            model=model,
            args=SentenceTransformerTrainingArguments(**arguments),
            callbacks=callbacks,
            loss=MultipleNegativesRankingLoss(model, scale=20.0),
            train_dataset=Dataset.from_dict({"anchor": texts, "positive": texts}),
        ).train()

    def turn(steps: int) -> tuple[int, float]:
        return options.batch * steps, library_turn(train, options.batch, options.precision, steps)

    return turn


if __name__ == "__main__":
    main()
