"""One rank of the checkpoint tests: `python checkpoint_worker.py SCENARIO.json DEVICE` with RANK, WORLD_SIZE,
MASTER_* set, DEVICE cpu or cuda, and DS_ACCELERATOR the same.

A scenario is a list of actions done in one launch, because importing DeepSpeed takes longer than all of them.
"""

import itertools
import json
import logging
import math
import os
import signal
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.utils import safe_get_full_fp32_param
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1]))

from checkpoint_helpers import save

from pretrain.checkpoint import store
from pretrain.checkpoint.engine_state import engine_state, parameter_shape
from pretrain.checkpoint.folder_writer import Retention, TensorFileWriter
from pretrain.checkpoint.saver import Saver
from pretrain.step.engine import without_shared_memory_reduction


class Tied(nn.Module):
    """A small masked-language model with everything that is awkward: odd sizes (partitions end in the middle
    of parameters, and need padding), a tied weight, a frozen and an unused parameter, a single number,
    batch-norm buffers, a parameter that no optimizer group holds."""

    def __init__(self, width: int = 13) -> None:
        super().__init__()
        self.embeddings = nn.Embedding(11, width)
        self.dense = nn.Linear(width, width)
        self.norm = nn.BatchNorm1d(width)
        self.decoder = nn.Linear(width, 11)
        self.decoder.weight = self.embeddings.weight
        self.scale = nn.Parameter(torch.tensor([1.25]))  # DeepSpeed takes no parameter without dimensions
        self.unused = nn.Linear(5, 3)
        self.frozen = nn.Parameter(torch.rand(5), requires_grad=False)
        self.register_buffer("scratch", torch.zeros(2), persistent=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(torch.tanh(self.dense(self.embeddings(tokens)))) * self.scale
        return nn.functional.cross_entropy(self.decoder(hidden), (tokens * 3 + 1) % 11)


def build(stage: int, seed: int = 0, settings: dict | None = None, **extra):
    """An engine of `Tied`. settings: of DeepSpeed, besides; extra: of the module."""
    torch.manual_seed(seed)
    module = Tied(**extra)
    decayed = [p for p in module.parameters() if p.requires_grad and p.ndim > 1]
    rest = [p for p in module.parameters() if p.requires_grad and p.ndim <= 1]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=0.01, betas=(0.9, 0.98), eps=1e-6, fused=stage % 2 == 1)
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_clipping": 1.0,
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 20},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }
    return deepspeed.initialize(model=module, optimizer=optimizer, config=config | (settings or {}))[0]


def train(engine, first: int, last: int) -> list[float]:
    """Steps first .. last-1. Every rank sees the same tokens, so that world sizes can be compared."""
    losses = []
    for step in range(first, last):
        tokens = torch.randint(0, 11, (32,), generator=torch.Generator().manual_seed(step)).to(engine.device)
        for group in engine_state(engine).inner.param_groups:
            group["lr"] = 0.01 / (1 + step)
        loss = engine(tokens)
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


def snapshot(engine) -> dict[str, torch.Tensor]:
    """Every tensor whole, gathered over ranks: parameters by DeepSpeed's own functions."""
    view = engine_state(engine)
    found = {}
    for name, parameter in view.named_parameters():
        found[f"parameters/{name}"] = whole_parameter(view, parameter).cpu().clone()
        for key in view.moment_keys(parameter):
            found[f"{key}/{name}"] = summed(view, parameter, key).reshape(found[f"parameters/{name}"].shape)
    return found | {f"buffers/{name}": buffer.cpu().clone() for name, buffer in view.named_buffers()}


def whole_parameter(view, parameter) -> torch.Tensor:
    if hasattr(parameter, "ds_id") and id(parameter) not in view.holders:  # frozen at ZeRO 3
        with deepspeed.zero.GatheredParameters([parameter]):
            return parameter.data.clone()
    return safe_get_full_fp32_param(parameter) if hasattr(parameter, "ds_id") else parameter.data


def summed(view, parameter, key: str) -> torch.Tensor:
    """A moment, of which each rank has a part: the others add zero, as integers, to keep the sign of -0.0."""
    bits = torch.zeros(math.prod(parameter_shape(parameter)), dtype=torch.int32)
    part = view.part(parameter, key)
    if part is not None:
        bits[part.start : part.start + part.values.numel()] = part.values.cpu().view(torch.int32)
    if not view.is_whole(parameter):
        dist.all_reduce(bits)
    return bits.view(torch.float32)


