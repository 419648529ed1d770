"""Whole runs of tiny models: what they print, write and leave, checked against each other and by hand."""

import hashlib
import json
import math
import re
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from run_helpers import curve, records, reproducible_records, write_corpus
from safetensors.torch import load_file
from scipy import stats
from whole_run_worker import PEAK
from whole_runs import prepared, train

from finetune.encoders.models import open_model
from pretrain.checkpoint import store
from pretrain.common.files import sha256_of
from pretrain.config.recipe import load_config
from pretrain.data.shards import ShardReader
from pretrain.data.tokenizer import load_tokenizer
from pretrain.export.folder import read_policy

BROKEN = f"{Path(__file__).parent / 'step' / 'planted_faults.py'}:Broken"
FLAGS = {"train__steps": 7, "train__log_every": 2, "evaluate__every": 3, "checkpoint__every": 2}
FLAGS |= {"checkpoint__keep": 9}
SCORES = ("heldout_mlm_loss", "partner_found", "partner_loss", "mine")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    prepared(write_corpus(folder / "corpus.txt", documents=150), folder / "data")
    pairs = [
        (f"The old river finds the {w} stone.", f"The {w} garden opens.") for w in ["old", "green", "red"]
    ]
    pairs += [
        ("A storm.", f"The {w} teacher {w}.") for w in ["quiet", "broken", "narrow", "heavy", "distant"]
    ]
    lines = [f"{one}\t{two}\t{n % 5}\n" for n, (one, two) in enumerate(pairs)]
    (folder / "pairs.tsv").write_text("sentence1\tsentence2\tscore\n" + "".join(lines))
    return folder


def run(folder, name, **flags):
    return train(
        folder / "data", folder / name, evaluate__sets=f"{{mine: {folder / 'pairs.tsv'}}}", **FLAGS | flags
    )


@pytest.fixture(scope="module")
def whole(folder):
    return run(folder, "run")


def rows_with(path, key):
    return {row["step"]: row for row in records(path) if key in row}


def progress_of(path, step):
    return store.read_state(path / "checkpoints" / f"step-{step:08d}")["progress"]


def weights_of(path):
    return (path / "model.safetensors").read_bytes()


def test_a_whole_run_says_first_what_it_is(folder, whole):
    reader = ShardReader(folder / "data", "train")
    said = whole.said
    begin = said[: said.index("step 0  evaluation")]
    sequences, tokens = reader.num_sequences, reader.num_tokens
    parameters = sum(t.numel() for t in load_file(whole.folder / "export" / "model.safetensors").values())
    for line in (
        "no --config given: using ",
        f"run        {whole.folder}\n",
        "devices    1 x CPU, threads per rank: 1; ZeRO 1, fp32\n",
        f"data       {folder / 'data'}: {sequences:,} sequences, {tokens:,} tokens, unit sentence; "
        f"{7 * 16 / sequences:.3g} epochs in 7 steps\n",
        "schedule   linear, peak 0.001, warm-up over 2 of 7 steps\n",
        f"encoder    bert, {parameters / 1000:.3g}k parameters, pooling mean, dropout 0.1 "
        "(0.1 on attention)\n",
        "objective  clear; anchor, positive: crop:rate=1:min_rate=0.3,del-span,reorder; "
        "30 negatives per anchor (2 views x 16 sequences, global)\n",
        "batch      16 sequences per step, up to 256 tokens in one pass\n",
        "set        mine: 8 pairs",
    ):
        assert line in begin, begin
    recipe = (whole.folder / "config.yaml").read_bytes()
    (first,) = [row for row in records(whole.folder) if "config_sha256" in row]
    assert first["config_sha256"] == hashlib.sha256(recipe).hexdigest() and first["step"] == 0
    again = load_config(whole.folder / "config.yaml", {})
    assert (again.train.steps, again.train.lr, again.run_folder) == (7, 1e-3, whole.folder)


