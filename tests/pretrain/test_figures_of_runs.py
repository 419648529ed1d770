"""Figures that decide what a run computes, tells or bears: each is stated here a second time."""

import inspect
import math

import numpy as np
import pytest
import torch

from pretrain import api
from pretrain.common.errors import UserError
from pretrain.config.recipe import load_config
from pretrain.losses import contrastive, exclusions, mlm, vectors
from pretrain.model import attention, encoder, heads, pooling
from pretrain.model.kernels import dropout, plain
from pretrain.objectives import SYSTEMS, BatchContext, augcse, vadvcse, vascl
from pretrain.start import continuity, data, estimate, local_ranks
from pretrain.step import engine, faults, graphs, heldout, log, placement, precision, progress, reduction
from pretrain.step.engine import deepspeed_config
from pretrain.telemetry import formats, intervals, monitors, run, stopwatch, throughput, trackers
from pretrain.watch import deadline, ending, heartbeat

FIGURES = {
    faults: {"NORMS": 100, "LEAST_NORMS": 10, "TOGETHER": 10, "WITHIN": 1000, "SHOWN": 3},
    graphs: {"MOST_GRAPHS": 64, "LARGEST_ROW": 32768},
    heldout: {"PARTNER_OF_ITSELF": "crop:rate=0.7", "PARTNER_TEMPERATURE": 0.05, "SIGNAL_SAMPLE": 96},
    placement: {"UNTIL": 1.02, "ABOVE": 1.05},
    precision: {"SMALLEST_SCALE": 1 / 16384, "LARGEST_SCALE": 16777216.0},
    reduction: {"BUCKET": 6553600, "UNDER_WAY": 4},
    log: {"OWN_PARTS": ("data", "encode", "backward"), "GROUPS": ("loss", "measures", "norm", "counts")},
    vadvcse: {"GUARD": 1e-6},
    vascl: {"GATHERED": {"cpu": 2097152, "cuda": 67108864}, "NEVER": -1e9, "NONE": -1},
    contrastive: {"TILE_LOGITS": {"cpu": 4194304, "cuda": 268435456}, "SMALLEST_SHARED": 1048576}
    | {"SMALLEST_SYMMETRIC": 0.025},
    mlm: {"TILE_BYTES": {"cpu": 134217728, "cuda": 1073741824}},
    vectors: {"SMALLEST_NORM": 1e-12, "ROWS_AT_ONCE": 8192},
    attention: {"BUCKETS": (16, 32, 64, 128), "HALF": (torch.float16, torch.bfloat16)},
    encoder: {"VOCABULARY_MULTIPLE": 128},
    pooling: {"SIF_CONSTANT": 1e-3, "WORDS": "words"},
    plain: {"IGNORED": -1},
    dropout: {"EMBEDDING": 0, "PROBABILITIES": 1, "ATTENTION": 2, "MLP": 3},
    continuity: {"FIXED": ("shards", "manifest", "tokenizer"), "BATCHES": "batches", "GUIDE": "guide"},
    data: {"DROWNED": 0.05},
    estimate: {"USABLE": 0.9, "LOGITS_AT_ONCE": 536870912, "CONTRASTS_AT_ONCE": 268435456, "SENTENCE": 24}
    | {"LOGIT": 4, "CONTRAST": 12, "VECTOR_COPIES": 6, "PERSISTENT": 100_000, "HEAD_BYTES": 16, "SHORT": 128},
    deadline: {"FLOOR": 300.0, "TIMES": 10, "OUTSIDE": 3600.0, "END": 600.0, "RANKS_A_SECOND": 50},
    ending: {"PATIENCE": 3.0, "REPORT": 30.0, "FOLDER": "watch", "END": "end"},
    heartbeat: {"WIDTH": 512},
    formats: {
        "LABELS": {
            "heldout_mlm_loss": "held-out MLM loss (nats)",
            "partner_found": "top-1 retrieval of the other view",
            "partner_loss": "held-out contrastive loss (nats)",
            "stsb-dev": "STS-B dev (Spearman x 100)",
        }
    },
    intervals: {"LEVEL": 0.95, "SMALLEST": 0.005, "RESAMPLES": 1000},
    monitors: {"SAMPLE": 512, "MIN_SEQUENCES": 64, "LEAST_SHARE": 1e-3, "MOST_MASKED": 0.9, "AT_ONCE": 5}
    | {"LEARNED": 20},
    run: {"SECONDS_BETWEEN_LINES": 30.0, "SECONDS_AT_A_TERMINAL": 5.0},
    stopwatch: {"PENDING_EVENTS": 8192},
    throughput: {"BACKWARD_COST": 2.0},
    trackers: {"PROJECT": "sentence-clear", "CLOSE_SECONDS": 60.0, "WAITING": 10_000},
    api: {"SUITES": ("quick", "mteb-eng", "all")},
}


