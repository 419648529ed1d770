"""DeepSpeed's options: a typo is named with what it may have meant, whatever part of DeepSpeed reads it."""

import os

import pytest
from deepspeed.runtime.config import DeepSpeedConfig
from forked_python import run_python

from pretrain.common.errors import UserError
from pretrain.config.recipe import load_config
from pretrain.step.engine import KeyRecorder, deepspeed_config


def check(**given):
    flags = {"deepspeed." + key.replace("__", "."): value for key, value in given.items()}
    return deepspeed_config(load_config(None, flags), 1)


GOOD = {
    "zero_optimization__reduce_bucket_size": "5e8",
    "zero_optimization__overlap_comm": "true",
    "wall_clock_breakdown": "false",
    "data_types__grad_accum_dtype": "fp32",
    "flops_profiler__enabled": "false",
    "flops_profiler__top_modules": "3",
    "activation_checkpointing__partition_activations": "false",
    "comms_logger__enabled": "false",
    "aio__block_size": "1048576",
    "communication_data_type": "fp32",
    "checkpoint__tag_validation": "Warn",
    "tensorboard__enabled": "false",
    "zero_optimization__offload_optimizer__device": "none",
    "gradient_predivide_factor": "1.0",
    "prescale_gradients": "false",
    "zero_optimization__stage3_param_persistence_threshold": "10000",
    "log_level": "warning",
    "pipeline__stages": "auto",
}


@pytest.mark.parametrize("key", GOOD)
def test_options_that_deepspeed_has_are_taken(key):
    check(**{key: GOOD[key]})


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_deepspeed_knows_the_largest_norm_wherever_its_own_step_may_run(zero):
    """At ZeRO 0 it never does; at 1 it does with all optimizers but torch's AdamW, which it must not clip."""
    flags = {"train.zero": str(zero), "train.clip": "0.7"}
    options = deepspeed_config(load_config(None, flags), 1)
    assert options["gradient_clipping"] == (0.7 if zero else 0.0)
    assert options["zero_optimization"]["stage"] == zero


@pytest.mark.parametrize(
    "key,value,words",
    [
        (
            "zero_optimisation__x",
            "3",
            ["deepspeed.zero_optimisation", "did you mean deepspeed.zero_optimization?"],
        ),
        (
            "zero_optimization__overlap_com",
            "true",
            ["DeepSpeedZeroConfig: unknown key overlap_com"],
        ),
        ("wall_clock_brakdown", "true", ["did you mean deepspeed.wall_clock_breakdown?"]),
        ("data_types__grad_acum_dtype", "fp32", ["did you mean deepspeed.data_types.grad_accum_dtype?"]),
        ("flops_profiler__enable", "true", ["did you mean deepspeed.flops_profiler.enabled?"]),
        (
            "tensorboard__enable",
            "true",
            ["unknown key tensorboard.enable"],
        ),
        (
            "zero_optimization__offload_optimizer__devise",
            "none",
            ["unknown key offload_optimizer.devise"],
        ),
        (
            "comms_logger__verbos",
            "true",
            ["CommsLoggerConfig: unknown key verbos"],
        ),
        ("activation_checkpointing__profil", "true", ["deepspeed.activation_checkpointing.profile?"]),
        (
            "checkpoint__parallel_write__pipelin_stage",
            "true",
            ["deepspeed.checkpoint.parallel_write.pipeline_stage?"],
        ),
        (
            "zero_optimization__reduce_bucket_size",
            "large",
            ["reduce_bucket_size: ", "integer", "large"],
        ),
        (
            "zero_optimization__stage3_max_live_parameters",
            "-1",
            ["stage3_max_live_parameters", "greater than or equal to 0"],
        ),
        ("data_types__keep_in_fp32_modules", "7", ["keep_in_fp32_modules", "7"]),
        ("sparse_attention__mode", "fixed", ["DeepSpeed refuses", "sparse_attention"]),
        (
            "zero_optimization__offload_optimizer__device",
            "cpu",
            ["offload_optimizer", "not supported", "train.zero 3"],
        ),
        ("zero_optimization__offload_param__device", "nvme", ["offload_param", "not supported"]),
        ("communication_data_type", "bf16", ["communication_data_type", "train.communication_dtype decides"]),
        ("zero_optimization__cpu_offload", "true", ["cpu_offload", "not supported"]),
    ],
)
def test_a_mistake_is_one_message_with_the_whole_name(key, value, words):
    with pytest.raises(UserError) as caught:
        check(**{key: value})
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert "pydantic" not in str(caught.value)


def test_every_option_that_deepspeed_looks_up_is_one_that_it_knows():
    """The list of known keys is DeepSpeed's own: giving any of them, it is asked for again."""
    tree = KeyRecorder(check())
    DeepSpeedConfig(tree)
    known = sorted(tree.looked_up)
    assert len(known) > 30
    for key in known:
        again = KeyRecorder(check() | {key: {}})
        try:
            DeepSpeedConfig(again)
        except Exception:  # a feature that was removed, or a value of the wrong type
            continue
        assert not again.unknown(), key


@pytest.mark.full
def test_the_operators_of_deepspeed_are_not_probed_at_the_start():
    code = """
import sys
started = []
sys.addaudithook(lambda event, what: started.append(what) if event == "subprocess.Popen" else None)
from pretrain.step.engine import without_shared_memory_reduction
without_shared_memory_reduction()
from deepspeed.comm.torch import build_shm_op
print(build_shm_op(), started)
"""
    assert run_python(["-c", code], dict(os.environ)).stdout == "None []\n"