def test_a_whole_run_has_a_row_of_every_second_step_and_of_the_first_and_last(folder, whole):
    rows = rows_with(whole.folder, "loss")
    assert [(step, row["steps"]) for step, row in rows.items()] == [(1, 1), (2, 1), (4, 2), (6, 2), (7, 1)]
    rates = {1: 0.5, 2: 1, 4: 0.8, 6: 0.4, 7: 0.2}
    assert {step: row["lr"] for step, row in rows.items()} == pytest.approx(
        {s: r / 1000 for s, r in rates.items()}
    )
    for name in ("tokens", "seconds"):
        values = [0, *(row[name] for row in rows.values())]
        assert values == sorted(values) and len(set(values)) == 6, name
    vocabulary = len(load_tokenizer(folder / "data" / "tokenizer"))
    reader = ShardReader(folder / "data", "train")
    length = round(reader.num_tokens / reader.num_sequences)
    # two layers of four square matrices of 32 and two of 32 x 128; queries with keys, weights with values
    forward = 2 * 2 * (4 * 32 * 32 + 2 * 32 * 128) + 2 * 4 * 32 * length
    head = 2 * 32 * (32 + vocabulary)
    needed = 3 * (forward + 0.15 / 3 * head)  # a third of the tokens are those of masked originals
    for row in rows.values():
        assert row["mfu"] == pytest.approx(needed * row["tokens_per_second"] / PEAK)
        more = 2 / 3 * forward  # views are embedded twice
        assert row["hfu"] == pytest.approx((needed + more) * row["tokens_per_second"] / PEAK)
        assert sum(row["time"].values()) == pytest.approx(1) and min(row["time"].values()) >= 0
        assert row["time"].keys() == {"data", "encode", "loss", "backward", "step", "other"}
        assert row["loss"]["total"] == pytest.approx(
            row["loss"]["mlm"] + row["loss"]["contrastive"],
            rel=1e-6 if row["steps"] == 1 else 1e-3,  # masked language modelling is a mean over masked tokens
        )
        assert row["contrastive_gradient_share"] == 1 and row["effective_negatives"] == 30
        assert row["skipped_steps"] == 0 and row["ledger"]["since"] == 0 and row["micro_batches"][0] >= 2
    assert rows[7]["eta_seconds"] == 0 < rows[4]["eta_seconds"]
    assert len({row["ledger"]["sequences"] for row in rows.values()}) == 5
    assert rows[7]["loss"]["mlm"] < rows[1]["loss"]["mlm"] < math.log(vocabulary) + 0.1


def test_a_whole_run_leaves_what_its_metrics_say(whole):
    path, rows = whole.folder, rows_with(whole.folder, "evaluation")
    assert list(rows) == [0, 3, 6, 7]
    scores = {step: row["evaluation"] for step, row in rows.items()}
    assert all({*SCORES, "partner_among", "view_signal"} == of.keys() for of in scores.values())
    losses = {step: of["heldout_mlm_loss"] for step, of in scores.items()}
    best = min(losses, key=losses.__getitem__)
    summary = json.loads((path / "report" / "summary.json").read_text())
    last = rows_with(path, "loss")[7]
    assert summary | {"labels": 0, "inputs": 0} == {
        "start": scores[0],
        "best": scores[best],
        "trained": scores[7],
        "steps": 7,
        "tokens": last["tokens"],
        "seconds": last["seconds"],
        "best_step": best,
        "best_by": "heldout_mlm_loss",
        "stopped_early": False,
        "labels": 0,
        "random_at_start": [],
        "export": str(path / "export"),
        "weights": sha256_of(path / "export" / "model.safetensors"),
        "inputs": 0,
    }
    state = store.read_state(path / "checkpoints" / "step-00000007")
    assert summary["inputs"] == {name: value["sha256"] for name, value in state["inputs"].items()}
    assert {"shards", "held-out shards", "manifest", "tokenizer"} <= summary["inputs"].keys()
    assert summary["labels"]["mine"] == "mine (spearman x 100)"
    assert read_policy(path / "best")["step"] == best and read_policy(path / "export")["step"] == 7
    # at steps 2, 4, 6 because they are due, and after each evaluation that was the best
    improved = {
        step for step in (3, 6, 7) if losses[step] == min(losses[one] for one in losses if one <= step)
    }
    kept = {int(one.name[5:]) for one in (path / "checkpoints").glob("step-*")}
    assert kept == {2, 4, 6, 7} | improved and improved
    assert not (path / "watch").exists() and not (path / ".start").exists()
    numbers = sum(1 for row in records(path) if row["step"] <= 7)
    progress = progress_of(path, 7)
    assert (progress["step"], progress["tokens"], progress["seconds"]) == (7, last["tokens"], last["seconds"])
    assert progress["rows"] == {"lines": numbers, "link": records_link(path)}
    assert progress["window"]["counts"] == {} and progress_of(path, 3)["window"]["counts"]["views"][1] == 1
    assert progress["jumped"] == progress["substitutions"] == progress["faults"] == []
    assert progress["ledger"]["sequences"] == last["ledger"]["sequences"] and progress["ledger"]["last"]
    assert len(progress["monitor"]["norms"]) == 7 and progress["best_score"] == -losses[best]