@pytest.mark.parametrize("module", FIGURES, ids=lambda module: module.__name__)
def test_figures_are_as_decided(module):
    assert {name: getattr(module, name) for name in FIGURES[module]} == FIGURES[module]


def test_held_out_sequences_are_masked_alike_in_all_runs_ever():
    assert heldout.SEED == 20201231


def test_what_is_gathered_is_of_the_size_that_its_comments_say():
    assert reduction.BUCKET * 4 == 25 * 1024**2 and vascl.GATHERED["cpu"] * 4 == 8 * 1024**2
    assert math.log2(estimate.LOGITS_AT_ONCE) == 29


FLAGS = ("-H", "--hostfile", "-i", "--include", "-e", "--exclude", "--num_nodes", "--num_gpus", "--launcher")
FLAGS += ("--num_accelerators", "--force_multi", "--bind_cores_to_rank")


@pytest.mark.parametrize("flag", FLAGS)
def test_each_flag_of_the_launcher_by_which_ranks_are_chosen(monkeypatch, flag):
    monkeypatch.setenv("WORLD_SIZE", "1")
    for name in ("TORCHELASTIC_RUN_ID", local_ranks.LOCAL_RANKS):
        monkeypatch.delenv(name, raising=False)
    for words, chose in (([flag, "x"], True), ([f"{flag}=x"], True), (["--other"], False)):
        monkeypatch.setattr(local_ranks, "_launcher_commands", lambda words=words: [["deepspeed"], words])
        assert local_ranks._launcher_chose() == chose


OF_DEEPSPEED = {
    "train_batch_size": (7, "train.global_batch"),
    "train_micro_batch_size_per_gpu": (7, "train.micro_batch_tokens"),
    "gradient_accumulation_steps": (7, "train.micro_batch_tokens"),
    "gradient_clipping": (0.125, "train.clip"),
    "optimizer": ({"type": "Adam"}, "train.optimizer"),
    "scheduler": ({"type": "x"}, "train.schedule"),
    "bf16": ({"enabled": True}, "train.precision"),
    "fp16": ({"enabled": True}, "train.precision"),
    "torch_autocast": ({"enabled": True}, "train.precision"),
    "amp": ({"enabled": True}, "train.precision"),
    "managed_gradient_accumulation": (True, "the loop owns accumulation"),
    "communication_data_type": ("fp16", "train.communication_dtype"),
    "zero_optimization": ({"stage": 2}, "train.zero"),
}


@pytest.mark.parametrize("key", OF_DEEPSPEED)
def test_what_the_recipe_decides_deepspeeds_options_do_not(key):
    value, ours = OF_DEEPSPEED[key]
    config = load_config(None, {}).model_copy(update={"deepspeed": {key: value}})
    with pytest.raises(UserError, match=rf"^deepspeed\.{key}.*{ours}"):
        deepspeed_config(config, 2)


def test_the_engine_gets_the_recipes_settings():
    for zero, clip, bucket in ((0, 0.0, 6553600), (1, 0.5, 6553600), (2, 0.5, None), (3, 0.5, None)):
        flags = {"train.zero": str(zero), "train.clip": "0.5", "train.communication_dtype": "bf16"}
        found = deepspeed_config(load_config(None, flags), 1)
        stage = found.pop("zero_optimization")
        assert stage.pop("reduce_bucket_size", None) == bucket
        assert stage == {"stage": zero, "overlap_comm": False, "contiguous_gradients": True}
        assert found == {
            "train_batch_size": 1,
            "train_micro_batch_size_per_gpu": 1,
            "gradient_accumulation_steps": 1,
            "gradient_clipping": clip,
            "communication_data_type": "bf16",
            "zero_allow_untested_optimizer": True,
            "steps_per_print": 2**31,
            "timers": {"throughput": {"enabled": False}},
        }
    more = {"zero_optimization": {"allgather_bucket_size": 1000, "stage": 1}, "memory_breakdown": True}
    merged = deepspeed_config(load_config(None, {}).model_copy(update={"deepspeed": more}), 1)
    assert merged["zero_optimization"]["allgather_bucket_size"] == 1000 and merged["memory_breakdown"]
    assert merged["zero_optimization"]["overlap_comm"] is False


