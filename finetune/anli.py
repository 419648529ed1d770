"""Adversarial NLI: fine-tune an encoder as Nie et al. do, and evaluate it on rounds 1, 2 and 3.

    clearly anli MODEL --eval-data DIR

Nie et al. 2020, "Adversarial NLI", and their code (facebookresearch/anli: src/nli/training.py and
script/example_scripts/train_roberta.sh): SNLI + MNLI + FEVER-NLI + ANLI, in which the three rounds are
repeated 10, 20 and 10 times in every epoch; pairs of at most 156 tokens, batch 128, 2 epochs, learning rate
1e-5, AdamW with eps 1e-8 and no weight decay, 10 % of warm-up, gradients clipped at 1. The model is
evaluated on the dev sets every 2,000 updates and after each epoch; test figures are of the one with the best
dev accuracy over all rounds. Dev sets are never trained on.
"""

import hashlib
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from pydantic import Field

from augment.core.ragged import Ragged
from finetune.answers import Answers, examples_digest, from_text, to_text
from finetune.flags import Encoder, EvalData, Out
from finetune.results import Evaluation, TaskResult, folder_for, sample_std, table, write
from finetune.tuning.labelled import Encoded, PretrainedEncoder, encode_examples, open_source
from finetune.tuning.recipe import Interrupted, Recipe, TrainingOptions, stop_code_of, until_stopped
from finetune.tuning.tasks import NLI, LabelledExamples, load
from pretrain.benchmarks.files import DATA_SETS, data_root, find, json_rows
from pretrain.common import cli
from pretrain.common.errors import UserError

MAX_LENGTH = 156
EVALUATE_EVERY = 2000
RECIPE = Recipe(
    lr=1e-5, batch_size=128, epochs=2, warmup=0.1, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, clip=1.0
)
ROUNDS = ("R1", "R2", "R3")
_WORDS = (("e", "n", "c"), NLI, ("SUPPORTS", "NOT ENOUGH INFO", "REFUTES"))
_LABELS = {word: number for words in _WORDS for number, word in enumerate(words)}
"""Label words of ANLI; of SNLI and MNLI; of FEVER-NLI."""


@dataclass(frozen=True)
class Corpus:
    """Describe a training set: where it lies, its rows as published, how often an epoch sees it."""

    name: str
    places: Sequence[str]
    """Patterns below the data folder, the first of which that a file has counts."""
    size: int
    weight: int
    keys: Sequence[str]
    """Of premise, hypothesis and label in its jsonl."""


KEYS = ("context", "hypothesis", "label")
"""Of ANLI's own files."""
_CORPORA = yaml.safe_load(Path(__file__).with_name("anli.yaml").read_text("utf-8"))
TRAINING = tuple(Corpus(name, **fields) for name, fields in _CORPORA.items())


class AnliOptions(TrainingOptions, frozen=True):
    """Nie et al.'s settings, as flags; others mark the result incomplete."""

    epochs: cli.Count = Field(RECIPE.epochs, description="passes over the training data")

    @property
    def recipe(self) -> Recipe:
        lr, batch_size = self.lr or RECIPE.lr, self.batch_size or RECIPE.batch_size
        return replace(RECIPE, epochs=self.epochs, lr=lr, batch_size=batch_size)


def main(model: Encoder, *, eval_data: EvalData = "", out: Out = "", options: AnliOptions) -> int:
    """Fine-tune an encoder on NLI as Nie et al. do, and evaluate it on ANLI; resumable.

    Training sets that are not there are left out, and the result is marked incomplete.
    """
    sets = load_sets(eval_data, options.max_train)
    source = open_source(model)
    folder = folder_for(source.model, out)
    stop_code = stop_code_of(folder)

    def work() -> None:
        result = evaluate(source, sets, options, folder / "anli", stop_code)
        if options.max_train:
            result.incomplete(f"at most {options.max_train:,} training examples of each set")
        for name in ("epochs", "lr", "batch_size"):
            given, published = getattr(options.recipe, name), getattr(RECIPE, name)
            if given != published:
                result.incomplete(f"{name} {given:g} in place of {published:g}")
        print(table(result))
        print(f"  {result.seconds:.0f} s of fine-tuning; all figures: {write(result, folder)}")

    return until_stopped(work)


