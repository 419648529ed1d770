"""A plan for this machine, against a short real run of the default recipe's size on one and two ranks."""

import json
from pathlib import Path

import pytest
from run_helpers import finish, start

from pretrain.config.recipe import DEFAULT_RECIPE, load_config
from pretrain.estimate.machine import this_machine
from pretrain.estimate.measure import measure_utilisation
from pretrain.estimate.scenario import open_scenario

WORKER = Path(__file__).with_name("real_worker.py")
CLOSE = 0.15
SETTINGS = {"train.precision": "fp32", "train.zero": "1", "train.threads": "1", "data.workers": "0"}
# DeepSpeed's bucket of 2 GB is never touched here, but the profiler counts it
SETTINGS["deepspeed"] = "{zero_optimization: {reduce_bucket_size: 8000000}}"


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_memory_and_time_are_close_to_a_real_run(tiny_data, tmp_path, ranks):
    words = [f"{key}={value}" for key, value in SETTINGS.items()]
    out = tmp_path / "found.json"
    finish(start([str(WORKER), str(out), str(tiny_data), *words], ranks=ranks, DS_ACCELERATOR="cpu"))
    found = [json.loads(Path(f"{out}.{rank}").read_text()) for rank in range(ranks)]

    config = load_config(DEFAULT_RECIPE, {"data": str(tiny_data), **SETTINGS})
    device = this_machine(ranks, 1, "fp32")
    scenario = open_scenario(config, None, "cpu", device, "fp32", 0.0, 1e9)
    share = measure_utilisation(config, 4096, scenario.length, "fp32", device.peak)
    planned = scenario.estimate(ranks, 1, share)
    scale = found[0]["tokens"] / planned.duration.tokens  # the last step's batch is not the first's
    assert planned.memory.peak == pytest.approx(max(one["peak"] for one in found), rel=CLOSE)
    # in CPU time: other processes have the cores, too. The exchange is waiting, which takes none
    busy = max(one["seconds"] for one in found)
    assert scale * planned.duration.compute == pytest.approx(busy, rel=CLOSE)