def records_link(path):
    return json.loads((path / "metrics.jsonl").read_text().splitlines()[-1])["link"]


def test_the_score_of_a_set_is_that_of_the_exported_model(folder, whole):
    lines = [line.split("\t") for line in (folder / "pairs.tsv").read_text().splitlines()[1:]]
    first, second, gold = zip(*lines)
    encoder = open_model(str(whole.folder / "export"), "")
    one, two = encoder.encode(list(first)), encoder.encode(list(second))
    cosines = (one * two).sum(1) / np.linalg.norm(one, axis=1) / np.linalg.norm(two, axis=1)
    expected = 100 * stats.spearmanr(cosines, [float(value) for value in gold]).statistic
    evaluated = rows_with(whole.folder, "evaluation")[7]["evaluation"]
    assert evaluated["mine"] == pytest.approx(expected, abs=1e-6)


def test_the_table_at_the_end_has_the_scores_at_the_start_the_best_and_the_last_step(whole):
    scores = {step: row["evaluation"] for step, row in rows_with(whole.folder, "evaluation").items()}
    summary = json.loads((whole.folder / "report" / "summary.json").read_text())
    best, end = summary["best_step"], whole.said[whole.said.index("at start") - 100 :]
    assert re.search(rf"at start +step {best} +step 7\n +\(best\) +\(last\)\n", end)
    labels = {
        "heldout_mlm_loss": r"held-out MLM loss \(nats\)",
        "partner_found": r"top-1 retrieval of the other view \(24 candidates\)",
        "partner_loss": r"held-out contrastive loss \(nats\)",
        "mine": r"mine \(spearman x 100\)",
    }
    for name, label in labels.items():
        values = [scores[step][name] for step in (0, best, 7)]
        shown = [f"{100 * v:.1f}%" if name == "partner_found" else f"{v:.2f}" for v in values]
        assert re.search(rf"  {label} +{' +'.join(map(re.escape, shown))}\n", end), (name, end)
    tokens = f"{summary['tokens'] / 1000:.3g}k tokens"
    assert f"  7 steps, {tokens} in 00:" in end and f"exported to {whole.folder / 'export'}\n" in end
    assert (
        f"use its best/, step {best} (lowest held-out MLM loss (nats)): clearly sts {whole.folder}\n" in end
    )
    assert "stopped early" not in end and "has not improved" not in end


