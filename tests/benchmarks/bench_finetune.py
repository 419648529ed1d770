"""Fine-tuning in real (non-padding) tokens/s beside `transformers.Trainer` and its padding collator: same
model, same data.

    python tests/benchmarks/bench_finetune.py [--task MRPC] [--model FOLDER] [--steps 10] [--rounds 5]

Both sides take batches of the task's recipe (MRPC: 16 pairs) from GLUE's training set under CLEAR_DATA,
shuffled, tokenised beforehand; AdamW, no clipping. They take turns of `--steps` steps, the first of which is
not timed. CPU time of the process, so that a busy machine does not change the ratio; medians over rounds.
Without --model: a BERT of 4 layers, 256 wide, random.
"""

import argparse
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
import torch
import transformers

from finetune.glue.runs import MAX_LENGTH
from finetune.tuning.finetuning import Execution, FineTuning, build_classifier
from finetune.tuning.labelled import Encoded, PretrainedEncoder, encode_examples, open_source
from finetune.tuning.recipe import Recipe
from finetune.tuning.tasks import TASKS, load
from pretrain.data.tokenizer import train_tokenizer
from pretrain.model.encoder import build_encoder

Turn = Callable[[int], tuple[int, float]]
"""Runs one step to warm up and the given number timed; (real tokens, seconds of CPU) of the timed ones."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", default="MRPC")
    parser.add_argument("--model", default="")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--precision", default="fp32", choices=("fp32", "bf16"))
    options = parser.parse_args()
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    rows = load(options.task).splits["train"]
    with tempfile.TemporaryDirectory() as folder:
        if not options.model:
            options.model = folder
            tokenizer = train_tokenizer(
                iter(rows.first + (rows.second or [])), "wordpiece", 8192, lowercase=True
            )
            torch.manual_seed(1)
            sizes = {
                "layers": 4,
                "hidden_size": 256,
                "heads": 4,
                "intermediate_size": 1024,
                "max_positions": 128,
            }
            build_encoder({"type": "bert", **sizes}, tokenizer).lm.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
        source = open_source(options.model)
        examples = encode_examples(source, rows.first, rows.second, rows.targets, MAX_LENGTH)
        lr, batch, *_ = TASKS[options.task].recipe
        turns = (
            packed(source, examples, lr, batch, options.precision),
            trainer(options, examples, source, lr, batch),
        )
        speeds: tuple[list[float], list[float]] = ([], [])
        for _ in range(options.rounds):
            for side, turn in zip(speeds, turns):
                tokens, seconds = turn(options.steps)
                side.append(tokens / seconds)
    ours, theirs = map(statistics.median, speeds)
    ratios = [a / b for a, b in zip(*speeds)]
    lengths = examples.tokens.lengths
    print(
        f"{options.task}, batches of {batch}, {lengths.mean():.0f} tokens a row (longest {lengths.max()}), "
        f"{options.precision}\n"
        f"packed {ours:,.0f} tokens/s, transformers.Trainer {theirs:,.0f}: {ours / theirs:.2f}x "
        f"(rounds {min(ratios):.2f}-{max(ratios):.2f}x)\n"
        f"{platform.machine()}, {torch.get_num_threads()} threads; torch {torch.__version__}, transformers "
        f"{transformers.__version__}"
    )


def packed(source: PretrainedEncoder, examples: Encoded, lr: float, batch: int, precision: str) -> Turn:
    """The project's steps."""
    recipe = Recipe(lr, batch, epochs=1000)
    training = FineTuning(
        build_classifier(source, 2, recipe.dropout, 1),
        examples,
        recipe,
        1,
        lambda _: (0.0, {}, np.empty(0)),
        Execution(precision),
    )

    def turn(steps: int) -> tuple[int, float]:
        order = training.rows(1, training.step)
        tokens, start = 0, 0.0
        for number in range(steps + 1):
            chosen = order[number * batch : (number + 1) * batch]
            training.update(chosen)
            if number == 0:
                start = time.process_time()
            else:
                tokens += int(examples.tokens.lengths[chosen].sum())
        return tokens, time.process_time() - start

    return turn


def trainer(
    options: argparse.Namespace, examples: Encoded, source: PretrainedEncoder, lr: float, batch: int
) -> Turn:
    """`transformers.Trainer` on the library's classifier of the same folder, padding each batch to its
    longest row."""
    model = transformers.AutoModelForSequenceClassification.from_pretrained(options.model, num_labels=2)
    collator = transformers.DataCollatorWithPadding(source.tokenizer)
    types = examples.token_types
    rows = [
        {"input_ids": examples.tokens[n].tolist(), "labels": int(examples.targets[n])}
        | ({"token_type_ids": types[n].tolist()} if types is not None else {})
        for n in np.random.default_rng(1).permutation(len(examples))
    ]
    real: list[int] = []

    def collate(batch: list[dict]) -> dict:
        real.append(sum(len(row["input_ids"]) for row in batch))
        return collator(batch)

    class Clock(transformers.TrainerCallback):
        def __init__(self) -> None:
            self.times: list[float] = []

        def on_step_end(self, arguments, state, control, **_) -> None:
            self.times.append(time.process_time())

    def turn(steps: int) -> tuple[int, float]:
        real.clear()
        clock = Clock()
        with tempfile.TemporaryDirectory() as folder:
            arguments = transformers.TrainingArguments(
                output_dir=folder,
                per_device_train_batch_size=batch,
                max_steps=steps + 1,
                use_cpu=True,
                learning_rate=lr,
                bf16=options.precision == "bf16",
                max_grad_norm=0.0,
                weight_decay=0.1,
                report_to=[],
                save_strategy="no",
                logging_strategy="no",
                disable_tqdm=True,
                seed=0,
            )
            transformers.Trainer(
                model=model, args=arguments, data_collator=collate, train_dataset=rows, callbacks=[clock]
            ).train()
        return sum(real[1 : steps + 1]), clock.times[-1] - clock.times[0]

    return turn


if __name__ == "__main__":
    main()
