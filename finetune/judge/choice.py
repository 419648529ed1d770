"""Judge what training made of an encoder: against its start and BM25, and by what it forgot.

How much of the adaptation to keep is chosen on one half of the test's queries; all figures that are shown are
of the other half. What is not better than the start there is not kept.
"""

import glob
import hashlib
import json
import math
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from finetune.compare import example_differences
from finetune.encoders.kept_vectors import digest_of
from finetune.encoders.models import EmbeddingModel
from finetune.encoders.source import ModelSource, cached_folder
from finetune.judge import bm25
from finetune.judge.averaging import ALPHAS, average, keep_start
from finetune.judge.by_products import by_products
from finetune.judge.costs import cost_lines, costs_of
from finetune.judge.heldout import HALVES, TRAIN, RetrievalTest
from finetune.judge.scores import ADAPTED, BM25, METRICS, START, Halves, Scores, in_words, rows_of, table
from finetune.own_sets import add_figures
from finetune.results import Evaluation
from pretrain.benchmarks.own_sets import OwnSet, read_own_set
from pretrain.benchmarks.sts_tasks import PairScores, StsEvaluator
from pretrain.common.errors import CollapsedEncoder, UserError
from pretrain.common.files import discard, sha256_of
from pretrain.common.run_folder import read_json_file
from pretrain.export.sums import WEIGHTS
from pretrain.prepare.sentences import sentences_of

STS, DOCSTRINGS = "STS-B dev", "general test (docstrings)"
MOST_FORGOTTEN = 1.0
"""Points of the general test below the start's, from which on an average is not taken."""
JUDGE_AGAIN = "remove it; the same `clearly adapt` judges again"
_SCORES = "scores.npz"


def general_test(eval_data: str) -> OwnSet:
    """Return the test of similarity of general text: STS-B dev if its data is there, else the package's own.

    That has sentences of docstrings in pairs: 3 of one docstring, 2 of one module, 1 of one package, 0 else.
    """
    dev = StsEvaluator(eval_data) if eval_data else None
    if dev is None or "STS-B-dev" not in dev.available():
        return read_own_set(DOCSTRINGS, str(Path(__file__).with_name("docstrings.tsv")))
    (pairs,) = dev.load("STS-B-dev")
    return OwnSet(STS, "similarity", pairs.first, pairs.second, pairs.gold)