def test_stopped_by_its_file_and_resumed_a_run_is_the_one_that_was_not(folder, whole):
    path = folder / "parts"
    path.mkdir()
    (path / "stop").touch()
    first = run(folder, "parts")
    assert re.search(
        r"stopping after step 1: found the stop file; saved \S+step-00000001\. Resume", first.said
    )
    assert not (path / "stop").exists() and not (path / "export").exists()
    assert read_policy(path / "best")["step"] == 0 and list(curve(path)) == [0, 1]
    start = load_file(path / "best" / "model.safetensors")
    moved = dict(store.read_tensors(path / "checkpoints" / "step-00000001"))
    names = [(name, f"encoder.lm.{name}") for name in start if f"encoder.lm.{name}" in moved]
    largest = max(float((moved[there] - start[name]).abs().max()) for name, there in names)
    assert len(names) > 20 and largest == pytest.approx(5e-4, rel=0.02), "AdamW's first step is of the rate"
    second = run(folder, "parts", checkpoint__resume="auto", train__faults__spike_factor=20)
    assert (
        f"run        {path}, resumed from {path / 'checkpoints' / 'step-00000001'} at step 1\n" in second.said
    )
    assert "ledger     the batch of step 1 is as recorded (sequences, views)" in second.said
    assert "train.faults.spike_factor: 10.0 until step 1, 20.0 from now on" in second.said
    changed = {"step": 1, "key": "train.faults.spike_factor", "from": 10.0, "to": 20.0}
    assert [row["changed"] for row in records(path) if "changed" in row] == [[changed]]
    assert progress_of(path, 7)["changes"] == [changed] and "WARNING" not in second.said
    rows = [row for row in reproducible_records(path) if "changed" not in row]
    assert rows == reproducible_records(whole.folder)
    assert weights_of(path / "export") == weights_of(whole.folder / "export")
    assert weights_of(path / "best") == weights_of(whole.folder / "best")
    for name in ("tokens", "best_step", "best_score", "norms", "ledger", "monitor", "unimproved"):
        assert progress_of(path, 7)[name] == progress_of(whole.folder, 7)[name], name
    branch = run(folder, "branch", checkpoint__resume=whole.folder / "checkpoints" / "step-00000004")
    assert "at step 4\n" in branch.said and "step 3  evaluation" not in branch.said
    assert reproducible_records(folder / "branch") == reproducible_records(whole.folder)
    assert weights_of(folder / "branch" / "export") == weights_of(whole.folder / "export")
    refused = run(folder, "parts", expect=2)
    assert "already holds a run" in refused.said
    refused = run(folder, "parts", expect=2, checkpoint__resume=folder / "none")
    assert "there is no such checkpoint" in refused.said


def test_a_dry_run_is_two_steps_in_a_folder_of_its_own(folder):
    path = folder / "tried.dry-run"
    (path / "checkpoints" / "step-00000009").mkdir(parents=True)  # of an earlier one
    (path / "old.txt").touch()
    said = run(folder, "tried", dry_run=True).said
    assert not (folder / "tried").exists() and not (path / "old.txt").exists()
    rows, evaluations = rows_with(path, "loss"), rows_with(path, "evaluation")
    assert list(rows) == [1, 2] and list(evaluations) == [0, 2]
    assert rows[2]["lr"] == pytest.approx(1e-3), "the schedule of the whole run"
    assert [one.name for one in (path / "checkpoints").glob("step-*")] == ["step-00000002"]
    assert read_policy(path / "export")["step"] == 2
    seconds = rows[2]["seconds"] - rows[1]["seconds"]
    assert f"whole run: 7 steps of {seconds:.2f} s, " in said and " GB for 1 rank;" in said


UNIMPROVED = {"train__lr": 1e-30, "train__patience": 2, "train__steps": 20, "evaluate__every": 1}


