"""Training throughput in real (non-padding) tokens/s beside the padded way: same model, sentences, precision.

    python tests/benchmarks/bench_training.py [--batch 128] [--steps 4] [--rounds 3] [--precision bf16]

1. MLM only: the project's step against `transformers.Trainer` and its `DataCollatorForLanguageModeling`,
   which pads. The Trainer needs `pip install accelerate`.
2. MLM + contrastive: the project's step (two-level gradient, del-span,reorder) against the straightforward
loop: three
   padded forwards (masked original, two views), logits of every position, the full similarity matrix, one
   backward.

Both sides make their batches inside the time; the loop of 2 masks and augments with our own functions. They
take turns of `--steps` steps, the first of which is not timed. CPU time of the process, so that a busy
machine does not change the ratio; medians over rounds. Tokens are those of the original sentences, in 2 of
the views too, without padding or filler.
"""

import argparse
import os
import platform
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import pretrain.common.environment  # noqa: F401  (the allocator's settings of a training process and its workers, for both sides)

# isort: split
import numpy as np
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
from rich.console import Console
from rich.table import Table
from torch.nn.functional import cross_entropy, normalize

from augment.core.keys import sequence_keys
from augment.core.ragged import Ragged
from augment.core.vocabulary import Vocabulary
from augment.spec.build import build
from pretrain.common.memory import FlatMemory
from pretrain.data.batch import RankBatch, View
from pretrain.data.masking import mask_tokens
from pretrain.data.tokenizer import train_tokenizer
from pretrain.model.encoder import build_encoder
from pretrain.step.engine import start_processes

AUGMENTATION = "del-span,reorder"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batch", type=int, default=128, help="sentences a step")
    parser.add_argument("--steps", type=int, default=4, help="timed steps a turn")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each side")
    parser.add_argument("--precision", choices=["bf16", "fp32"], default="bf16")
    parser.add_argument("--sentences", type=int, default=50_000)
    options = parser.parse_args()
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    transformers.utils.logging.set_verbosity_error()

    texts, origin = load_sentences(options.sentences)
    tokenizer = train_tokenizer(iter(texts), "wordpiece", 16_000, max_length=128)
    rows = tokenizer(texts, truncation=True, max_length=128)["input_ids"]
    corpus = Ragged.from_sequences(rows)
    start_processes()

    table = Table(
        title=f"real tokens/s, 4 layers x 256, vocabulary {len(tokenizer)}, {options.batch} {origin} a step "
        f"(mean {corpus.lengths.mean():.0f} tokens), {options.precision}, CPU time, "
        f"{torch.get_num_threads()} thread(s)"
    )
    for column in ("objective", "ours", "padded", "ratio", "rounds"):
        table.add_column(column, justify="left" if column == "objective" else "right")
    contests = {
        "MLM, against transformers.Trainer": (
            ours(corpus, tokenizer, "mlm", options),
            trainer(rows, tokenizer, options),
        ),
        f"MLM + NT-Xent ({AUGMENTATION}), against three padded forwards": (
            ours(corpus, tokenizer, "clear", options),
            three_forwards(corpus, tokenizer, options),
        ),
    }
    for name, (mine, theirs) in contests.items():
        first, second, ratios = contest(mine, theirs, options)
        table.add_row(
            name,
            f"{first:,.0f}",
            f"{second:,.0f}",
            f"{first / second:.1f}x",
            f"{min(ratios):.1f}-{max(ratios):.1f}x",
        )
    console = Console(width=150)
    console.print(table)
    console.print(
        f"{processor()}; torch {torch.__version__}, transformers "
        f"{transformers.__version__}, Python {platform.python_version()}"
    )


def draw(corpus: Ragged, step: int, options: argparse.Namespace) -> np.ndarray:
    """The sentences of a step: the same for both sides."""
    return np.random.default_rng([step]).integers(0, len(corpus), options.batch)


