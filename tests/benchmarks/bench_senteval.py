"""SentEval's tasks beside the official code, driven by the same encoder: the same figures, and how much
sooner.

    git clone https://github.com/princeton-nlp/SimCSE
    python tests/benchmarks/bench_senteval.py --official SimCSE/SentEval --model RUN --tasks TASKS

TASKS: MR,TREC,MRPC [--seeds 1111,1112]; STS12,STS13,STS-B,SICK-R; or STS-B-supervised,SICK-R-supervised.

The official code needs a GPU and an old Python; a copy of it in a temporary folder is changed to run here
(every `.cuda()` goes, two calls that NumPy and Python have dropped are replaced) and otherwise left alone.
Both sides get the model by the same function: theirs in batches of 128 in order of length, as its `batcher`
is called; ours all distinct sentences at once. Ours and theirs in turn, task by task, one process, one thread
each unless --threads says more; wall-clock time with encoding in it, and without. Figures: test accuracy of
each seed for both (of supervised relatedness, which the fork calls STSBenchmark-finetune and
SICKRelatedness-finetune, Pearson and Spearman x 100 and the mean squared error), and the difference of ours
(seed 1111) from the mean of theirs. CLEAR_DATA must name the data.

Similarity tasks have no seed: printed are the largest differences between their aggregations and ours,
Pearson and Spearman apart, as correlations (not x 100).
"""

import importlib
import json
import os
import platform
import re
import shutil
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import fire
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
os.environ.setdefault("OMP_NUM_THREADS", "1")

OFFICIAL_NAMES = {
    "SICK-E": "SICKEntailment",
    "STS-B": "STSBenchmark",
    "SICK-R": "SICKRelatedness",
    "STS-B-supervised": "STSBenchmark-finetune",
    "SICK-R-supervised": "SICKRelatedness-finetune",
}
RELATEDNESS = ("STS-B-supervised", "SICK-R-supervised")
ALLOWED = {"accuracy": 0.3, "pearson": 0.3, "spearman": 0.3, "mse": 0.005}
"""How far a figure of ours may lie from the official mean, or else twice the spread of the official seeds."""


def main(
    official: str,
    model: str,
    tasks: str = "MR,TREC,MRPC",
    seeds: str = "1111",
    threads: str = "1",
    pooling: str = "",
    setting: str = "test",
    json_file: str = "",
) -> None:
    """Run both, print the table."""
    import torch

    from finetune.encoders.models import open_model
    from finetune.senteval.evaluate import evaluate, read_tasks
    from finetune.senteval.protocol import SETTINGS
    from pretrain.benchmarks.files import data_root, senteval_folder
    from pretrain.benchmarks.sts_tasks import SEVEN_TASKS

    torch.set_num_threads(int(threads))
    encoder = open_model(model, pooling)
    with tempfile.TemporaryDirectory() as folder:
        engine = patched(Path(official), Path(folder))
        downstream = Path(folder) / "data"
        downstream.mkdir()
        (downstream / "downstream").symlink_to(senteval_folder(data_root()).resolve())
        chosen, rows = SETTINGS[setting], []
        classifier = {
            "nhid": 0,
            "optim": chosen.classifier.optimizer,
            "batch_size": chosen.classifier.batch_size,
            "tenacity": chosen.classifier.tenacity,
            "epoch_size": chosen.classifier.epoch_size,
        }
        for task in tasks.split(","):
            if task in SEVEN_TASKS:
                rows.append({"task": task, **compare_similarity(engine, encoder, task, downstream)})
                continue
            kinds = ("pearson", "spearman", "mse") if task in RELATEDNESS else ("accuracy",)
            row = {
                "task": task,
                "official": {kind: [] for kind in kinds},
                "ours": {kind: [] for kind in kinds},
                "official_seconds": [],
                "ours_seconds": [],
                "encoding": [],
            }
            for seed in map(int, seeds.split(",")):
                start = time.perf_counter()
                ours = evaluate(encoder, read_tasks([task]), setting=setting, seed=seed)
                row["ours_seconds"].append(time.perf_counter() - start)
                for kind in kinds:
                    row["ours"][kind].append(ours.tasks[task].scores[kind])
                spent = [0.0]

                def batcher(parameters, batch, spent=spent):
                    begun = time.perf_counter()
                    vectors = encoder.encode([" ".join(words) for words in batch])
                    spent[0] += time.perf_counter() - begun
                    return vectors

                start = time.perf_counter()
                parameters = {
                    "task_path": str(downstream),
                    "usepytorch": True,
                    "kfold": chosen.folds,
                    "seed": seed,
                    "classifier": classifier,
                }
                found = engine.SE(parameters, batcher).eval(OFFICIAL_NAMES.get(task, task))
                row["official_seconds"].append(time.perf_counter() - start)
                row["encoding"].append(spent[0])
                for kind in kinds:
                    scale = 100 if kind in ("pearson", "spearman") else 1
                    row["official"][kind].append(scale * float(found["acc" if kind == "accuracy" else kind]))
            rows.append(row)
            print_row(row)
        machine = f"{platform.machine()}, {os.cpu_count()} cores"
        print(f"{machine}, {threads} thread(s); torch {torch.__version__}, numpy {np.__version__}")
        if json_file:
            Path(json_file).write_text(json.dumps(rows, indent=1) + "\n")