def test_what_watches_a_run_is_called_in_its_order(folder):
    told = re.findall("TOLD (.*)", run(folder, "watched", told=True, **UNIMPROVED).said)
    first = told.index("begin 0")
    needed = ["check_sources", "check_requested", "require_sts", "require_trackers", "record_collectives"]
    assert set(told[:first]) >= {
        "quiet_libraries",
        "require_lanes 4 1",
        "set_threads",
        "set_deterministic",
        *needed,
    }
    watched = [
        one for one in told if one.split()[0] in ("end_after_errors", "__call__", "follow", "end_step")
    ]
    assert watched == [
        *("end_after_errors", "__call__ evaluation", "follow"),
        *("end_step 1", "__call__ evaluation", "end_step 2", "__call__ evaluation", "__call__ checkpoint"),
        "__call__ export",
    ]
    counts = Counter(told)
    assert (counts["begin 0"], counts["requested"], counts["after_step"], counts["after_pause"]) == (
        3,
        2,
        2,
        2,
    )
    assert counts["allow_tf32"] == counts["require_different_views"] == 1 and counts["pause"] == 5
    assert told[-2:] == ["remove_folder", "destroy_groups"]


def test_patience_ends_a_run_that_does_not_improve_and_the_start_is_its_best(folder, whole):
    path, said = folder / "same", run(folder, "same", **UNIMPROVED).said
    summary = json.loads((path / "report" / "summary.json").read_text())
    assert summary["stopped_early"] and (summary["steps"], summary["best_step"]) == (2, 0)
    assert summary["best"] == summary["start"] == rows_with(path, "evaluation")[0]["evaluation"]
    assert summary["start"] == rows_with(whole.folder, "evaluation")[0]["evaluation"], "the same seed"
    assert (path / "checkpoints" / "step-00000002").is_dir() and read_policy(path / "best")["step"] == 0
    first, last = (load_file(path / name / "model.safetensors") for name in ("best", "export"))
    assert all(torch.allclose(tensor, last[name], rtol=0, atol=1e-20) for name, tensor in first.items())
    shutil.rmtree(path / "best")
    again = run(folder, "same", **UNIMPROVED | {"train__patience": 3, "checkpoint__resume": "auto"})
    assert "stopped early (train.patience), after step 3 of 20" in again.said
    restored = load_file(path / "best" / "model.safetensors")
    assert all(torch.equal(tensor, restored[name]) for name, tensor in first.items())
    assert read_policy(path / "best")["step"] == 0
    assert "after step 2 of 20: the last 2 evaluations were no better" in said and "than step 0's" in said
    assert "the start was the best by held-out MLM loss (nats)" in said and "step 0 (lowest" in said


def test_a_run_goes_back_after_a_fault_and_on_as_one_that_left_its_steps_out(folder):
    broken = {"objective__name": BROKEN, "train__faults__skip": 0, "evaluate__every": 0}
    path = folder / "fault"
    said = run(folder, "fault", objective__options='{"loss": [4]}', **broken).said
    (back,) = [row["rolled_back"] for row in records(path) if "rolled_back" in row]
    assert (back["from"], back["to"]) == (2, 4) and "the loss is not finite" in back["why"]
    assert Path(back["report"]).read_text().startswith("the loss is not finite (small, total) at step 4")
    text = Path(back["report"]).read_text()
    assert re.search(r"\nsequence \d+: +The ", text) and "[CLS]" not in text
    assert "The parameters are those of step-00000002 again, and steps 3 to 4 are left out" in said
    progress = progress_of(path, 7)
    assert [(one["from"], one["to"]) for one in progress["rollbacks"]] == [(2, 4)] and progress[
        "faults"
    ] == []
    assert list(rows_with(path, "loss")) == [1, 2, 6, 7] and list(rows_with(path, "left_out")) == [4]
    run(folder, "without", objective__options="{}", train__faults__jump="3-4", **broken)
    assert weights_of(folder / "without" / "export") == weights_of(path / "export")
    assert [row["jumped"] for row in records(folder / "without") if "jumped" in row] == [
        {"first": 3, "last": 4}
    ]
    assert progress_of(folder / "without", 7)["jumped"] == [[2, 4]]
    assert progress_of(folder / "without", 7)["tokens"] == progress["tokens"]


SIZES = ("layers", "hidden_size", "heads", "max_positions", "pooling")
OF_THE_START = {f"model__{key}": None for key in SIZES} | {"train__steps": 4, "evaluate__every": 4}


