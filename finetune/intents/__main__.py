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

Test examples of classes that no example trains are errors.
"""

import numpy as np

from finetune.answers import Answers, examples_digest
from finetune.encoders.models import EmbeddingModel
from finetune.frozen import Frozen, command
from finetune.intents.sets import BATCH, LEARNING_RATE, SEED, SETS, SHOTS, SPLITS, Intents, read
from finetune.results import Evaluation, sample_std
from pretrain.benchmarks.files import DATA_SETS
from pretrain.common import cli

ITERATIONS = 1000
VALIDATE_EVERY = 100


def score(model: EmbeddingModel, name: str, intents: Intents, evaluation: Evaluation) -> str:
    """Evaluate all splits of all shots of a set; a task is called NAME-SHOTS for each."""
    import torch

    from finetune.intents.layers import fit, samples

    chosen = [sample for k in SHOTS for sample in samples(intents.labels, k)]
    used = np.unique(np.concatenate([rows for sample in chosen for rows in (sample.train, sample.dev)]))
    encoded = torch.from_numpy(model.encode([intents.texts[row] for row in used] + intents.test_texts))
    vectors = torch.zeros(len(intents.texts), encoded.shape[1])
    vectors[used] = encoded[: len(used)]
    fits = fit(
        vectors,
        torch.from_numpy(intents.labels),
        encoded[len(used) :],
        torch.from_numpy(intents.test_labels),
        chosen,
        len(intents.classes),
        ITERATIONS,
        VALIDATE_EVERY,
    )
    data = examples_digest(intents.test_texts, None, intents.test_labels)
    for number, k in enumerate(SHOTS):
        of_splits, first = fits[number * SPLITS : (number + 1) * SPLITS], chosen[number * SPLITS]
        accuracies = [one.test for one in of_splits]
        scores = {
            "accuracy": float(np.mean(accuracies)),
            "validation_accuracy": float(np.mean([one.validation for one in of_splits])),
        }
        details = {"splits": accuracies, "iterations": [one.iteration for one in of_splits]}
        details |= {"train": len(first.train), "validation": len(first.dev)}
        answers = Answers.of([one.answers for one in of_splits], intents.test_labels, "accuracy", data)
        evaluation.add(f"{name}-{k}", "accuracy", scores, sample_std(accuracies), answers, **details)
    _notes(name, intents, evaluation)
    return ", ".join(f"{k}-shot {evaluation.tasks[f'{name}-{k}'].value:.2f}" for k in SHOTS)


def _notes(name: str, intents: Intents, evaluation: Evaluation) -> None:
    """Note what differs from the published sizes, and classes too small for the protocol."""
    sizes, published = np.bincount(intents.labels), DATA_SETS[f"intents/{name}"].rows
    evaluation.expect_size(name, "classes", len(sizes), published["classes"])
    pool, test = len(intents.texts), len(intents.test_texts)
    if "test" in published:
        evaluation.expect_size(name, "examples to sample from", pool, published["examples"])
        evaluation.expect_size(name, "test examples", test, published["test"])
    else:  # published as one whole, split by whoever uses it
        evaluation.expect_size(name, "examples", pool + test, published["examples"])
    for k in SHOTS:
        if short := int((sizes < 2 * k).sum()):
            few = f"{short} of {len(sizes)} classes have fewer than {2 * k} examples"
            evaluation.notes.append(f"{name}, {k}-shot: {few}; the larger half trains")


EVALUATION = Frozen(
    "intents",
    f"linear layer on frozen raw vectors, Adam {LEARNING_RATE}, batch {BATCH}, {ITERATIONS} iterations, "
    f"best of every {VALIDATE_EVERY} on K validation examples a class; {SPLITS} fixed splits of ours "
    f"(seed {SEED}; the paper has its own)",
    SETS,
    read,
    score,
    pooling=("mean", "VaSCL's"),
    about="Classify intents from 5, 10 and 20 examples: a linear layer on frozen vectors, five fixed splits.",
)
main = command(EVALUATION)

if __name__ == "__main__":
    cli.run(main)
