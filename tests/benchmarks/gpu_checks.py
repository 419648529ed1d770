"""Parts of `gpu_accept.py` about what is computed: exactness, replay of dropout, a resume, waits.

As users run them, with graphs: batches come again until their rows are recorded, and what is compared must
have been made by graphs. On a CPU there are none.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from gpu_peers import Skipped
from graph_recorder import count_repeats

from pretrain.checkpoint import store
from pretrain.checkpoint.folder_writer import Retention
from pretrain.checkpoint.saver import Saver
from pretrain.data.batch import RankBatch
from pretrain.step.plan import VIEWS, passes_of

if TYPE_CHECKING:
    from gpu_accept import Accept, Run

ROOT = Path(__file__).resolve().parents[2]
WORKER = ROOT / "tests" / "pretrain" / "exactness_worker.py"
CASES = "mlm,clear_mean,clear_cls,simcse_supervised"
CLOSE = {"fp32": 1e-5, "bf16": 0.25}  # as tests/pretrain/step/test_exactness.py has it

BATCHES = 2
RECORDED = 2 * BATCHES
"""Steps after which all rows of `again` are recorded."""


def again(run: Run, step: int) -> RankBatch:
    """Return one of so many batches, with the number, and so the dropout, of this step."""
    return replace(run.batch(step % BATCHES), step=step)


def by_graphs(run: Run, counts: Counter, least: int) -> dict[str, int]:
    """Return how many rows graphs encoded with a backward, or raise AssertionError if that are too few."""
    if not run.whole.graphs.on:
        assert run.accept.device.type == "cpu", "there are no graphs"
        return {}
    assert counts["backward"] >= least, f"graphs encoded {counts['backward']} rows of at least {least}"
    return {"rows by graphs": counts["backward"]}


def report_of_worker(accept: Accept) -> list[dict]:
    """Run the exactness tests' own worker on the device, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "report.json"
        words = [sys.executable, str(WORKER), str(out), "0", CASES, "0.0", "off", "plain", "fp32,bf16"]
        ended = subprocess.run(
            [*words, accept.device.type],
            env=os.environ | {"PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}", "MASTER_PORT": "0"},
            capture_output=True,
            text=True,
            timeout=400,
        )
        if ended.returncode:
            raise RuntimeError((ended.stdout + ended.stderr).strip()[-400:])
        return json.loads(out.read_text())["rows"]


def exactness(accept: Accept) -> dict[str, Any]:
    rows = report_of_worker(accept)
    worst = {kind: max(row["error"] for row in rows if row["precision"] == kind) for kind in ("fp32", "bf16")}
    for kind, error in worst.items():
        assert error < CLOSE[kind], f"{kind} gradients are off by {error:.2g} of their norm"
    repeated = [row for row in rows if "repeats" in row] if accept.device.type == "cuda" else []
    for row in repeated:
        rows_of_case = sum(row["micro_batches"])
        said = f"graphs encoded {row['repeats']} rows of {rows_of_case} of {row['case']}, {row['precision']}"
        assert row["repeats"] == rows_of_case, said
    found = {"gradients off by": {kind: float(f"{error:.2g}") for kind, error in worst.items()}}
    return found | ({"rows by graphs": sum(row["repeats"] for row in repeated)} if repeated else {})


def replay(accept: Accept) -> dict[str, Any]:
    run = accept.run("simcse", accept.size.sentences)
    model, graphs, batch = run.engine.module, run.whole.graphs, run.batch(0)
    part = passes_of(batch, model.objective, accept.size.micro_batch_tokens, 0, 0)[VIEWS]
    row = part.micro_batches(8)[-1]
    moved = row.moved(iter([tensor.to(accept.device) for tensor in row.moving]))
    for _ in range(2):
        graphs.embed(model, moved).sum().backward()
    counts = count_repeats(graphs)
    graphs.embed(model, moved).sum().backward()
    with torch.no_grad():
        first, second, plain = graphs.embed(model, moved), graphs.embed(model, moved), model.embed(moved)
        model.eval()
        without = model.embed(moved)
    found = {"sequences": len(row.lengths)} | by_graphs(run, counts, 1)
    run.close()
    assert torch.equal(first, second), "a second pass drew other dropout"
    assert torch.equal(first, plain), "without graphs it draws other dropout"
    assert not torch.equal(first, without), "there was no dropout"
    return found


def resume(accept: Accept) -> dict[str, Any]:
    """Save when rows are recorded, and compare steps by graphs with steps in which they are recorded anew."""
    if accept.device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    try:
        with tempfile.TemporaryDirectory() as folder:
            run = accept.run("simcse", accept.size.sentences)
            for number in range(RECORDED):
                run.step_of(again(run, number))
            saver = Saver(run.engine)
            saved = saver.save(Path(folder), {"step": RECORDED}, Retention(1), background=False)
            saver.close()
            counts = count_repeats(run.whole.graphs)
            after = range(RECORDED, 2 * RECORDED + BATCHES)
            for number in after:
                run.step_of(again(run, number))
            expected, found = run.weights(), by_graphs(run, counts, len(after))
            run.close()
            other = accept.run("simcse", accept.size.sentences, seed=1)
            store.load(saved, other.engine)
            for number in after[:RECORDED]:
                other.step_of(again(other, number))
            counts = count_repeats(other.whole.graphs)
            for number in after[RECORDED:]:
                other.step_of(again(other, number))
            by_graphs(other, counts, BATCHES)
            differing = sum(not torch.equal(a, b) for a, b in zip(expected, other.weights()))
            other.close()
    finally:
        torch.use_deterministic_algorithms(False)
    assert not differing, f"{differing} of {len(expected)} parameters differ after a resume"
    return {"parameters": len(expected)} | found


def waits(accept: Accept) -> dict[str, Any]:
    if accept.device.type != "cuda":
        raise Skipped("torch's alarm is CUDA's; tests/pretrain/step/test_waits.py counts waits on a CPU")
    run = accept.run("simcse", accept.size.sentences)
    for number in range(RECORDED):
        run.step_of(again(run, number))[1].read()
    counts = count_repeats(run.whole.graphs)
    torch.cuda.set_sync_debug_mode("error")
    try:
        numbers = [run.step_of(again(run, number))[1] for number in range(RECORDED, RECORDED + BATCHES)]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    read = [of_step.read() for of_step in numbers]
    found = {"steps without a wait": len(numbers), "update by a graph": True}
    found |= by_graphs(run, counts, len(numbers))
    updates = run.update._graph is not None
    run.close()
    assert updates, "no graph updates the weights"
    assert all(of_step["applied"] for of_step in read), "a step was not applied"
    return found
