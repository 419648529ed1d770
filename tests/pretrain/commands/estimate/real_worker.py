"""One rank of a short real run on prepared data: the peak of its tensors' bytes.

Run as `python real_worker.py OUT.json DATA KEY=VALUE ...` with RANK, WORLD_SIZE and the master's address set.
torch's profiler reports every allocation of a tensor, so the peak depends on nothing else on the machine.
"""

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[4]))
os.environ["DS_ACCELERATOR"] = "cpu"

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

from augment.core.vocabulary import Vocabulary
from pretrain.config.recipe import DEFAULT_RECIPE, load_config
from pretrain.data.batch import BatchSpec
from pretrain.data.loader import Loader, LoaderSettings, Position
from pretrain.data.masking import Masking
from pretrain.data.shards import ShardReader
from pretrain.data.tokenizer import load_tokenizer
from pretrain.objectives import build_objective, view_specs
from pretrain.start.devices import set_threads
from pretrain.start.encoder import make_encoder
from pretrain.step.engine import build_engine, start_processes
from pretrain.step.model import SentenceModel
from pretrain.step.update import Update
from pretrain.step.whole_batch import WholeBatch

STEPS = 2


def peak_of(profiled: profile) -> int:
    """Return the most bytes that were allocated at once since the profile began."""
    events = [event for event in profiled.profiler.kineto_results.events() if event.name() == "[memory]"]
    now = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    return peak


def main() -> None:
    out, folder, *rest = sys.argv[1:]
    config = load_config(DEFAULT_RECIPE, {"data": folder} | dict(word.split("=", 1) for word in rest))
    start_processes()
    set_threads(config)
    reader = ShardReader(config.data_folder, "train")
    tokenizer = load_tokenizer(reader.tokenizer_path)
    rank, world = dist.get_rank(), dist.get_world_size()
    spec = BatchSpec(
        view_specs(config), Masking.of(config.objective), Vocabulary.from_tokenizer(tokenizer), None, 64
    )
    batches = list(Loader(reader, spec, LoaderSettings.of(config), Position(0, STEPS, rank, world)))
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        torch.manual_seed(0)
        encoder = make_encoder(config, tokenizer)
        model = SentenceModel(encoder, build_objective(config, encoder, tokenizer), config.train.precision)
        engine = build_engine(model, config)
        engine.train()
        whole = WholeBatch(engine, 1, config.train.micro_batch_tokens)
        update = Update(engine, config.train.clip)
        for batch in batches:
            update.apply(whole.compute(batch).losses["total"])
    Path(f"{out}.{rank}").write_text(json.dumps({"peak": peak_of(profiled)}))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