@dataclass
class Judge:
    """A test, and what the encoders that were asked have answered.

    folder: of the test. open_start: opens the start. general: the test of what is not to be forgotten.
    start: what the start's vectors follow from (`fingerprint`).
    """

    test: RetrievalTest
    folder: Path
    open_start: Callable[[], EmbeddingModel]
    general: OwnSet
    start: str
    scores: dict[str, Scores] = field(default_factory=dict)
    similarity: dict[str, Evaluation] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.halves = Halves.of(self.folder)

    def begin(self) -> None:
        """Score BM25 and the start, unless an earlier call has, of the same start."""
        kept, start = self.folder / _SCORES, f"{START} {self.start}"
        for name, array in _kept_scores(kept).items():
            row, half = name.rsplit("/", 1)
            if row in (BM25, start):
                self.scores.setdefault(row.split()[0], {})[half] = array
        if bm25.available() and BM25 not in self.scores:
            self.scores[BM25] = self.halves.of_words()
        if START not in self.scores:
            self.scores[START] = self.halves.of_model(self.open_start())
        rows = {start if row == START else row: halves for row, halves in self.scores.items()}
        PairScores({f"{row}/{half}": rows[row][half] for row in rows for half in HALVES}).write(kept)

    def rows(self) -> dict[str, dict[str, Any]]:
        """Return `rows_of` all that is scored."""
        return rows_of(self.scores, self.halves.documents["test"])

    def table(self, rows: Mapping[str, Mapping[str, Any]]) -> list[str]:
        """Return the lines of the table of `rows`."""
        first, documents = self.halves.sets["test"], self.halves.documents["test"]
        lines = table(rows, len(first.queries), int(documents.max()) + 1, len(first.documents))
        return lines if BM25 in self.scores else [*lines, f"  BM25: not measured ({bm25.HOW})"]

    def decide(
        self, start: str, trained: Path, best: Path, open_model: Callable[[Path], EmbeddingModel]
    ) -> dict[str, Any]:
        """Score what was trained and averages of it with the start; write the one to keep to `best`.

        Args:
            start: folder or name of the start's weights.
            trained: the export of what was trained.
            best: the folder to write, in place of what it holds.
            open_model: opens an export.

        Returns:
            The report, as JSON.
        """
        scored: dict[float, Scores] = {0.0: self.scores[START]}
        for number, alpha in enumerate(ALPHAS, 1):
            print(f"  judge      {number}/{len(ALPHAS)}: {_row(alpha)}", flush=True)
            folder = trained
            if 0 < alpha < 1:
                folder = average(start, trained, alpha, self.folder / "averaged")
            model = open_model(folder) if alpha else self.open_start()
            if alpha:
                scored[alpha] = self.halves.of_model(model)
            with suppress(CollapsedEncoder):  # one that knows no English word
                self.similarity[f"{alpha:g}"] = self._similarity_of(model)
            if folder != trained:
                discard(folder)
        dev = {share: float(one["dev"][0].mean()) for share, one in scored.items()}
        similar = {float(one): of.tasks[self.general.name].value for one, of in self.similarity.items()}
        alpha, forgetful = choose(dev, similar), choose(dev, {})
        self.scores[ADAPTED] = scored[1.0]
        name, other = _row(alpha), _row(forgetful)
        self.scores |= {name: scored[alpha], other: scored[forgetful]}
        rows = self.rows()
        kept = name if name != START and rows[name]["less"][START]["verdict"] == "better" else START
        if kept == START:
            keep_start(start, trained, best)
        else:
            average(start, trained, alpha, best)
        made = {ADAPTED: trained} | ({} if kept == START else {kept: best})
        files = {"source": glob.escape(f"{self.folder}/") + TRAIN.format("*")}
        text = json.dumps([files], ensure_ascii=False)  # a list: the folder's name may have a comma
        out = self.folder / "by-products"
        try:
            scores, folders, left_out = by_products(best, text, out, self.halves, open_model)
            costs = self._costs(start, made | folders, open_model)
        finally:
            discard(out)
        self.scores |= scores
        rows = self.rows()
        by_half = {
            half: {f"{alpha:g}": float(one[half][0].mean()) for alpha, one in scored.items()}
            for half in HALVES
        }
        return {
            "kind": self.test.kind,
            "found": self.test.found,
            "counts": self.test.counts,
            "metrics": METRICS,
            "rows": rows,
            "chosen": {"alpha": alpha, "row": name, **by_half},
            "general": self.general.name,
            "similarity": self._similarities(),
            "costs": costs,
            "left_out": left_out,
            "kept": kept,
            "forgot": other if other != name and rows[other]["less"][START]["verdict"] == "better" else "",
            "weights": [sha256_of(folder / WEIGHTS) for folder in (trained, best)],
            "table": self.table(rows),
        }

    def _costs(
        self, start: str, made: Mapping[str, Path], open_model: Callable[[Path], EmbeddingModel]
    ) -> dict[str, dict[str, Any]]:
        """Measure the start and the folders that were made of it, on sentences of the test."""
        folder = Path(start) if Path(start).is_dir() else cached_folder(start)
        models = {START: (folder, self.open_start())}
        models |= {row: (made[row], open_model(made[row])) for row in made}
        return costs_of(models, chain.from_iterable(map(sentences_of, self.halves.sets["test"].documents)))

    def _similarity_of(self, model: EmbeddingModel) -> Evaluation:
        found = Evaluation.of("general", model, "cosine, Spearman over all pairs")
        add_figures(self.general, self.general.embed(model.encode, model.encode, model.encode), found)
        return found

    def _similarities(self) -> dict[str, dict[str, Any]]:
        """Return alpha -> the general test, and its difference to the start's, as JSON."""
        if "0" not in self.similarity:
            return {}
        found = example_differences({name: {"general": one} for name, one in self.similarity.items()})
        return {name: one.plain() for name, one in found["general"][self.general.name].items()}


