"""Does the number of exact negatives matter? Quality and gradient noise by batch size, and a fitted law.

    zcat DIR/text/enwiki.txt.gz | head -c 45000000 > wiki.txt
    clearly prepare --source wiki.txt --unit record --pairs neighbour --max-length 32 --vocabulary 4096 \\
        --tokenizer-type wordpiece --lowercase auto --out data/nb
    python tests/benchmarks/bench_negatives.py train --data data/nb --out runs/n --legs static-blocks
    python tests/benchmarks/bench_negatives.py fit --out runs/n --legs static-blocks
    python tests/benchmarks/bench_negatives.py noise --data data/nb

    clearly train --config clear_micro --objective mlm --data data/nb --run runs/masked --model.layers 2 \\
        --model.hidden_size 128 --model.heads 2 --train.steps 500
    python tests/benchmarks/bench_negatives.py train --data data/nb --out runs/m --legs masked-blocks \\
        --init runs/masked/best

    clearly adapt --config adapt_micro --init MODEL --text MANUAL --out runs/adapted
    python tests/benchmarks/bench_negatives.py train --data runs/adapted/data --out runs/post \\
        --legs post-blocks --init MODEL --judge runs/adapted/judge/NanoBEIR/test

Legs are KIND-SHAPE, kinds `static` (word vectors), `layer`, and from --init `masked` and `post` (MODEL),
shapes those of `runs_of`. docs/small_encoder.md has all shapes of `static`, blocks and data of `layer`,
blocks and steps of `masked` (fitted with --held 256), and start, blocks (--held 128) and data of `post`: an
hour of a core.

CLEAR_DATA must point at the benchmarks. `train` appends a line per run to OUT/rows.jsonl and skips what is
there. An anchor's candidates are its batch's positives or, in the leg `blocks`, those of its block of n.
Scores: STS-B dev (Spearman x 100); of 1,000 held-out pairs the share that finds its partner, and their loss
(nats); of `post` nDCG@10.
"""

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import pretrain.common.environment  # noqa: F401  (the allocator's settings)

# isort: split
import numpy as np
import torch
from scipy.optimize import curve_fit
from scipy.stats import t
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

from augment.core.ragged import Ragged
from finetune.nanobeir import read
from pretrain.benchmarks.retrieval import rank, score
from pretrain.benchmarks.sts_tasks import StsEvaluator
from pretrain.data.microbatches import count_micro_batches, cut_and_pack
from pretrain.data.shards import ShardReader
from pretrain.losses.contrastive import softmax_over_candidates
from pretrain.losses.vectors import unit_vectors
from pretrain.model.encoder import build_encoder, load_encoder
from pretrain.step.heldout import find_partners

CPU, TEMPERATURE, BUDGET, LONGEST = torch.device("cpu"), 0.05, 16_384, 24
RATES = {"static": 0.01, "layer": 0.003, "masked": 1e-3, "post": 8e-5}
PLANS = {
    "static": (131_072, 64, 4096, [2**power for power in range(6, 15)], (16, 64, 256, 512, 1024)),
    "layer": (16_384, 32, 512, [32, 128, 512, 2048], (32, 128)),
    "masked": (49_152, 24, 2048, [64, 256, 1024, 2048], (64, 256, 1024)),
    "post": (2048, 8, 256, [16, 64, 256, 1024], (16, 64, 128)),
}
"""Kind -> pairs of a run, steps of the leg of equal steps, batch of the leg of blocks, batches, blocks."""
SIZES = {"type": "bert", "layers": 1, "hidden_size": 128, "heads": 2, "max_positions": 64, "dropout": 0.0}
SIZES |= {"attention_dropout": 0.0}


class Static(nn.Module):
    """The mean of word vectors, 128 wide: an encoder without layers."""

    def __init__(self, vocabulary: int):
        super().__init__()
        self.table = nn.EmbeddingBag(vocabulary, 128, mode="mean")
        nn.init.normal_(self.table.weight, std=0.02)

    def embed(self, ids: Tensor, lengths: Tensor) -> Tensor:
        return self.table(ids, lengths.cumsum(0) - lengths)