def test_every_system_goes_by_its_name():
    names = "clear simcse vascl augcse vadvcse sda diffcse esimcse declutr retain distill scored"
    assert sorted(SYSTEMS) == sorted(names.split())
    assert all(SYSTEMS[name].__name__.lower() == name for name in SYSTEMS)


@pytest.mark.parametrize(
    "letter, said", [("T", "stopped by a signal"), ("t", "a debugger"), ("D", "a disk or a driver")]
)
def test_states_in_which_a_process_does_nothing_are_named(monkeypatch, letter, said):
    monkeypatch.setattr(heartbeat, "state_of", lambda pid: letter)
    beat = heartbeat.heartbeat(0, 1, 4, "encode", 0.0)
    assert said in heartbeat.who_is_behind({0: beat}, {0: beat}, 1)


DEFAULTS = {
    api.load: {
        "pooling": "",
        "token_budget": 16384,
        "batch_size": 64,
        "max_length": None,
        "precision": "fp32",
    },
    api.train: {"data": None, "run": None, "resume": "never"},
    api.prepare: {"workers": None, "overwrite": False},
    api.Run.export: {"out": None, "step": "latest"},
    heads.simcse_head: {"initializer_range": 0.02},
    heads.vascl_head: {"out_features": 128, "initializer_range": 0.02},
    heads.batch_norm_head: {"initializer_range": 0.02},
    heads.simclr_head: {"batch_norm": False},
    augcse.Discriminator: {"form": "code", "dropout": 0.2},
    vadvcse.divergence: {"kind": "js", "form": "packaged"},
    vadvcse.project_noise: {"norm": "inf", "mode": "smart"},
    contrastive.Negatives: {"present": None, "identities": None, "own_bias": 0.0},
    exclusions.Guide: {"negatives": None, "margin": 0.0, "strategy": "absolute", "counting": False},
    throughput.Throughput: {"window": 200, "work": float, "flops": None},
    throughput.measure_peak_flops: {"seconds": 0.05},
    throughput.FlopsMeter: {"repeated_per_token": 0.0},
    monitors.Monitor: {"explosion": 10.0, "terms": ("contrastive",), "quiet": 1, "state": None},
    trackers.Tracking: {"names": ("tensorboard",), "run_name": ""},
    estimate.Layout: {"bucket": 500_000_000, "wire": 4, "apex": False},
    estimate.Reached: {"stages": (1.0, 1.015, 1.15, 1.56)},
    estimate.PlannedTokenizer: {"pad_token_id": 0, "cls_token_id": 1, "sep_token_id": 2, "mask_token_id": 3},
    engine.start_processes: {"patience": 600},
    data.load_batch: {"step": 0, "rank": 0, "ranks": 1},
    reduction.Buckets: {"overlap": True},
    progress.selection_score: {"from_random": False, "by": None, "random": ()},
}


@pytest.mark.parametrize("function", DEFAULTS, ids=lambda function: function.__qualname__)
def test_what_is_not_given_is_as_decided(function):
    parameters = inspect.signature(function).parameters
    assert {name: parameters[name].default for name in DEFAULTS[function]} == DEFAULTS[function]


def test_a_run_begins_with_nothing_done():
    begun = vars(progress.Progress())
    numbers = {"step": 0, "tokens": 0, "seconds": 0.0, "best_step": 0, "unimproved": 0, "skipped_steps": 0}
    assert {name: begun.pop(name) for name in numbers} == numbers
    assert begun.pop("best_score") is None and begun.pop("best_by") == ""
    assert all(value in ([], {}) for value in begun.values())


def test_what_an_objective_draws_is_of_the_seed_the_step_and_the_purpose():
    def drawn(seed, step, *purpose):
        nothing = torch.zeros(0)
        context = BatchContext(step, 0.0, nothing, None, {}, None, seed)
        return torch.rand(3, generator=context.generator(*purpose)).tolist()

    number = int(np.random.SeedSequence([5, 2, 0]).generate_state(1, np.uint64)[0] >> np.uint64(1))
    assert (
        drawn(5, 2)
        == drawn(5, 2, 0)
        == torch.rand(3, generator=torch.Generator().manual_seed(number)).tolist()
    )
    others = [drawn(5, 2), drawn(5, 2, 1), drawn(5, 3), drawn(6, 2), drawn(2, 5)]
    assert len(set(map(tuple, others))) == 5
