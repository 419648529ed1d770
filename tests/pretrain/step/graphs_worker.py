"""Steps of a rank with graphs and without, by DeepSpeed's own engine: are losses and weights the same bits?

Run as `python graphs_worker.py OUT STAGES CASE PRECISION cpu|cuda` with RANK, WORLD_SIZE, MASTER_ADDR and
MASTER_PORT set; it writes OUT.STAGE.RANK. On a CPU the operators of graphs are called again.
"""

import json
import os
import sys
from collections import Counter
from contextlib import nullcontext
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from exactness_worker import build  # sets the process's variables

# isort: split
import torch
import torch.distributed as dist
from exactness_cases import make_batch, share
from flash_reference import flash_on_cpu
from graph_recorder import Recorder, same_memory

from pretrain.step.engine import build_engine, start_processes
from pretrain.step.graphs import Graphs, cuda_recorder
from pretrain.step.update import Update
from pretrain.step.whole_batch import WholeBatch

TURNS = ("no graphs", "nothing", "anew", "given up")
"""There are none; with graphs, what happens after six steps: all is made anew on the same engine, as after a
roll-back; graphs end. Gradients of layers are added together, as on a GPU, at ZeRO 0 and 1."""


def trained(
    stage: int, case: str, precision: str, record: Recorder | None, turn: str | None = None
) -> list[torch.Tensor]:
    """Return the losses of ten steps, and the weights after them; without a turn autograd adds gradients."""
    config, model = build(case, stage, precision, 0.2)
    engine = build_engine(model, config)
    engine.train()
    found = []
    for step in range(10):
        if step == 0 or (step == 6 and turn == "anew"):
            graphs = Graphs(engine, "auto" if record else "off", record=record)
            whole, update = WholeBatch(engine, 5, 150, graphs=graphs), Update(engine, 0.5, graphs=graphs)
            whole.adds = turn is not None and stage <= 1
        elif step == 6 and turn == "given up":
            graphs._give_up("no memory")
        for group in engine.optimizer.param_groups:
            group["lr"] = 1e-3 / (step + 3)
        batch = make_batch(5 + step % 2, model.objective.masked_copies, model.objective.roles)
        result = whole.compute(share(batch, dist.get_rank(), dist.get_world_size(), step))
        assert update.apply(result.losses["total"])[1]
        found += [loss.clone() for loss in result.losses.values()]
    assert turn != "given up" or update._graph is None
    found += [parameter.detach().clone() for parameter in model.parameters()]
    engine.destroy()
    return found


def main() -> None:
    out, stages, case, precision, device = sys.argv[1:]
    if device == "cpu":
        os.environ |= {"CUDA_VISIBLE_DEVICES": "", "CLEAR_KERNELS": "plain"}  # others are no operators
    torch.set_num_threads(1)
    start_processes()
    for stage in stages.split(","):
        with flash_on_cpu() if device == "cpu" else nullcontext():
            expected = trained(int(stage), case, precision, None)
        report = {}
        for turn in TURNS:
            record = Recorder(cuda_recorder() if device == "cuda" else same_memory)
            with flash_on_cpu() if device == "cpu" else nullcontext():
                found = trained(int(stage), case, precision, record if turn != "no graphs" else None, turn)
            differing = sum(not torch.equal(a, b) for a, b in zip(found, expected, strict=True))
            repeated = zip(record.bodies, record.repeats, strict=True)
            graphs = Counter(body.__qualname__ for body, count in repeated if count)
            report[turn] = {"differing": differing, "compared": len(found), "graphs": graphs}
        Path(f"{out}.{stage}.{dist.get_rank()}").write_text(json.dumps(report))
    dist.barrier()
    dist.destroy_process_group()  # gloo's threads, alive at the interpreter's end, may abort the process


if __name__ == "__main__":
    main()