def read_pairs(data: str, split: str, longest: int) -> tuple[Ragged, Ragged]:
    """Return the texts and their partners, the first `longest` tokens of each."""
    reader = ShardReader(data, split)
    chunks = [reader.read(number) for number in range(reader.num_chunks)]
    sides = (Ragged.concatenate([chunk.column(name) for chunk in chunks]) for name in ("text", "positive"))
    return tuple(cut_short(side, longest) for side in sides)


def cut_short(texts: Ragged, longest: int) -> Ragged:
    lengths = np.minimum(texts.lengths, longest)
    inside = np.arange(lengths.sum()) - np.repeat(lengths.cumsum() - lengths, lengths)
    ids = texts.ids[np.repeat(texts.offsets[:-1], lengths) + inside]
    return Ragged(ids, np.concatenate([[0], lengths.cumsum()]))


def embed(encoder: nn.Module, texts: Ragged) -> Tensor:
    """Embed texts, float32[N, d], micro-batch by micro-batch; keeps the graph where gradients are on."""
    rows = cut_and_pack(texts, count_micro_batches(texts.lengths, BUDGET), CPU)
    half = torch.cpu._is_avx512_bf16_supported() and not isinstance(encoder, Static)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=half):
        parts = [encoder.embed(row.ids, row.lengths).float() for row in rows]
    return torch.cat(parts)[torch.argsort(torch.cat([row.rows for row in rows]))]


def contrast(anchors: Tensor, positives: Tensor, candidates: int, wrong: Tensor | None = None) -> Tensor:
    """Compute InfoNCE in blocks of `candidates` pairs.

    wrong: float[N], how many of an anchor's negatives are copies of its positive (false negatives).
    """
    total = anchors.new_zeros(())
    for rows in torch.arange(len(anchors)).split(candidates):
        a, p = unit_vectors(anchors[rows]), unit_vectors(positives[rows])
        own = None
        if wrong is not None:  # k copies add k exp(s) to the sum
            own = ((a * p).sum(1) / TEMPERATURE + wrong[rows].log())[:, None]
        loss = softmax_over_candidates(a, p, torch.arange(len(rows)), TEMPERATURE, own_logits=own)
        total = total + loss * len(rows) / len(anchors)
    return total


def gradient(encoder: nn.Module, sides: list[Ragged], candidates: int, wrong: Tensor | None = None) -> None:
    """Add a batch's exact gradient to the parameters, in two passes where one would take much memory."""
    if len(sides[0]) <= 2048:
        contrast(*(embed(encoder, side) for side in sides), candidates, wrong).backward()
        return
    with torch.no_grad():
        vectors = [embed(encoder, side) for side in sides]
    vectors = [part.requires_grad_() for part in vectors]
    contrast(*vectors, candidates, wrong).backward()
    for side, whole in zip(sides, vectors):
        for start in range(0, len(side), 2048):
            stop = min(start + 2048, len(side))
            embed(encoder, side.slice(start, stop)).backward(whole.grad[start:stop])