def ours(corpus: Ragged, tokenizer, objective: str, options: argparse.Namespace) -> Turn:
    """The project's own step: mask, augment, `WholeBatch.compute`, `Update.apply`."""
    whole, update = small_step(tokenizer, {"name": objective}, options)
    vocabulary, memory = Vocabulary.from_tokenizer(tokenizer), FlatMemory()
    augment = build(AUGMENTATION, vocabulary)
    position = 0

    def step() -> int:
        nonlocal position
        chosen = draw(corpus, position, options)
        original, numbers = corpus.take(chosen), chosen.astype(np.uint64)
        masked = mask_tokens(original, sequence_keys(0, position, numbers, 0, "mask"), vocabulary)
        views = {}
        for number, role in enumerate(("anchor", "positive") if objective == "clear" else ()):
            tokens = augment(original, sequence_keys(0, position, numbers, number, "augment"))
            views[role] = View(tokens, chosen, np.ones(len(chosen), bool))
        batch = RankBatch(
            step=position, epoch=0, sequence_ids=numbers, original=original, masked=[masked], views=views,
            labels=None, substitutions=[],
        )  # fmt: skip
        update.apply(whole.compute(batch).losses["total"])
        memory.after_step()
        position += 1
        return original.num_tokens + sum(view.tokens.num_tokens for view in views.values())

    return lambda steps: timed(step, steps)


def trainer(rows: list[list[int]], tokenizer, options: argparse.Namespace) -> Turn:
    """`transformers.Trainer` on its padding collator, timed from the end of its first step."""
    model = padded_model(tokenizer)
    collator = transformers.DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15)
    real = []

    def collate(examples: list[dict]) -> dict:
        real.append(sum(len(example["input_ids"]) for example in examples))
        return collator(examples)

    def turn(steps: int) -> tuple[int, float]:
        real.clear()

        def train(arguments: dict, callbacks: list) -> None:
            transformers.Trainer(
                model=model,
                data_collator=collate,
                callbacks=callbacks,
                train_dataset=[{"input_ids": row} for row in rows],
                args=transformers.TrainingArguments(**arguments),
            ).train()

        seconds = library_turn(train, options.batch, options.precision, steps)
        return sum(real[1 : steps + 1]), seconds

    return turn


def three_forwards(corpus: Ragged, tokenizer, options: argparse.Namespace) -> Turn:
    """CLEAR as it is usually written, for one device: padded tensors, three forwards of the library model."""
    model = padded_model(tokenizer).train()
    head = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 128))
    optimizer = torch.optim.AdamW([*model.parameters(), *head.parameters()], lr=6e-4)
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    augment = build(AUGMENTATION, vocabulary)
    position = 0

    def pad(batch: Ragged) -> tuple[torch.Tensor, torch.Tensor]:
        mask = np.arange(batch.lengths.max()) < batch.lengths[:, None]
        ids = np.full(mask.shape, vocabulary.pad_id, np.int64)
        ids[mask] = batch.ids
        return torch.from_numpy(ids), torch.from_numpy(mask)

    def embed(batch: Ragged) -> torch.Tensor:
        ids, mask = pad(batch)
        hidden = model.base_model(ids, attention_mask=mask.long()).last_hidden_state
        keep = mask[:, :, None].float()
        return (hidden.float() * keep).sum(1) / keep.sum(1)

    def step() -> int:
        nonlocal position
        chosen = draw(corpus, position, options)
        original, numbers = corpus.take(chosen), chosen.astype(np.uint64)
        masked = mask_tokens(original, sequence_keys(0, position, numbers, 0, "mask"), vocabulary)
        views = [augment(original, sequence_keys(0, position, numbers, view, "augment")) for view in (0, 1)]
        with torch.autocast("cpu", torch.bfloat16, enabled=options.precision == "bf16"):
            ids, mask = pad(masked.batch)
            targets = np.full(masked.batch.num_tokens, -100)
            targets[masked.positions] = masked.labels
            labels = torch.full(ids.shape, -100)
            labels[mask] = torch.from_numpy(targets)
            loss = model(ids, attention_mask=mask.long(), labels=labels).loss
            vectors = torch.cat([embed(view) for view in views])
        z = normalize(head(vectors), dim=1)
        logits = (z @ z.T / 0.1).fill_diagonal_(-torch.inf)
        loss = loss + cross_entropy(logits, torch.arange(len(z)).roll(len(z) // 2))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        position += 1
        return original.num_tokens + sum(view.num_tokens for view in views)

    return lambda steps: timed(step, steps)


def padded_model(tokenizer) -> torch.nn.Module:
    """The same model as ours, with the library's own attention (sdpa) and loss."""
    torch.manual_seed(0)
    config = build_encoder(architecture(), tokenizer).lm.config
    return transformers.AutoModelForMaskedLM.from_config(
        config, attn_implementation="sdpa", dtype=torch.float32
    )


if __name__ == "__main__":
    main()