def test_a_run_from_a_model_says_what_it_takes_over_and_what_is_new(folder, whole):
    init, path = whole.folder / "export", folder / "from"
    flags = OF_THE_START | {"objective__name": "simcse", "objective__simcse__keep_head": "true"}
    flags |= {"model__init": init, "objective__false_negatives__guide": init}
    flags |= {
        "objective__keep_vectors": "float32",
        "objective__matryoshka": "[8,16]",
        "augment__positive": "del-word",
        "model__dropout": 0.2,
    }
    flags |= {"data__prompts": "{anchor: 'query: '}", "data__prompts_pooled": "false"}
    flags |= {"train__schedule": "wsd", "train__decay_steps": 2, "train__zero": 0}
    flags |= {"train__batch_warmup_steps": 2, "train__batch_start": 8, "model__attention_dropout": 0.05}
    said = run(folder, "from", **flags).said
    summary = json.loads((whole.folder / "report" / "summary.json").read_text())
    loss = summary["trained"]["heldout_mlm_loss"]
    kind = re.search(r"encoder    (bert, \S+ parameters), pooling mean", whole.said)[1]
    for line in (
        "wsd, peak 0.001, warm-up over 2 of 4 steps, decay 1-sqrt over the last 2\n",
        f"encoder    {kind}, pooling mean without prompts, dropout 0.2 (0.05 on attention); from {init}\n",
        f" {init}: step 7 of 7, best by heldout_mlm_loss {loss:.4g}\n",
        f" exports as {init}: mean pooling; at most 64 tokens; with the prompts of data.prompts; "
        "its tokenizer\n",
        "objective  simcse; anchor: crop:rate=1:min_rate=0.3,del-span,reorder; "
        "positive: crop:rate=1:min_rate=0.3,del-word; 15 negatives per anchor at the full batch "
        "(2 views x 16 sequences, global)\n",
        " warning: objective.matryoshka leaves the whole width, 32, untrained\n",
        f" the frozen encoder {init}: {kind}, pooling mean\n",
        " its head is kept: evaluated and exported vectors are its output\n",
        "batch      16 sequences per step from step 2 on, 8 at the first, up to 256 tokens in one pass\n",
        "ZeRO 0, fp32\n",
        "vectors    not kept: crop:rate=1:min_rate=0.3,del-span,reorder makes another text of view anchor at",
    ):
        assert line in said, (line, said)
    rows = rows_with(path, "loss")
    assert [(step, row["global_batch"]) for step, row in rows.items()] == [(1, 8), (2, 12), (4, 16)]
    sequences = ShardReader(folder / "data", "train").num_sequences
    assert f"; {(8 + 12 + 16 + 16) / sequences:.3g} epochs in 4 steps\n" in said
    first, last = (
        rows_with(one, "evaluation")[step]["evaluation"] for one, step in ((path, 0), (whole.folder, 7))
    )
    assert first["heldout_mlm_loss"] == pytest.approx(last["heldout_mlm_loss"], rel=1e-5)
    assert rows[4]["lr"] == pytest.approx(1e-3 * (1 - math.sqrt(0.5))), "the second of two falling steps"

    more = OF_THE_START | {"model__init": path / "export", "objective__name": "mlm", "train__patience": 9}
    said = run(folder, "then", **more).said
    assert f" {path / 'export'} keeps a head for use: training starts without it\n" in said
    kept = (
        "mean pooling; at most 64 tokens; prompts query, document (not before training texts: data.prompts); "
    )
    assert f" exports as {path / 'export'}: {kept}its tokenizer\n" in said
    assert "objective  mlm, 1 masking(s) per sequence\n" in said and "frozen" not in said
    assert "pooling mean, dropout 0.1 (0.1 on attention); from" in said and " warning:" not in said