def compare_similarity(engine, encoder, task: str, downstream: Path) -> dict[str, float]:
    """Largest |ours - official| over a task's aggregations; the official code gets the same vectors, as
    float64."""
    from finetune.senteval.evaluate import evaluate, read_tasks

    vectors: dict[str, np.ndarray] = {}

    def encode(sentences):  # a sentence's vector depends, by rounding, on who shares its pass
        if missing := [sentence for sentence in dict.fromkeys(sentences) if sentence not in vectors]:
            vectors.update(zip(missing, encoder.encode(missing)))
        return np.stack([vectors[sentence] for sentence in sentences])

    scores = evaluate(replace(encoder, encode=encode), read_tasks([task])).tasks[task].scores

    def batcher(parameters, batch):
        return encode([" ".join(words) for words in batch])

    differences = {}
    found = engine.SE({"task_path": str(downstream), "batch_size": 4096}, batcher).eval(
        OFFICIAL_NAMES.get(task, task)
    )
    for kind in ("pearson", "spearman"):
        if task in ("STS-B", "SICK-R"):  # its "all" is of train, dev and test together
            official = {"all": found["test"][kind][0]}
        else:
            official = found["all"][kind]
        differences[kind] = max(abs(scores[f"{kind}_{of}"] / 100 - value) for of, value in official.items())
    print(
        f"{task}: largest difference "
        + "; ".join(f"{name} {value:.1e}" for name, value in differences.items()),
        flush=True,
    )
    return differences


def print_row(row: dict) -> None:
    """One task: times, ratio, figures, and whether ours lie where those of the official seeds do."""
    ours, theirs = np.mean(row["ours_seconds"]), np.mean(row["official_seconds"])
    print(
        f"{row['task']}: ours {ours:.1f} s, official {theirs:.1f} s ({np.mean(row['encoding']):.1f} s of it "
        "encoding): "
        f"{theirs / ours:.1f}x",
        flush=True,
    )
    for kind, official in row["official"].items():
        spread = np.std(official, ddof=1) if len(official) > 1 else 0.0
        places = 4 if kind == "mse" else 2
        own, other = ([round(value, places) for value in values] for values in (row["ours"][kind], official))
        print(
            f"  {kind} by seed, ours {own}, official {other}; ours at the first seed less the official mean "
            f"{row['ours'][kind][0] - np.mean(official):+.{places}f} (allowed "
            f"{max(ALLOWED[kind], 2 * spread):.{places}f})",
            flush=True,
        )


def patched(official: Path, folder: Path):
    """The official engine module, from a copy that runs on a CPU and current Python and NumPy."""
    if not (official / "senteval" / "engine.py").is_file():
        sys.exit(
            f"{official} holds no senteval/engine.py; give the folder SentEval of a clone of "
            "princeton-nlp/SimCSE"
        )
    shutil.copytree(official / "senteval", folder / "senteval")
    for path in (folder / "senteval").rglob("*.py"):
        text = path.read_text()
        text = text.replace(".cuda()", "").replace("torch.cuda.FloatTensor", "torch.FloatTensor")
        text = re.sub(r"torch\.device\('cuda'\)", "torch.device('cpu')", text)
        text = re.sub(r"assert torch\.cuda\.is_available\(\).*", "pass", text)
        text = text.replace(
            "inspect.getargspec(optim_fn.__init__)[0]",
            "list(inspect.signature(optim_fn.__init__).parameters)",
        )
        path.write_text(text)
    sys.path.insert(0, str(folder))
    return importlib.import_module("senteval.engine")


if __name__ == "__main__":
    fire.Fire(fire.decorators.SetParseFn(str)(main))