@dataclass(frozen=True)
class Sets:
    """Hold what is trained on (set name -> examples), what is evaluated ("R1 dev" -> examples), and notes."""

    train: dict[str, LabelledExamples]
    evaluation: dict[str, LabelledExamples]
    notes: list[str]


def load_sets(data: str = "", max_train: int = 0) -> Sets:
    """Read every training set that is there, and the three rounds' dev and test sets."""
    root, notes = data_root(data), []
    evaluated = {}
    for split in ("dev", "test"):
        for name in ROUNDS:
            evaluated[f"{name} {split}"] = rows = read_jsonl(find(data, "ANLI", name, f"{split}.jsonl"), KEYS)
            published = DATA_SETS[f"ANLI/{name}"].rows[split]
            if len(rows) != published:
                notes.append(f"ANLI {name}: {split} has {len(rows):,} rows here, {published:,} as published")
    train: dict[str, LabelledExamples] = {}
    missing = []
    for corpus in TRAINING:
        path = next((path for place in corpus.places for path in sorted(root.glob(place))), None)
        if path is None:
            missing.append(corpus.name)
            continue
        rows = load("MNLI", data).splits["train"] if path.suffix == ".tsv" else read_jsonl(path, corpus.keys)
        if len(rows) != corpus.size:
            notes.append(f"{corpus.name}: {len(rows):,} training examples here, {corpus.size:,} as published")
        train[corpus.name] = rows.limited(max_train)
    if not train:
        places = ", ".join(place for corpus in TRAINING for place in corpus.places)
        raise UserError(f"there is nothing to train on in {root}: none of {places}")
    if missing:
        notes.append(f"trained without {', '.join(missing)}, which are not here")
    return Sets(train, evaluated, notes)


def read_jsonl(path: Path, keys: Sequence[str]) -> LabelledExamples:
    """Return premises, hypotheses and classes (entailment 0, neutral 1, contradiction 2), "-" left out."""
    rows = [(number, texts) for number, texts in json_rows(path, *keys) if texts[2] != "-"]
    for number, (_, _, label) in rows:
        if label not in _LABELS:
            known = ", ".join(_LABELS)
            raise UserError(f"{path}, line {number}: unknown label {label!r}; expected one of {known}")
    if not rows:
        raise UserError(f"{path} has no rows; fetch it again")
    premises, hypotheses, labels = zip(*(texts for _, texts in rows), strict=True)
    return LabelledExamples(
        list(premises), list(hypotheses), np.array([_LABELS[label] for label in labels], np.int64)
    )


def files(name: str, root: Path) -> list[Path]:
    """Return the files of a round that must be there; it is trained on what there is of several sets."""
    return [root / "ANLI" / name / f"{split}.jsonl" for split in ("dev", "test")]


def epoch_rows(counts: list[int], weights: list[int], seed: int, epoch: int) -> np.ndarray:
    """Return the shuffled rows of an epoch over sets laid end to end, int64[sum(counts * weights)]."""
    starts = np.cumsum([0, *counts[:-1]])
    repeated = [
        np.tile(np.arange(start, start + count), weight)
        for start, count, weight in zip(starts, counts, weights)
    ]
    return np.random.default_rng([seed, epoch]).permutation(np.concatenate(repeated))