def test_a_run_whose_views_are_alike_as_chance_is_warned_or_refused(folder):
    flags = {"train__steps": 1, "objective__mlm__copies": 0, "augment__excerpt": "crop:rate=1:min_rate=0.05"}
    flags |= {"model__dropout": 0.9, "train__warmup_steps": 1, "config": "clear_micro"}
    said = run(folder, "drowned", **flags).said
    assert "WARNING at step 0: this setting will not learn the sentence loss" in said, said
    assert "no --config given" not in said
    refused = run(folder, "refused", expect=2, train__faults__dead_loss="stop", **flags).said
    assert "this setting will not learn the sentence loss" in refused and "step 1/" not in refused


def test_a_run_may_start_at_the_frequencies_and_weigh_by_them(folder, whole):
    flags = {"objective__mlm__initial_bias": "frequencies", "model__token_weights": "sif", "train__steps": 2}
    flags |= {"objective__mlm__later_rates": "{1: 0.4}", "train__warmup_steps": 1, "evaluate__every": 2}
    flags |= {"train__precision": "auto", "train__micro_batch_tokens": "auto"}
    said = run(folder, "frequencies", **flags, checkpoint__resume="auto").said
    first, other = (
        rows_with(folder / name, "evaluation")[0]["evaluation"] for name in ("frequencies", "run")
    )
    assert first["heldout_mlm_loss"] < other["heldout_mlm_loss"] - 0.3, "not uniform"
    assert first["partner_loss"] != other["partner_loss"], "vectors are weighted means"
    assert re.search(r"  held-out MLM loss at 0\.\d+ \(nats\) +\d", said)
    counts = np.zeros(len(load_tokenizer(folder / "data" / "tokenizer")), np.int64)
    reader = ShardReader(folder / "data", "train")
    for number in range(reader.num_chunks):
        counts += np.bincount(reader.read(number).stored.ids, minlength=len(counts))
    tensors = dict(store.read_tensors(folder / "frequencies" / "checkpoints" / "step-00000002"))
    (bias,) = [tensor for name, tensor in tensors.items() if tensor.shape == counts.shape]
    counts[load_tokenizer(folder / "data" / "tokenizer").all_special_ids] = 0
    assert np.abs(bias.numpy() - np.log((counts + 1) / (counts + 1).sum())).max() < 0.005, "but for two steps"
    chosen = store.read_state(folder / "frequencies" / "checkpoints" / "step-00000002")["config"]["train"]
    assert chosen["precision"] in ("fp32", "bf16") and isinstance(chosen["micro_batch_tokens"], int)
    assert (
        f"ZeRO 1, {chosen['precision']}\n" in said
        and f"up to {chosen['micro_batch_tokens']:,} tokens" in said
    )
    more = flags | {"train__steps": 3, "objective__mlm__initial_bias": "zero", "train__log_every": 1}
    again = run(folder, "frequencies", **more, checkpoint__resume="auto").said
    assert "resumed from" in again and "changed    train.steps: 2 until step 2, 3 from now on" in again
    now = store.read_state(folder / "frequencies" / "checkpoints" / "step-00000003")["config"]
    assert now["train"] == chosen | {"steps": 3, "log_every": 1}
    assert now["objective"]["mlm"]["initial_bias"] == "frequencies", "what the run began with"


def test_a_table_of_words_costs_no_products_and_a_dead_loss_may_stop_a_run(folder):
    flags = {"model__pooling": "words", "objective__mlm__weight": 0, "train__steps": 30}
    flags |= {
        "train__lr": 1e-30,
        "train__faults__dead_loss": "stop",
        "train__log_every": 1,
        "evaluate__every": 0,
    }
    flags |= {"objective__contrastive__temperature": 50, "checkpoint__every": 0}
    said = run(folder, "table", expect=1, **flags).said
    rows = rows_with(folder / "table", "loss")
    assert all(row["mfu"] == row["hfu"] == 0 for row in rows.values()) and "mfu 0.0%" in said
    assert re.search(r"WARNING at step 20: the contrastive loss learns nothing since step 1", said), said
    assert "stopping after step 22: the sentence loss learns nothing" in said, said
    assert f"saved {folder / 'table' / 'checkpoints'}" in said and not (folder / "table" / "export").exists()
