"""A plan's memory, against a short real run of the default recipe's size on one and two ranks."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from run_helpers import finish, start

from pretrain.commands.estimate.formulas import memory
from pretrain.commands.estimate.measure import measure_model
from pretrain.commands.plan import layout_of, sampled_batch
from pretrain.config.recipe import DEFAULT_RECIPE, load_config
from pretrain.data.tokenizer import load_tokenizer

WORKER = Path(__file__).with_name("real_worker.py")
CLOSE = 0.15
SETTINGS = {"train.precision": "fp32", "train.zero": "1", "train.threads": "1", "data.workers": "0"}
# DeepSpeed's bucket of 2 GB is never touched here, but the profiler counts it
SETTINGS["deepspeed"] = "{zero_optimization: {reduce_bucket_size: 8000000}}"


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_memory_is_close_to_a_real_runs(tiny_data, tmp_path, ranks):
    words = [f"{key}={value}" for key, value in SETTINGS.items()]
    out = tmp_path / "found.json"
    finish(start([str(WORKER), str(out), str(tiny_data), *words], ranks=ranks, DS_ACCELERATOR="cpu"))
    found = [json.loads(Path(f"{out}.{rank}").read_text()) for rank in range(ranks)]

    config = load_config(DEFAULT_RECIPE, {"data": str(tiny_data), **SETTINGS})
    tokenizer = load_tokenizer(tiny_data / "tokenizer")
    batch, length = sampled_batch(config, tokenizer)
    model = measure_model(config, tokenizer, length, "fp32", on_gpu=False)
    layout = replace(layout_of(config, ranks, 1), reserved=False)
    assert memory(model, batch, layout).peak == pytest.approx(max(one["peak"] for one in found), rel=CLOSE)
