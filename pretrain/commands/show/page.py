"""The parts of a run's page, and the page."""

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import ChoiceLoader, Environment, PackageLoader

from finetune.encoders.embed import embed_sentences
from finetune.encoders.models import EmbeddingModel, Function, open_model
from finetune.figures.drawing import to_svg
from finetune.judge.choice import JUDGE_AGAIN, report_lines
from finetune.report.figures import curve_names, draw_curves
from finetune.report.sources import System, collect
from finetune.search import Hit, nearest
from pretrain.benchmarks.distinct import unit
from pretrain.commands import inspect
from pretrain.common.run_folder import read_json_file, read_summary
from pretrain.config.recipe import load_config
from pretrain.config.run import Config
from pretrain.data.manifest import PAIRS
from pretrain.data.shards import ShardReader
from pretrain.data.tokenizer import load_tokenizer
from pretrain.export.sentence_transformers import unpooled_prompts
from pretrain.objectives import view_specs
from pretrain.prepare.sentences import split_sentences
from pretrain.start.data import load_batch, loader_config
from pretrain.start.encoder import starting_encoder
from pretrain.telemetry.formats import LABELS, format_count, format_seconds

QUERIES = 5
FOUND = 5
"""Sentences shown for a query."""
SHOWN = 3
"""Sequences of the batch that are shown."""
_SHORTEST, _LONGEST = 6, 20  # words of a held-out sentence that is asked for
FEWEST_PAIRS, MOST_PAIRS = 10, 1000  # of a query and its answer: with fewer, a share says little
_SPECIAL = re.compile(r"\[[A-Z]+\]|&lt;/?[a-z]+&gt;")


@dataclass(frozen=True)
class Retrieval:
    """How well queries, first sentences of held-out paragraphs, retrieve the rest of their own paragraph.

    recall: share of the answers among the five nearest. ndcg: mean nDCG at 10. cosine: mean of a query with
    the answers of others.
    """

    recall: float
    ndcg: float
    cosine: float


def page_of(run: Path, sentences: int, queries: list[str]) -> str:
    """Return the page of a run as HTML: search of N `sentences`, for queries or held-out sentences."""
    config = load_config(run / "config.yaml", {})
    tokenizer = load_tokenizer(config.data_folder / "tokenizer")
    models = models_of(run, config, tokenizer)
    corpus, searched = search(models, config, tokenizer, sentences, queries)
    pairs = read_pairs(config.data_folder, tokenizer)
    scores = {name: retrieval(model, pairs) for name, model in models.items()} if pairs else {}
    if scores:
        _print_retrieval(scores, len(pairs))
    report = run / "report" / "judge.json"  # of a run that `clearly adapt` has judged
    loader = ChoiceLoader([PackageLoader("pretrain.commands.show", ""), PackageLoader("finetune.report", "")])
    environment = Environment(loader=loader, autoescape=True)
    environment.filters["special"] = mark_special
    return environment.get_template("show.html.jinja").render(
        run=run,
        facts=facts(run, config),
        figures=heldout_figures(run),
        judged=report_lines(read_json_file(report, JUDGE_AGAIN)) if report.is_file() else [],
        curves=curves(run),
        masked=config.objective.masked_copies > 0,
        views=[(spec.role, spec.augmentation) for spec in view_specs(loader_config(config))],
        batch=batch_lines(config, tokenizer),
        searched=searched,
        sentences=corpus,
        retrieval=scores,
        pairs=len(pairs),
    )


def facts(run: Path, config: Config) -> list[tuple[str, str]]:
    """Return what the run is, as (name, text)."""
    model, data = config.model, ShardReader(config.data_folder, "train")
    size = f"{model.type}, {model.layers} layers, {model.hidden_size} wide, pooling {model.pooling}"
    rows = [
        ("encoder", size + (f", from {model.init}" if model.init else ", from random weights")),
        ("data", f"{data.num_sequences:,} sequences, {format_count(data.num_tokens)} tokens"),
        ("objective", f"{config.objective.name}, batches of {config.train.global_batch:,}"),
    ]
    if (summary := read_summary(run)) is not None:
        steps, seconds = f"{summary['steps']:,} steps", format_seconds(summary["seconds"])
        rows.append(("trained", f"{steps}, {format_count(summary['tokens'])} tokens in {seconds}"))
    return rows