def _kept_scores(path: Path) -> dict[str, np.ndarray]:
    try:
        with np.load(path) as arrays:
            return dict(arrays)
    except FileNotFoundError:
        return {}
    except Exception as error:  # numpy, zipfile and zlib each raise their own
        print(f"note: {path} is damaged ({error}), and is made again", file=sys.stderr)
        return {}


def fingerprint(source: str, pooling: str) -> str:
    """Return what the vectors of an encoder, a folder or a name of the hub, follow from, as a sha256."""
    # of a name the folder in the cache, which its commit names: weights may arrive there later
    contents = digest_of(ModelSource(source, source)) if Path(source).is_dir() else cached_folder(source)
    return hashlib.sha256(f"{contents}\n{pooling}".encode()).hexdigest()


def _row(alpha: float) -> str:
    return {0.0: START, 1.0: ADAPTED}.get(alpha, f"averaged ({alpha:g})")


def choose(dev: Mapping[float, float], similarity: Mapping[float, float]) -> float:
    """Return the share of the adaptation to keep: of the highest figure on dev, the smallest of equal ones.

    One that has forgotten more than `MOST_FORGOTTEN` points of similarity is not taken.

    Args:
        dev: alpha -> nDCG@10; similarity: alpha -> the general test; empty: it does not count.

    >>> choose({0.0: 40.0, 0.5: 44.0, 1.0: 45.0}, {0.0: 82.0, 0.5: 81.5, 1.0: 79.0})
    0.5
    """
    least = similarity.get(0.0, -math.inf) - MOST_FORGOTTEN
    kept = [alpha for alpha in dev if not similarity or similarity.get(alpha, -math.inf) >= least]
    return max(sorted(kept), key=dev.__getitem__)


def read_report(path: Path, trained: Path, best: Path) -> dict[str, Any] | None:
    """Return the report of what was trained and what is kept of it; None: there is none of these weights.

    Raises:
        UserError: what was trained is gone.
    """
    if not (trained / WEIGHTS).is_file():
        raise UserError(
            f"{trained} has no {WEIGHTS} to judge; to make it again: clearly export {trained.parent}"
        )
    if not path.is_file() or not (best / WEIGHTS).is_file():
        return None
    report = read_json_file(path, JUDGE_AGAIN)
    weights = [sha256_of(folder / WEIGHTS) for folder in (trained, best)]
    return report if report["weights"] == weights else None


def report_lines(report: Mapping[str, Any]) -> list[str]:
    """Return the table and what follows from it in words, what is kept last."""
    chosen, rows, kept = report["chosen"], report["rows"], report["kept"]
    general = report.get("general", STS)  # an earlier version's
    missing = [f"  {row}: not made ({why})" for row, why in report.get("left_out", {}).items()]
    lines = [*report["table"], *missing, "", *cost_lines(report["costs"]), ""]
    alphas = ", ".join(f"{figure:.1f} ({alpha})" for alpha, figure in chosen["dev"].items())
    lines.append(
        f"  nDCG@10 on the half of the documents that chooses, from start (0) to adapted (1): {alphas}"
    )
    for alpha, one in report["similarity"].items():
        if _row(float(alpha)) in rows:
            line = f"  {general}, {_row(float(alpha))}: {one['value']:.1f}"
            if "difference" in one:
                line += f", {one['difference']:+.1f} [{one['low']:+.1f}, {one['high']:+.1f}]"
            lines.append(line)
    if not report["similarity"]:
        lines.append(f"  {general}: not measured, as the start gives all of its sentences one vector")
    name = chosen["row"] if chosen["row"] != START else ADAPTED
    lines += [f"  {sentence}" for sentence in in_words(rows, name)]
    words = rows[kept]["less"].get(BM25, {}).get("verdict", "")
    beside = words and f"; {words} {'from' if words.startswith('not') else 'than'} BM25"
    if kept == START:
        why = "nothing that was trained is better on your text"
        if other := report.get("forgot"):
            forgot = f"forgot more than {MOST_FORGOTTEN:g} point of {general}"
            why = f"{other} is better on your text, but {forgot}"
        return [*lines, f"  best/ is the start: {why} (export/ has the last step){beside}"]
    averaged = f"an average, {chosen['alpha']:g} of it what was trained"
    what = "what was trained" if kept == ADAPTED else averaged
    return [*lines, f"  best/ is {what}: better than the start on your text{beside}"]
