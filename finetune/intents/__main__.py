"""Evaluate few-shot intent classification as VaSCL (Zhang et al. 2022, section 4.2.1) describes it.

The encoder is frozen; a linear softmax layer on the raw vectors is trained with Adam (learning rate 1e-4,
batch 32, 1,000 iterations) on K examples a class; another K a class choose the iteration, out of every
hundredth; the test set is evaluated there. Training and validation files are merged before sampling. Five
splits; accuracy, mean and sample standard deviation.

The paper fixed its splits but published neither them nor its code. Ours depend on nothing but SEED, the
split's number and the order of the files: for every class, in the order of the classes' names,
`numpy.random.RandomState([SEED, split])` permutes its examples; the first K train and the next K validate, so
that the splits for 5, 10 and 20 are nested. A class with fewer than 2K examples gives the larger half of them
to training. Layers start as torch.nn.Linear does, seeded by the split.

The paper leaves ATIS out of its table (appendix C: one class has 73% of the examples, 60% have fewer than
20); here it runs when asked for by name, with these two shares beside the result. Test examples of classes
that no example trains are errors.
"""

import sys
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from finetune.answers import Answers, examples_digest
from finetune.encoders.models import EmbeddingModel, open_model
from finetune.flags import EvalData, Model, Out, Pooling, VectorPrecision
from finetune.intents.layers import BATCH, LEARNING_RATE, SEED, SPLITS, Fit, Sample, fit, samples
from finetune.intents.sets import FOUR, SETS, Intents, check_name, read
from finetune.results import Evaluation, TaskResult, run_and_write, sample_std
from pretrain.common import cli

SHOTS = (5, 10, 20)
ITERATIONS = 1000
VALIDATE_EVERY = 100


def evaluate(
    model: EmbeddingModel,
    loaded: Mapping[str, Intents],
    shots: Sequence[int] = SHOTS,
    report: Callable[[str], None] = lambda line: print(line, file=sys.stderr, flush=True),
) -> Evaluation:
    """Evaluate all splits of all shots of each set, by name as `read` read it.

    A task is called NAME-K for every number of shots K.
    """
    import torch

    protocol = (
        f"linear layer on frozen raw vectors, Adam {LEARNING_RATE}, batch {BATCH}, {ITERATIONS} iterations, "
        "best of every "
        f"{VALIDATE_EVERY} on K validation examples a class; {SPLITS} fixed splits of ours (seed {SEED}; "
        "the paper has its own)"
    )
    evaluation = Evaluation.of("intents", model, protocol)
    evaluation.expect_pooling("mean", "VaSCL's")
    for name, intents in loaded.items():
        clock = time.perf_counter()
        chosen = [sample for k in shots for sample in samples(intents.labels, k)]
        used = np.unique(
            np.concatenate([rows for sample in chosen for rows in (sample.train, sample.validation)])
        )
        encoded = torch.from_numpy(model.encode([intents.texts[row] for row in used] + intents.test_texts))
        vectors = torch.zeros(len(intents.texts), encoded.shape[1])
        vectors[used] = encoded[: len(used)]
        embedded = time.perf_counter() - clock
        labels, test_labels = torch.from_numpy(intents.labels), torch.from_numpy(intents.test_labels)
        fits = fit(
            vectors,
            labels,
            encoded[len(used) :],
            test_labels,
            chosen,
            len(intents.classes),
            ITERATIONS,
            VALIDATE_EVERY,
        )
        for number, k in enumerate(shots):
            part = slice(number * SPLITS, (number + 1) * SPLITS)
            evaluation.tasks[f"{name}-{k}"] = _result(fits[part], chosen[part], intents)
        _notes(name, intents, shots, evaluation)
        figures = ", ".join(f"{k}-shot {evaluation.tasks[f'{name}-{k}'].value:.2f}" for k in shots)
        report(f"{name}: {figures}; {time.perf_counter() - clock:.0f} s, {embedded:.0f} of them encoding")
    return evaluation


def _result(fits: Sequence[Fit], chosen: Sequence[Sample], intents: Intents) -> TaskResult:
    accuracy = np.array([one.test for one in fits])
    scores = {
        "accuracy": float(accuracy.mean()),
        "validation_accuracy": float(np.mean([one.validation for one in fits])),
    }
    details = {
        "splits": accuracy.tolist(),
        "iterations": [one.iteration for one in fits],
        "train": len(chosen[0].train),
        "validation": len(chosen[0].validation),
    }
    data = examples_digest(intents.test_texts, None, intents.test_labels)
    answers = Answers.of([one.answers for one in fits], intents.test_labels, "accuracy", data)
    return TaskResult("accuracy", scores["accuracy"], scores, sample_std(accuracy.tolist()), details, answers)


def _notes(name: str, intents: Intents, shots: Sequence[int], evaluation: Evaluation) -> None:
    """Note what differs from the published sizes, and classes too small for the protocol."""
    pool, test, classes = SETS[name]
    sizes = np.bincount(intents.labels)
    if name == "HWU64":  # published as one whole, split by whoever uses it
        if len(intents.texts) + len(intents.test_texts) != pool or len(sizes) != classes:
            evaluation.incomplete(
                f"HWU64 has {len(intents.texts) + len(intents.test_texts):,} examples in {len(sizes)} "
                f"classes here, {pool:,} in {classes} in the paper"
            )
    elif (len(intents.texts), len(intents.test_texts), len(sizes)) != (pool, test, classes):
        evaluation.incomplete(
            f"{name} has {len(intents.texts):,} examples to sample from, {len(intents.test_texts):,} test "
            f"examples and {len(sizes)} classes here; {pool:,}, {test:,} and {classes} as published"
        )
    for k in shots:
        short = int((sizes < 2 * k).sum())
        if short:
            evaluation.notes.append(
                f"{name}, {k}-shot: {short} of {len(sizes)} classes have fewer than {2 * k} examples; the "
                "larger half trains"
            )
    if name == "ATIS":
        unseen = int((intents.test_labels < 0).sum())
        evaluation.notes.append(
            "ATIS is not in the paper's table (appendix C): its largest class has "
            f"{100 * sizes.max() / sizes.sum():.0f}% of the examples, {100 * (sizes < 20).mean():.0f}% of "
            f"its classes fewer than 20; {unseen} test examples are of classes without any"
        )


# -- reading
def main(
    model: Model,
    *,
    tasks: cli.Names = (),
    shots: tuple[cli.Count, ...] = SHOTS,
    pooling: Pooling = "",
    eval_data: EvalData = "",
    precision: VectorPrecision = "fp32",
    out: Out = "",
) -> int:
    """Classify intents from few examples: a linear layer on frozen vectors, five fixed splits.

    Args:
        tasks: sets by commas: SNIPS, BANKING77, CLINC150, HWU64 (without it, these four), ATIS.
        shots: training examples a class, by commas.
    """
    names = list(map(check_name, tasks or FOUR))
    # before the model: a missing file should not cost its loading
    loaded = {name: read(name, eval_data) for name in names}
    return run_and_write(
        open_model(model, pooling, precision=precision), out, lambda opened: evaluate(opened, loaded, shots)
    )


if __name__ == "__main__":
    cli.run(main)