def evaluate(
    source: PretrainedEncoder,
    sets: Sets,
    options: AnliOptions,
    folder: Path,
    stop_code: Callable[[], int] = lambda: 0,
) -> Evaluation:
    """Fine-tune once per seed, or take what is in `folder`; Interrupted: a requested stop is saved."""
    from finetune.tuning import finetuning
    from finetune.tuning.finetuning import Execution, FineTuning, build_classifier, choose_precision

    recipe, precision = options.recipe, choose_precision(options.precision)

    def encoded(rows: LabelledExamples) -> Encoded:
        return encode_examples(source, rows.first, rows.second, rows.targets, MAX_LENGTH)

    parts = [encoded(rows) for rows in sets.train.values()]
    evaluated = {name: encoded(rows) for name, rows in sets.evaluation.items()}
    types = [part.token_types for part in parts if part.token_types is not None]
    train = Encoded(
        Ragged.concatenate([part.tokens for part in parts]),
        Ragged.concatenate(types) if types else None,
        np.concatenate([part.known_targets for part in parts]),
        sum(part.cut for part in parts),
    )
    counts = [len(part) for part in parts]
    weights = [corpus.weight for corpus in TRAINING if corpus.name in sets.train]
    digest = hashlib.sha256()
    for part in (train, *evaluated.values()):
        for array in (part.tokens.ids, part.tokens.offsets, part.known_targets):
            digest.update(array.tobytes())
    data = {"precision": precision, "model": source.fingerprint, "data": digest.hexdigest()}
    settings = asdict(recipe) | data
    found = []
    for seed in range(1, options.seeds + 1):
        path = folder / f"seed{seed}-{finetuning.settings_digest(settings | {'seed': seed})}.json"
        entry = finetuning.read_result(path)
        if entry is None:
            if (code := stop_code()) != 0:
                raise Interrupted(code)
            examples = sum(np.multiply(counts, weights))
            print(f"seed {seed}: {examples:,} examples per epoch", file=sys.stderr, flush=True)
            training = FineTuning(
                build_classifier(source, len(NLI), recipe.dropout, seed),
                train,
                recipe,
                seed,
                lambda logits: _accuracies(logits, evaluated, "dev"),
                Execution(precision, options.token_budget, finetuning.checkpoint_of(path), stop_code, True),
                rows=lambda seed, epoch: epoch_rows(counts, weights, seed, epoch),
                evaluate_every=EVALUATE_EVERY,
            )
            outcome = training.run()
            _, test, answers = _accuracies(training.logits, evaluated, "test")
            entry = {
                "settings": settings | {"seed": seed},
                "test": test,
                "test_answers": to_text(answers),
                **outcome.figures(),
            }
            finetuning.write_result(path, entry)
        found.append(entry)
    protocol = (
        f"Nie et al. 2020: {recipe.epochs} epochs, batch {recipe.batch_size}, mean of {options.seeds} seed(s)"
    )
    result = Evaluation.of("anli", source.model, f"{protocol}, {precision}")
    for note in sets.notes:
        result.incomplete(note)
    for name in (*ROUNDS, "all"):
        result.tasks[name] = _task_result(name, found, sets)
    result.seconds = sum(entry["seconds"] for entry in found)
    return result


def _task_result(name: str, entries: list[dict[str, Any]], sets: Sets) -> TaskResult:
    test = [entry["test"][name] for entry in entries]
    dev = [entry["best"]["scores"][name] for entry in entries]
    scores = {"test": statistics.mean(test), "dev": statistics.mean(dev)}
    if any("test_answers" not in entry for entry in entries):  # of a version that kept none
        return TaskResult("test", scores["test"], scores, sample_std(test), {"test": test, "dev": dev})
    places = range(len(ROUNDS)) if name == "all" else [ROUNDS.index(name)]
    rounds = [sets.evaluation[f"{one} test"] for one in ROUNDS]
    ends = np.cumsum([0, *map(len, rounds)])
    answered = slice(ends[places[0]], ends[places[-1] + 1])  # all rounds' answers lie end to end
    rows = [rounds[place] for place in places]
    gold = np.concatenate([one.targets for one in rows if one.targets is not None])
    texts = [text for one in rows for text in one.first], [text for one in rows for text in one.second or ()]
    given = [from_text(entry["test_answers"]).astype(np.int64)[answered] for entry in entries]
    answers = Answers.of(given, gold, "accuracy", examples_digest(*texts, gold))
    return TaskResult("test", scores["test"], scores, sample_std(test), {"test": test, "dev": dev}, answers)


def _accuracies(
    logits: Callable[[Encoded], np.ndarray], evaluated: dict[str, Encoded], split: str
) -> tuple[float, dict[str, float], np.ndarray]:
    """Return the accuracy x 100 over all rows, which decides; every round's; and all classes int64[N]."""
    answers = {name: logits(evaluated[f"{name} {split}"]).argmax(1) for name in ROUNDS}
    correct = {name: answers[name] == evaluated[f"{name} {split}"].targets for name in ROUNDS}
    scores = {name: 100 * float(np.mean(hits)) for name, hits in correct.items()}
    scores["all"] = 100 * float(np.mean(np.concatenate(list(correct.values()))))
    return scores["all"], scores, np.concatenate(list(answers.values()))


if __name__ == "__main__":
    cli.run(main, outlives_readers=True)