def bits_differ(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> list[str]:
    def same(a, b):
        return a.shape == b.shape and a.reshape(-1).view(torch.uint8).equal(b.reshape(-1).view(torch.uint8))

    return [name for name in sorted(set(left) | set(right)) if name not in left or name not in right
            or not same(left[name], right[name])]  # fmt: skip


@contextmanager
def disk_that_waits():
    """No file becomes durable before the block ends: what is saved in it is whole only after it."""
    goes, fsync = threading.Event(), os.fsync

    def waiting(descriptor):
        assert goes.wait(300)
        fsync(descriptor)

    os.fsync = waiting
    try:
        yield
    finally:
        goes.set()
        os.fsync = fsync


def straight(root: Path, stage: int) -> dict:
    """Train 3, save, train 3 more while the checkpoint is written; a resumed run must repeat these 3."""
    engine = build(stage)
    losses = train(engine, 0, 3)
    at_save = snapshot(engine)
    saver = Saver(engine, max_file_bytes=400)
    with disk_that_waits():
        path = saver.save(root, {"step": 3, "losses": losses}, Retention(2))
        after_save = bits_differ(at_save, snapshot(engine))
        went = {"changed by saving": after_save, "losses": train(engine, 3, 6), "at_save": at_save}
        early = path.exists()
    saver.wait()
    saver.close()
    return went | {"at_end": snapshot(engine), "early": early}


def resume(path: Path, stage: int, steps: int = 3, stepped: bool = False) -> dict:
    engine = build(stage, seed=99)  # other weights: everything must come from the checkpoint
    if stepped:
        train(engine, 50, 52)
    state = store.load(path, engine)
    at_load = snapshot(engine)
    return {"state": state, "at_load": at_load, "losses": train(engine, state["step"], state["step"] + steps),
            "global_steps": engine.global_steps, "at_end": snapshot(engine)}  # fmt: skip


def straight_and_resumed(root: Path, stages: list[int], out: dict) -> None:
    """Same world size, every stage: bit for bit what the uninterrupted run did."""
    for stage in stages:
        went = straight(root / str(stage), stage)
        torch.save(went, root / f"{stage}.pt")
        came = resume(store.choose(root / str(stage)).path, stage, stepped=stage == 1)
        out[f"same {stage}"] = {
            "changed by saving": went["changed by saving"],
            "named too early": went["early"],
            "load": bits_differ(went["at_save"], came["at_load"]),
            "end": bits_differ(went["at_end"], came["at_end"]),
            "losses": went["losses"] == came["losses"],
            "step": came["global_steps"] == 6 and came["state"]["losses"] is not None,
        }


def cross(root: Path, pairs: list[list[int]], out: dict) -> None:
    """Checkpoints of other stages or world sizes: exact when loaded, and the next step differs by rounding
    only."""
    for saved, stage in pairs:
        went = torch.load(root / f"{saved}.pt", weights_only=True)
        came = resume(store.choose(root / str(saved)).path, stage)
        # unused parameters have no moments at ZeRO 0 and zero ones in a flat partition
        names = [n for n in went["at_save"] if "unused" not in n or n.startswith("parameters")]
        end = max(
            (went["at_end"][n].double() - came["at_end"][n].double()).abs().max().item()
            for n in names
            if "unused" not in n and "num_batches" not in n
        )
        out[f"{saved} -> {stage}"] = {
            "load": bits_differ(
                {n: went["at_save"][n] for n in names}, {n: came["at_load"][n] for n in names}
            ),
            "losses": max(abs(a - b) for a, b in zip(went["losses"], came["losses"], strict=True)),
            "end": end,
        }


def before_first_step(root: Path, stages: list[int], out: dict) -> None:
    """No optimizer state yet; and loaded over an engine that has one, it must be gone."""
    for stage in stages:
        engine = build(stage)
        save(root / f"fresh{stage}", engine, {"step": 0}, keep=1)
        reference = train(engine, 0, 3)
        came = resume(store.choose(root / f"fresh{stage}").path, stage, stepped=True)
        out[f"fresh {stage}"] = {
            "losses": reference == came["losses"],
            "end": bits_differ(snapshot(engine), came["at_end"]),
        }


def other_model(root: Path, stage: int, out: dict) -> None:
    engine = build(stage)
    path = save(root / "shape", engine, {"step": 1}, keep=1)
    more = build(stage)
    more.module.register_buffer("queue", torch.zeros(3))
    others = {
        "width": (path, build(stage, width=12)),
        "new buffer": (path, more),
        "no buffer": (save(root / "more", more, {"step": 1}, keep=1), engine),
    }
    for name, (saved, other) in others.items():
        try:
            store.load(saved, other)
        except store.CheckpointError as error:
            out[f"other model: {name}"] = str(error)


def out_of_disk(root: Path, out: dict) -> None:
    """Rank 0 fails in the middle; every rank gets the error, none hangs, the earlier checkpoint is good."""
    engine = build(2)
    train(engine, 0, 1)
    good = save(root / "full", engine, {"step": 1}, keep=1)
    original = TensorFileWriter.write

    def fails(self, name, tensor):
        if name.startswith("norm"):
            raise OSError(28, "No space left on device")
        original(self, name, tensor)

    TensorFileWriter.write = fails
    try:
        save(root / "full", engine, {"step": 2}, keep=1)
    except store.CheckpointError as error:
        out["out of disk"] = {
            "message": str(error),
            "left": sorted(p.name for p in (root / "full").iterdir()),
        }
    TensorFileWriter.write = original
    out["out of disk"]["good"] = store.choose(root / "full").path == good
    save(root / "full", engine, {"step": 2}, keep=1)
    out["out of disk"]["again"] = sorted(p.name for p in (root / "full").iterdir())


def out_of_disk_in_the_background(root: Path, out: dict) -> None:
    """The last rank alone fails, while training goes on; all ranks are told when they ask."""
    engine = build(1)
    train(engine, 0, 1)
    saver = Saver(engine)
    good = saver.save(root / "full", {"step": 1}, Retention(1))
    saver.wait()
    close = TensorFileWriter.close

    def fails(self):
        raise OSError(28, "No space left on device")

    if dist.get_rank() == dist.get_world_size() - 1:
        TensorFileWriter.close = fails
    saver.save(root / "full", {"step": 2}, Retention(1))
    losses = train(engine, 1, 3)
    while saver.in_flight:
        time.sleep(0.01)
    told = {"failed": saver.failed, "losses": len(losses)}
    TensorFileWriter.close = close
    for number, ask in enumerate([saver.wait, lambda: saver.save(root / "full", {"step": 3}, Retention(1))]):
        try:
            ask()
        except store.CheckpointError as error:
            told |= {f"message {number}": str(error), "left": sorted(p.name for p in good.parent.iterdir())}
    saver.wait()
    saver.close()
    out["in the background"] = told | {"again": sorted(p.name for p in good.parent.iterdir())}


def killed(root: Path, at: str, rank: int, out: dict) -> None:
    """Save step 3, then step 6 in the background, of which `rank` is killed at its call `at`."""
    engine = build(1)
    train(engine, 0, 3)
    saver = Saver(engine)
    saver.save(root, {"step": 3}, Retention(1), background=False)
    train(engine, 3, 6)
    if dist.get_rank() == rank:
        kill_at(at)
    saver.save(root, {"step": 6}, Retention(1))
    train(engine, 6, 1_000_000)


def kill_at(place: str) -> None:
    """Let this process kill itself instead of a coming call: "os.fsync", or "os.rename 2" for the second."""
    called, _, number = place.partition(" ")
    owner, name = called.split(".")
    owner = os if owner == "os" else TensorFileWriter
    calls, call = itertools.count(1), getattr(owner, name)

    def counted(*arguments, **options):
        if next(calls) == int(number or 1):
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*arguments, **options)

    setattr(owner, name, counted)