def build(kind: str, tokenizer: PreTrainedTokenizerFast, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    if kind == "static":
        return Static(len(tokenizer))
    if kind == "layer":
        return build_encoder(SIZES, tokenizer, "embedding-last")
    return load_encoder(kind, tokenizer, "mean", dropout=0.0, attention_dropout=0.0)


def batches(pairs: list[Ragged], size: int, seed: int):
    """Yield batches without replacement, for ever; the same order of pairs for every size."""
    random = np.random.default_rng(seed)
    order = np.empty(0, np.int64)
    while True:
        while len(order) < size:
            order = np.concatenate([order, random.permutation(len(pairs[0]))])
        yield [side.take(order[:size]) for side in pairs]
        order = order[size:]


def trained_parameters(encoder: nn.Module) -> list[nn.Parameter]:
    return [p for name, p in encoder.named_parameters() if "cls.predictions" not in name]


def train(encoder: nn.Module, pairs: list[Ragged], run: dict) -> None:
    """Train with Adam: a warm-up of a sixteenth of the steps, then linearly to 0; gradients clipped to 1."""
    used = trained_parameters(encoder)
    optimizer = torch.optim.Adam(used, lr=run["lr"])
    warm_up, random = max(1, run["steps"] // 16), torch.Generator().manual_seed(run["seed"])
    for step, sides in zip(range(run["steps"]), batches(pairs, run["batch"], run["seed"])):
        wrong = None
        if run["false"]:
            wrong = torch.poisson(torch.full((run["batch"],), float(run["false"])), random)
        gradient(encoder, sides, run["candidates"], wrong)
        nn.utils.clip_grad_norm_(used, 1.0)
        left = (run["steps"] - step) / (run["steps"] - warm_up + 1)
        optimizer.param_groups[0]["lr"] = run["lr"] * min((step + 1) / warm_up, left)
        optimizer.step()
        optimizer.zero_grad()


def scorer(
    kind: str, data: str, judge: str, tokenizer: PreTrainedTokenizerFast
) -> Callable[[nn.Module], dict]:
    """Return what scores an encoder: by STS-B dev and held-out partners, one of kind `post` by its judge."""
    longest = LONGEST if kind == "post" else SIZES["max_positions"]

    def embed_texts(encoder: nn.Module, texts: list[str]) -> np.ndarray:
        ids = tokenizer(texts, truncation=True, max_length=longest)["input_ids"]
        return embed(encoder, Ragged.from_sequences(ids)).numpy()

    def of_pairs(encoder: nn.Module) -> dict:
        found, loss = find_partners(*(embed(encoder, side).numpy() for side in heldout))
        stsb = sts.evaluate(partial(embed_texts, encoder), ["STS-B-dev"])["STS-B-dev"]["spearman_all"]
        return {"stsb": stsb, "found": 100 * found, "loss": loss}

    def of_judge(encoder: nn.Module) -> dict:
        ranking = rank(embed_texts(encoder, test.queries), embed_texts(encoder, test.documents))
        scores = [score(row, own)["ndcg@10"] for row, own in zip(ranking, test.relevant)]
        return {"ndcg": 100 * float(np.mean(scores))}

    if kind == "post":
        test = read(Path(judge))
        return of_judge
    heldout = [side.slice(0, 1000) for side in read_pairs(data, "heldout", LONGEST)]
    sts = StsEvaluator(os.environ["CLEAR_DATA"])
    return of_pairs


def runs_of(leg: str) -> list[dict]:
    """Return a leg's runs.

    start: without training. data: equal pairs. steps: equal steps. blocks: the same batches in blocks of n;
    long: of four times the pairs, wide: of the largest batch. false, often: as blocks, and one negative in
    256, or in 16, is a copy of the anchor's partner by chance.
    """
    kind, leg = leg.split("-")
    pairs, steps, size, sizes, blocks = PLANS[kind]
    shapes = {
        "start": [(size, 0, size, 0)],
        "data": [(batch, pairs // batch, batch, 0) for batch in sizes],
        "steps": [(batch, steps, batch, 0) for batch in sizes if batch <= size],
        "blocks": [(size, pairs // size, n, 0) for n in (*blocks, size)],
        "wide": [(sizes[-1], pairs // sizes[-1], n, 0) for n in (64, 1024, size, sizes[-1])],
        "long": [(1024, pairs // 256, n, 0) for n in (64, 256, 1024)],
        "false": [(size, pairs // size, n, (n - 1) / 256) for n in (*blocks, size)],
        "often": [(size, pairs // size, n, (n - 1) / 16) for n in blocks[:3]],
    }
    return [describe(kind, *shape) for shape in shapes[leg]]


def describe(kind: str, batch: int, steps: int, candidates: int, false: float = 0) -> dict:
    """Return a run's settings; its rate grows with the square root of the batch up to 1,024."""
    rate = RATES[kind] * math.sqrt(min(batch, 1024) / 1024)
    shape = {"batch": batch, "steps": steps, "candidates": candidates, "false": false}
    return {"kind": kind, **shape, "lr": rate}


def train_all(options: argparse.Namespace) -> None:
    """Train the runs of the legs that OUT/rows.jsonl lacks."""
    out = Path(options.out, "rows.jsonl")
    out.parent.mkdir(parents=True, exist_ok=True)
    done = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    tokenizer = PreTrainedTokenizerFast.from_pretrained(Path(options.data, "tokenizer"))
    pairs, scores = read_pairs(options.data, "train", LONGEST), {}
    for seed in options.seeds.split(","):
        for run in (run | {"seed": int(seed)} for leg in options.legs.split(",") for run in runs_of(leg)):
            if any(run.items() <= row.items() for row in done):
                continue
            begun = time.process_time()
            kind = run["kind"]
            if kind not in scores:
                scores[kind] = scorer(kind, options.data, options.judge, tokenizer)
            encoder = build(options.init if kind in ("masked", "post") else kind, tokenizer, run["seed"])
            train(encoder, pairs, run)
            with torch.no_grad():
                row = run | scores[kind](encoder.eval()) | {"seconds": time.process_time() - begun}
            done.append(row)
            with out.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(row, flush=True)


def noise(options: argparse.Namespace) -> None:
    """Measure the static encoder's gradient noise scale by candidates, at the start and after 32 steps."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(Path(options.data, "tokenizer"))
    pairs = read_pairs(options.data, "train", LONGEST)
    sizes, seeds = np.array([64, 256, 512, 1024, 4096, 16_384]), options.seeds.split(",")
    for steps in (0, 32):
        logs = np.zeros((len(sizes), len(seeds)))
        for column, seed in enumerate(map(int, seeds)):
            encoder = build("static", tokenizer, seed)
            train(encoder, pairs, describe("static", 4096, steps, 4096) | {"seed": seed})
            logs[:, column] = [math.log2(noise_scale(encoder, pairs, n, seed)) for n in sizes.tolist()]
        print(f"\nlog2 of the noise scale in pairs after {steps} steps, {len(seeds)} seeds")
        for n, values in zip(sizes, logs):
            print(f"  n {n}: {values.mean():.3f} ± {half_of(values):.3f}, {2 ** values.mean():,.0f} pairs")
        found = law("a + log2(1 + b/n)", sizes, logs, sizes != options.held)
        print(f"  a + log2(1 + b/n): {found}", flush=True)


def noise_scale(encoder: nn.Module, pairs: list[Ragged], n: int, seed: int) -> float:
    """Return the noise scale in pairs (McCandlish et al. 2018, equation 2.9): n tr(Cov g) / |E g|^2.

    g: gradients of independent batches of n pairs. The mean's square is without bias, and below 0 by chance
    where it is small.
    """
    stream, count = batches(pairs, n, 100 + seed), 32 if n <= 1024 else 8
    total, squares = torch.zeros(()), 0.0
    for _ in range(count):
        gradient(encoder, next(stream), n)
        one = torch.cat([parameter.grad.flatten() for parameter in encoder.parameters()])
        total, squares = total + one, squares + one.square().sum().item()
        encoder.zero_grad()
    mean = (total.square().sum().item() - squares) / (count * (count - 1))
    return n * (squares / count - mean) / mean


FORMS = {
    "a + b log2(n/512)": (lambda n, a, b: a + b * np.log2(n / 512), (0, 0)),
    "a + b log2(n/512) + c log2(n/512)^2": (
        lambda n, a, b, c: a + b * np.log2(n / 512) + c * np.log2(n / 512) ** 2,
        (0, 0, 0),
    ),
    "a + log2(1 + b/n)": (lambda n, a, b: a + np.log2(1 + b / n), (10, 100)),
    "a + b (n/64)^-c": (lambda n, a, b, c: a + b * (n / 64.0) ** -c, (70, -1, 0.5)),
}
"""Laws by name: the score by the size n, and where the search for the parameters starts."""


def fit(options: argparse.Namespace) -> None:
    """Print each leg's means over seeds, and the laws fitted to all sizes but --held, with a prediction.

    Of the legs with copies the differences to the same runs without.
    """
    rows = [json.loads(line) for line in Path(options.out, "rows.jsonl").read_text().splitlines()]
    for leg in options.legs.split(","):
        by = "batch" if leg.endswith(("data", "steps")) else "candidates"
        runs = runs_of(leg)
        sizes = np.array([run[by] for run in runs])
        kept = sizes != options.held
        for measure in sorted(rows[0].keys() & {"stsb", "found", "loss", "ndcg"}):
            table = np.array([scores_of(run, rows, measure) for run in runs])
            if runs[0]["false"]:
                table -= [scores_of(run | {"false": 0}, rows, measure) for run in runs]
            print(f"\n{leg}, {measure}, {table.shape[1]} seeds")
            for run, values in zip(runs, table):
                copies = f", {run['false']:.2f} copies" if run["false"] else ""
                paired = values - table[-1]
                less = f"less the last {paired.mean():+.3f} ± {half_of(paired):.3f}"
                print(f"  {by} {run[by]}{copies}: {values.mean():.3f} ± {half_of(values):.3f}, {less}")
            for name in (name for name in FORMS if "1 +" not in name and kept.sum() > 2):
                print(f"  {name}: {law(name, sizes, table, kept)}")


def scores_of(run: dict, rows: list[dict], measure: str) -> list[float]:
    """Return a run's scores, in the order of seeds."""
    found = {row["seed"]: row[measure] for row in rows if run.items() <= row.items()}
    return [found[seed] for seed in sorted(found)]


def law(name: str, sizes: np.ndarray, table: np.ndarray, kept: np.ndarray) -> str:
    """Fit a form to the kept sizes' scores [sizes, seeds], a level for each seed, with 95% intervals.

    The interval of the prediction is of the mean over these seeds at the size that is not kept.
    """
    form, start = FORMS[name]
    seeds = table.shape[1]
    level = table[kept].mean(0) - table[kept].mean()
    x, y = np.repeat(sizes[kept], seeds), (table[kept] - level).ravel()
    best, _ = curve_fit(form, x, y, start, maxfev=20_000)

    def slopes(at: np.ndarray) -> np.ndarray:
        steps = np.diag(1e-5 * np.maximum(np.abs(best), 1e-3))
        return np.stack([(form(at, *(best + d)) - form(at, *(best - d))) / (2 * d.sum()) for d in steps], -1)

    left = len(y) - len(best) - (seeds - 1)
    variance, factor = np.square(y - form(x, *best)).sum() / left, t.ppf(0.975, left)
    inverse = np.linalg.pinv(slopes(x).T @ slopes(x))
    halves = factor * np.sqrt(variance * np.diag(inverse))
    found = ", ".join(
        f"{letter} {value:.4g} ± {half:.2g}" for letter, value, half in zip("abc", best, halves)
    )
    found += f"; residual {math.sqrt(variance):.3f}"
    if not kept.all():
        own = slopes(sizes[~kept])[0]
        half = factor * math.sqrt(variance * (own @ inverse @ own + 1 / seeds))
        guess, truth = form(sizes[~kept], *best).item(), table[~kept].mean()
        verdict = "inside" if abs(guess - truth) <= half else "OUTSIDE"
        found += (
            f"\n    at {sizes[~kept][0]} predicted {guess:.3f} ± {half:.3f}, found {truth:.3f}: {verdict}"
        )
    return found


def half_of(values: np.ndarray) -> float:
    """Return half of a 95% interval of the mean over seeds (Student's t)."""
    return t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / math.sqrt(len(values))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=("train", "noise", "fit"))
    parser.add_argument("--data", default="data/nb")
    parser.add_argument("--out", default="runs/negatives")
    parser.add_argument("--init", help="the encoder that the legs of kind post start from")
    parser.add_argument("--judge", help="a folder of corpus, queries and qrels that scores them")
    parser.add_argument("--legs", default="static-blocks,static-data", help="KIND-SHAPE, comma-separated")
    parser.add_argument("--held", type=int, default=512, help="the size that no law sees")
    parser.add_argument("--seeds", default="1,2,3")
    options = parser.parse_args()
    torch.set_num_threads(1)
    {"train": train_all, "noise": noise, "fit": fit}[options.command](options)


if __name__ == "__main__":
    main()
