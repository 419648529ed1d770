"""Parts of `gpu_accept.py` about what is computed: exactness, replay of dropout, a resume, waits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from gpu_peers import Skipped

from pretrain.checkpoint import store
from pretrain.checkpoint.folder_writer import Retention
from pretrain.checkpoint.saver import Saver
from pretrain.step.plan import VIEWS, passes_of

if TYPE_CHECKING:
    from gpu_accept import Accept

ROOT = Path(__file__).resolve().parents[2]
WORKER = ROOT / "tests" / "pretrain" / "exactness_worker.py"
CASES = "mlm,clear_mean,clear_cls,simcse_supervised"
CLOSE = {"fp32": 1e-5, "bf16": 0.25}  # as tests/pretrain/step/test_exactness.py has it


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
    return {"gradients off by": {kind: float(f"{error:.2g}") for kind, error in worst.items()}}


def replay(accept: Accept) -> dict[str, Any]:
    run = accept.run("simcse", accept.size.sentences)
    model, batch = run.engine.module, run.batch(0)
    part = passes_of(batch, model.objective, accept.size.micro_batch_tokens, 0, 0)[VIEWS]
    row = part.micro_batches(8)[-1]
    moved = row.moved(iter([tensor.to(accept.device) for tensor in row.moving]))
    with torch.no_grad():
        first, again = model.embed(moved), model.embed(moved)
        model.eval()
        without = model.embed(moved)
    run.engine.destroy()
    assert torch.equal(first, again), "a second pass drew other dropout"
    assert not torch.equal(first, without), "there was no dropout"
    return {"sequences": len(row.lengths)}


def resume(accept: Accept) -> dict[str, Any]:
    if accept.device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    try:
        with tempfile.TemporaryDirectory() as folder:
            run = accept.run("simcse", accept.size.sentences)
            for number in range(2):
                run.step(number)
            state = {"step": 2}
            saver = Saver(run.engine)
            saved = saver.save(Path(folder), state, Retention(1), background=False)
            saver.close()
            for number in range(2, 4):
                run.step(number)
            expected = run.weights()
            run.engine.destroy()
            other = accept.run("simcse", accept.size.sentences, seed=1)
            store.load(saved, other.engine)
            for number in range(2, 4):
                other.step(number)
            differing = sum(not torch.equal(a, b) for a, b in zip(expected, other.weights()))
            other.engine.destroy()
    finally:
        torch.use_deterministic_algorithms(False)
    assert not differing, f"{differing} of {len(expected)} parameters differ after a resume"
    return {"parameters": len(expected)}


def waits(accept: Accept) -> dict[str, Any]:
    if accept.device.type != "cuda":
        raise Skipped("torch's alarm is CUDA's; tests/pretrain/step/test_waits.py counts waits on a CPU")
    run = accept.run("simcse", accept.size.sentences)
    for number in range(2):
        run.step(number)[1].read()
    torch.cuda.set_sync_debug_mode("error")
    try:
        numbers = [run.step(number)[1] for number in (2, 3)]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    read = [of_step.read() for of_step in numbers]
    run.engine.destroy()
    assert all(of_step["applied"] for of_step in read), "a step was not applied"
    return {"steps without a wait": len(numbers)}