def after_kills(root: Path, kills: list[str], out: dict) -> None:
    """Each folder that a kill left goes on, bit by bit, as a run that was never killed."""
    engine = build(1)
    losses = train(engine, 0, 9)
    whole = snapshot(engine)
    for name in kills:
        found = store.choose(root / name).path
        came = resume(found, 1, steps=9 - store.read_state(found)["step"])
        out[name] = {
            "step": came["state"]["step"],
            "end": bits_differ(whole, came["at_end"]),
            "losses": came["losses"] == losses[came["state"]["step"] :],
        }


def save_forever(root: Path, out: dict) -> None:
    """Saves until it is killed; says so when a save is whole."""
    engine = build(1)
    train(engine, 0, 1)
    start = store.latest(root)
    step = 0 if start is None else store.read_state(start)["step"]
    if start is not None:
        store.load(start, engine)
    print("ready", flush=True)
    while True:
        step += 1
        save(root, engine, {"step": step}, keep=2, max_file_bytes=200)
        print(step, flush=True)


def main() -> None:
    logging.disable(logging.INFO)
    torch.set_num_threads(1)
    scenario = json.loads(Path(sys.argv[1]).read_text())
    without_shared_memory_reduction()
    if sys.argv[2] == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    else:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    deepspeed.init_distributed("nccl" if sys.argv[2] == "cuda" else "gloo", verbose=False)
    out: dict = {}
    for action, arguments in scenario["actions"]:
        globals()[action](Path(arguments.pop("root")), **arguments, out=out)
    Path(f"{scenario['out']}.{os.environ['RANK']}").write_text(json.dumps(out))
    dist.barrier()
    dist.destroy_process_group()  # gloo's threads, alive at the interpreter's end, may abort the process


if __name__ == "__main__":
    main()