def heldout_figures(run: Path) -> list[tuple[str, str, str]]:
    """Return (label, at the start, best) of each held-out figure; none if the run is not finished."""
    summary = read_summary(run)
    if summary is None:
        return []
    start, best, rows = summary["start"], summary["best"], []
    for name, label in summary.get("labels", LABELS).items():
        if name in start and name in best:
            scale = 1
            if name == "partner_found":
                label, scale = f"{label} ({best['partner_among']:,.0f} candidates, %)", 100
            rows.append((label, f"{scale * start[name]:.2f}", f"{scale * best[name]:.2f}"))
    return rows


def curves(run: Path) -> dict[str, str]:
    """Return name -> svg of the run's losses and evaluations over its steps."""
    runs = [System(run.name, [subject]) for subject in collect([str(run)])]
    names = [name for name in curve_names(runs) if name.startswith(("loss/", "evaluation/"))]
    return {name: to_svg(figure, f"curve-{name}") for name, figure in draw_curves(runs, names).items()}


def batch_lines(config: Config, tokenizer: Any) -> list[list[str]]:
    """Return the first sequences of the run's first batch, each as lines of text."""
    config = loader_config(config)
    reader, views = ShardReader(config.data_folder, "train"), view_specs(config)
    batch = load_batch(config, views, reader, tokenizer)
    names = inspect.names_of_labels(views, reader)
    rows = range(min(SHOWN, len(batch.original)))
    return [inspect.sequence_lines(batch, row, tokenizer, views, names) for row in rows]


def models_of(run: Path, config: Config, tokenizer: Any) -> dict[str, EmbeddingModel]:
    """Return the run's start and what it stands for, by what the page calls them."""
    start, after = starting_encoder(config, tokenizer), open_model(run)
    assert after.source is not None and after.source.modules is not None  # an export has a modules.json
    if (weights := after.source.modules.token_weights) is not None:
        start.token_weights = weights
    start.leave_out(unpooled_prompts(after.source.modules.interface, tokenizer))
    at_start = Function(lambda texts: embed_sentences(start, tokenizer, texts, max_length=after.longest))
    before = "before training" if config.model.init is None else "at the start"
    # the source says which prompts stand before texts
    return {before: EmbeddingModel(before, start.pooling, at_start, after.source), "after training": after}


def search(
    models: dict[str, EmbeddingModel], config: Config, tokenizer: Any, count: int, queries: list[str]
) -> tuple[int, dict[str, dict[str, list[Hit]]]]:
    """Return how many different sentences of `count` are searched, and query -> model -> what it finds."""
    corpus = list(dict.fromkeys(_sentences(config, "train", tokenizer, count)))
    searched = queries or choose_queries(list(_sentences(config, "heldout", tokenizer, count)))
    hits_by_model = {
        name: nearest(model.encode_document(corpus), corpus, model.encode_query(searched), FOUND)
        for name, model in models.items()
    }
    by_query = zip(*hits_by_model.values())
    return len(corpus), {query: dict(zip(models, hits)) for query, hits in zip(searched, by_query)}


def read_pairs(folder: Path, tokenizer: Any) -> list[tuple[str, str]]:
    """Return (first sentence, the others) of held-out paragraphs; none if the data has too few.

    Left out are pairs with a sentence that is not in the held-out split, as training text has it too, and
    those that repeat a query or an answer.
    """
    if not (folder / PAIRS).is_file():
        return []
    reader = ShardReader(folder, "heldout")
    heldout = set()
    for index in range(reader.num_chunks):
        sequences = reader.read(index).sequences
        heldout |= {sequences[row].tobytes() for row in range(len(sequences))}

    def is_heldout(sentence: str) -> bool:
        return np.array(tokenizer(sentence, verbose=False)["input_ids"], np.int32).tobytes() in heldout

    pairs, seen = [], set[str]()
    for first, others in read_json_file(folder / PAIRS, "prepare the data again"):
        if {first, others} & seen or not all(map(is_heldout, [first, *split_sentences(others)])):
            continue
        seen |= {first, others}
        pairs.append((first, others))
    return pairs[:MOST_PAIRS] if len(pairs) >= FEWEST_PAIRS else []


def retrieval(model: EmbeddingModel, pairs: list[tuple[str, str]]) -> Retrieval:
    """Return how well a model finds the answer of each query among all answers, by cosine."""
    queries, answers = map(list, zip(*pairs))
    vectors = model.encode_query(queries), model.encode_document(answers)
    return measure(*(np.asarray(one, np.float64) for one in vectors))


def measure(queries: np.ndarray, answers: np.ndarray) -> Retrieval:
    """Return the measures of queries float[N, d] whose answers are the rows of float[N, d].

    A tie counts as a miss: equal vectors find nothing.
    """
    cosines = unit(queries) @ unit(answers).T
    own = np.diagonal(cosines)
    ranks = (cosines >= own[:, None]).sum(1)  # from 1
    gains = np.where(ranks <= 10, 1 / np.log2(1 + ranks), 0.0)
    others = (cosines.sum() - own.sum()) / max(1, len(own) * (len(own) - 1))
    return Retrieval(float((ranks <= 5).mean()), float(gains.mean()), float(others))


def _print_retrieval(scores: dict[str, Retrieval], count: int) -> None:
    print(f"\n  {f'held-out retrieval ({count:,} candidates)':40}" + "".join(f"{one:>18}" for one in scores))
    for label, name in (("recall@5", "recall"), ("nDCG@10", "ndcg")):
        figures = (f"{100 * getattr(one, name):17.1f}%" for one in scores.values())
        print(f"    {label:38}" + "".join(figures))
    cosines = (f"{one.cosine:18.2f}" for one in scores.values())
    print(f"    {'cosine of different texts':38}" + "".join(cosines))


def _sentences(config: Config, split: str, tokenizer: Any, count: int) -> Iterator[str]:
    """Yield the first sentences of a split, which are in random order, as the tokenizer reads them."""
    reader = ShardReader(config.data_folder, split)
    # WordPiece forgets which blanks stand before punctuation; transformers warns if another is asked
    is_wordpiece = type(tokenizer.backend_tokenizer.model).__name__ == "WordPiece"
    for index in range(reader.num_chunks):
        sequences = reader.read(index).sequences
        for row in range(len(sequences)):
            if count == 0:
                return
            count -= 1
            yield tokenizer.decode(
                sequences[row].tolist(), skip_special_tokens=True, clean_up_tokenization_spaces=is_wordpiece
            )


def choose_queries(heldout: list[str]) -> list[str]:
    """Return five sentences of medium length, evenly spread; others if there are too few of these.

    >>> choose_queries(["a b", "one two three four five six", "c"])
    ['one two three four five six', 'a b', 'c']
    """
    distinct_ones = list(dict.fromkeys(heldout))
    medium = [one for one in distinct_ones if _SHORTEST <= len(one.split()) <= _LONGEST]
    chosen = medium[:: max(1, len(medium) // QUERIES)][:QUERIES]
    return [*chosen, *(one for one in distinct_ones if one not in chosen)][:QUERIES]


def mark_special(text: str) -> str:
    """Return a text as HTML, with special tokens marked.

    >>> mark_special("a [MASK] <b")
    'a <mark>[MASK]</mark> &lt;b'
    """
    return _SPECIAL.sub(lambda found: f"<mark>{found[0]}</mark>", html.escape(text, quote=False))
