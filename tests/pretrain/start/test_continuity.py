"""A resumed run: what may change, what is refused, and that every remedy which the program names is
accepted."""

import copy
import re
from pathlib import Path

import pytest
from run_helpers import command, curve, finish, records, start

from pretrain.checkpoint import store
from pretrain.common.errors import UserError
from pretrain.config.objectives import OBJECTIVES
from pretrain.config.recipe import describe, load_config, validate_config
from pretrain.data.tokenizer import load_tokenizer
from pretrain.model.encoder import build_encoder
from pretrain.start.continuity import FREE, MAY_CHANGE, record_changes
from pretrain.start.encoder import starting_encoder
from pretrain.step.faults import steadier_settings
from pretrain.telemetry.monitors import Monitor

ROOT = Path(__file__).parents[3]
SUMS = [*OBJECTIVES, "clear+vadvcse", "simcse+sda"]


def resumed(before, now, step=100):
    """The changes that a run with the settings `before` records when it goes on with `now`."""
    state = {"config": load_config(None, before).model_dump(mode="json"), "step": step, "progress": {}}
    record_changes(load_config(None, now), state, Path("step-00000100"))
    return {
        change["key"]: (change["step"], change["from"], change["to"])
        for change in state["progress"]["changes"]
    }


@pytest.mark.parametrize("name", SUMS)
def test_every_key_that_a_remedy_names_belongs_to_the_objective_and_may_change(name):
    recipe = {"objective": name, "train.precision": "bf16"} | (
        {"objective.diffcse.generator": "g"} if "diffcse" in name else {}
    )
    config = load_config(None, recipe)
    text = steadier_settings(config)
    named = set(re.findall(r"(?:train|objective)\.[a-z_.]*[a-z]", text))
    assert {key.split(".")[1] for key in named if key.startswith("objective")} == set(
        config.objective.sections
    )
    rows = {key: default for key, _, default, _ in describe()}
    for key in named:
        default = "1" if rows[key] == "none" else rows[key]
        value = (
            "fp32"
            if key == "train.precision"
            else str(2 * (int(default) if default.isdecimal() else float(default)))
        )
        assert list(resumed(recipe, recipe | {key: value})) == [key]


def test_a_collapse_names_the_settings_of_the_objective_in_use():
    monitor, row = Monitor(terms=["simcse", "sda"]), {"uniformity": 0.0, "negative_cosine": 1.0}
    (said,) = [alarm for step in range(9) for alarm in monitor.alarms_of_row(step, {}, row)]
    assert "objective.simcse.temperature or objective.sda.temperature" in said and "contrastive" not in said


def test_what_may_change_is_what_the_documentation_lists():
    text = (ROOT / "docs" / "runs.md").read_text()
    section = text[text.index("### Resuming with other settings") :]
    assert all(f"`{key}`" in section for key in MAY_CHANGE)
    known = {key for key, *_ in describe()}
    assert set(MAY_CHANGE) <= known and all(
        key in known or any(k.startswith(f"{key}.") for k in known) for key in FREE
    )


@pytest.mark.parametrize(
    "key,value",
    [
        ("train.global_batch", "384"),
        ("train.seed", "7"),
        ("train.optimizer", "lamb"),
        ("train.schedule", "cosine"),
        ("train.weight_decay", "0.1"),
        ("train.betas", "0.9,0.95"),
        ("data.lanes", "8"),
        ("model.layers", "2"),
        ("aug", "del-word"),
        ("objective", "simcse"),
        ("objective.contrastive.weight", "2"),
        ("objective.mlm.rate", "0.2"),
        ("data.cache", "1"),
        ("objective.contrastive.projection_layers", "1"),
        ("objective.mask_duplicates", "false"),
        ("model.dropout", "0"),
    ],
)
def test_what_makes_a_run_another_is_refused_by_name(key, value):
    zero = {"train.zero": "0"} if key == "train.optimizer" else {}
    with pytest.raises(UserError, match=r"another run.*--init.*train.lr") as caught:
        resumed(zero, zero | {key: value})
    full = {"aug": "augment.spec", "objective": "objective.name"}.get(key, key)
    assert f"made with {full}=" in str(caught.value)


def test_a_setting_that_is_gone_is_missed_only_where_the_objective_reads_its_section():
    """Every section is recorded, whatever the objective."""
    gone = {"vadvcse": "projection", "vascl": "grad_to_encoder"}
    for name, said in (("clear", None), ("vascl", "made with objective.vascl.grad_to_encoder=code")):
        state = {"config": load_config(None, {"objective": name}).model_dump(mode="json"), "step": 100}
        for section, key in gone.items():
            state["config"]["objective"][section][key] = "code"
        state["progress"] = {}
        now = load_config(None, {"objective": name})
        if said is None:
            record_changes(now, state, Path("step-00000100"))
            assert state["progress"]["changes"] == []
            continue
        with pytest.raises(UserError, match=f"{said}.*another run"):
            record_changes(now, state, Path("step-00000100"))


def test_a_setting_that_is_gone_is_no_change():
    state = {"config": load_config(None, {}).model_dump(mode="json"), "step": 100, "progress": {}}
    state["config"]["model"] |= {"layer_code": "own", "residual": "fp32"}
    record_changes(load_config(None, {}), state, Path("step-00000100"))
    assert state["progress"]["changes"] == []


@pytest.mark.full
def test_a_size_that_is_given_as_none_is_not_given(tiny_data, tmp_path):
    """A model that starts from another takes the other's sizes, at its start and when it is resumed."""
    tokenizer = load_tokenizer(tiny_data / "tokenizer")
    sizes = {
        "type": "bert",
        "layers": 1,
        "hidden_size": 16,
        "heads": 2,
        "max_positions": 64,
        "intermediate_size": 40,
    }
    build_encoder(sizes, tokenizer).lm.save_pretrained(tmp_path / "init")
    tokenizer.save_pretrained(tmp_path / "init")
    (tmp_path / "recipe.yaml").write_text("model: {intermediate_size: null}")

    def settings(recipe=None, **flags):
        return load_config(
            recipe, {"init": str(tmp_path / "init")} | {f"model.{key}": value for key, value in flags.items()}
        )

    started = settings(intermediate_size="none")
    starting_encoder(started, tokenizer)
    assert started.model.intermediate_size == 40
    state = {"config": started.model_dump(mode="json"), "step": 100, "progress": {}}
    for now in (
        settings(),
        settings(intermediate_size="none"),
        settings(intermediate_size="40"),
        settings(tmp_path / "recipe.yaml"),
    ):
        record_changes(now, state, Path("step-00000100"))
        assert state["progress"]["changes"] == []
    with pytest.raises(UserError, match=r"made with model\.intermediate_size=40, this command has 64"):
        record_changes(settings(intermediate_size="64"), state, Path("step-00000100"))


WSD = {"train.schedule": "wsd", "train.steps": "1000", "train.decay_steps": "200"}


@pytest.mark.parametrize(
    "before,now,changed",
    [
        ({"train.schedule": "constant"}, WSD, {"train.schedule", "train.decay_steps"}),
        (WSD, {"train.schedule": "constant"}, {"train.schedule", "train.decay_steps"}),
        (WSD, WSD | {"train.steps": "2000"}, {"train.steps"}),
        (WSD, WSD | {"train.steps": "810", "train.decay_steps": "10"}, {"train.steps", "train.decay_steps"}),
        (WSD, WSD | {"train.decay_shape": "linear"}, {"train.decay_shape"}),
    ],
)
def test_a_decay_begins_at_any_step_of_the_stable_phase_and_at_no_later_one(before, now, changed):
    assert set(resumed(before, now, step=800)) == changed
    with pytest.raises(UserError, match=r"is of step 801, and the learning rate falls from step 800.*--run"):
        resumed(before, now, step=801)
    assert resumed(WSD, WSD | {"train.lr": "1e-5"}, step=900)  # what a remedy advises is possible anywhere


@pytest.mark.full
def test_one_trunk_has_many_decays_and_is_left_as_it_was(tiny_data, tmp_path):
    """A decay from a checkpoint of the stable phase is, bitwise, the run that was to decay from the start."""
    trunk, wsd = tmp_path / "trunk", {"train__schedule": "wsd", "train__decay_steps": 3}
    finish(start(command(tiny_data, trunk, train__steps=14, **wsd, checkpoint__keep=1, evaluate__every=0)))
    kept = sorted(path.name for path in (trunk / "checkpoints").glob("step-*"))
    assert kept == ["step-00000011", "step-00000014"]  # the last one before the decay, and the newest
    before = {path: path.read_bytes() for path in trunk.rglob("*") if path.is_file()}
    point = trunk / "checkpoints" / "step-00000011"
    for steps in (13, 16):
        branch, straight = tmp_path / f"branch{steps}", tmp_path / f"straight{steps}"
        decay = wsd | {"train__steps": steps, "train__decay_steps": steps - 11, "evaluate__every": 0}
        said = finish(start(command(tiny_data, branch, **decay, checkpoint__resume=point)))
        finish(start(command(tiny_data, straight, **decay)))
        assert curve(branch) == curve(straight)
        weights = [(run / "export" / "model.safetensors").read_bytes() for run in (branch, straight)]
        assert weights[0] == weights[1]
        assert f"decay 1-sqrt over the last {steps - 11}" in said and "warning" not in said
        again = command(tiny_data, branch, **decay, checkpoint__resume=point)
        assert "with --resume auto" in finish(start(again), expect=2)
    assert before == {path: path.read_bytes() for path in trunk.rglob("*") if path.is_file()}
    refused = command(tiny_data, trunk, train__steps=20, **wsd, checkpoint__resume="auto")
    assert "Take a checkpoint of step 11 or before" in finish(start(refused), expect=2)


def test_the_rate_of_masking_may_change_for_steps_to_come_alone():
    rate, later, way = "objective.mlm.rate", "objective.mlm.later_rates", "objective.mlm.rate_change"
    falling = {rate: "0.3", later: "{100: 0.15, 900: 0.05}"}
    assert resumed({rate: "0.3"}, falling) == {
        f"{later}.100": (100, None, 0.15),
        f"{later}.900": (100, None, 0.05),
    }
    assert list(resumed(falling, {rate: "0.3", later: "{100: 0.15}"}, step=900)) == [f"{later}.900"]
    for before, now in (({rate: "0.3"}, falling), (falling, falling | {way: "linear"})):
        with pytest.raises(
            UserError, match=r"made with objective\.mlm\.(later_rates\.100|rate_change)=.*another run"
        ):
            resumed(before, now, step=101)
    with pytest.raises(UserError, match=r"objective\.mlm\.rate="):
        resumed(falling, falling | {rate: "0.2"})


def test_a_loss_may_begin_at_another_step_that_lies_ahead():
    start, rise = "objective.start_step", "objective.warmup_steps"
    assert resumed({start: "1000"}, {start: "100", rise: "50"}) == {
        start: (100, 1000, 100),
        rise: (100, 0, 50),
    }
    assert list(resumed({start: "10", rise: "20"}, {start: "29"}, step=10)) == [start, rise]
    for before, now in (
        ({start: "1000"}, {start: "99"}),
        ({}, {start: "1000"}),
        ({start: "90", rise: "20"}, {start: "90"}),
    ):
        with pytest.raises(UserError, match=r"made with objective\.(start_step|warmup_steps)=.*another run"):
            resumed(before, now)


def test_a_run_of_an_earlier_version_is_resumed_as_it_was():
    """Each objective's section had its own beginning and scope, and there were keys that are gone."""
    config = load_config(None, {"objective": "clear+sda", "objective.start_step": "1000"})
    old = config.model_dump(mode="json")
    for key in ("start_step", "warmup_steps", "scope"):
        value = old["objective"].pop(key)
        for section in ("contrastive", "sda"):
            old["objective"][section][key] = value
    old["objective"]["simcse"]["start_step"] = 5  # not in the sum
    old["objective"]["matryoshka_weights"] = []
    old["objective"]["retain"]["temperature"] = 0.05
    old["train"] |= {"balance": "on", "muon_scale": "match_rms_adamw"}
    old["train"]["faults"]["within"] = 100
    old["data"]["prepare"] |= {"bucket_megabytes": 8, "exact_vocabulary": False}
    assert validate_config(copy.deepcopy(old), "config.yaml") == config
    state = {"config": copy.deepcopy(old), "step": 100, "progress": {}}
    record_changes(config, state, Path("step-00000100"))
    assert state["progress"]["changes"] == []
    with pytest.raises(UserError, match=r"made with objective\.start_step=1000, this command has 99"):
        record_changes(
            load_config(None, {"objective": "clear+sda", "objective.start_step": "99"}),
            {"config": copy.deepcopy(old), "step": 100, "progress": {}},
            Path("step-00000100"),
        )
    told = r"contrastive.start_step=1000, objective.sda.start_step=0: all .* set objective.start_step instead"
    old["objective"]["sda"]["start_step"] = 0
    with pytest.raises(UserError, match=told):
        validate_config(copy.deepcopy(old), "config.yaml")
    del old["objective"]["sda"]["start_step"]  # a recipe that left it at 0
    with pytest.raises(UserError, match=told):
        validate_config(old, "config.yaml")


@pytest.mark.full
def test_a_loss_begun_by_a_branch_is_the_run_that_was_to_begin_it_there(tiny_data, tmp_path):
    """Bitwise. Without the branch it is, bitwise too, masked language modelling alone."""
    begins, quiet = "objective__start_step", {"train__steps": 12, "evaluate__every": 0}
    trunk, branch, straight, alone = (tmp_path / name for name in ("trunk", "branch", "straight", "alone"))
    finish(start(command(tiny_data, trunk, **quiet, **{begins: 12}, checkpoint__every=6)))
    finish(start(command(tiny_data, straight, **quiet, **{begins: 8})))
    point = trunk / "checkpoints" / "step-00000006"
    said = finish(start(command(tiny_data, branch, **quiet, **{begins: 8}, checkpoint__resume=point)))
    assert "changed    objective.start_step: 12 until step 6, 8 from now on" in said
    assert curve(branch) == curve(straight) != curve(trunk)
    finish(start(command(tiny_data, alone, **quiet, objective="mlm")))
    runs = (trunk, alone, branch, straight)
    weights = [(run / "export" / "model.safetensors").read_bytes() for run in runs]
    assert weights[0] == weights[1] != weights[2] == weights[3]


def test_settings_of_the_users_own_objective_must_stay():
    own = {"objective": "mine.py:Mine", "objective.options": "{margin: 1, rate: 2}"}
    assert resumed(own, own) == {}
    for other in ("{margin: 2, rate: 2}", "{margin: 1}", "{margin: 1, rate: 2, more: 3}"):
        with pytest.raises(UserError, match=r"objective\.options\."):
            resumed(own, own | {"objective.options": other})


def test_what_changes_nothing_is_no_change_and_auto_keeps_the_precision():
    free = {
        "train.micro_batch_tokens": "999",
        "train.zero": "0",
        "train.tf32": "off",
        "train.threads": "2",
        "train.rendezvous_seconds": "9",
        "data": "elsewhere",
        "data.workers": "0",
        "data.damaged": "skip",
        "data.prepare.max_length": "32",
        "evaluate.every": "7",
        "checkpoint.keep": "9",
    }
    assert resumed({"train.precision": "bf16"}, free) == {}
    assert resumed({}, {"objective.mlm.initial_bias": "frequencies"}) == {}
    recipe = load_config("clear_base", {})
    state = {"config": recipe.model_dump(mode="json"), "step": 9, "progress": {}}
    assert state["config"]["objective"]["mlm"].pop("initial_bias") == "frequencies"  # as earlier versions
    state["config"]["data"] |= {"damaged": "refuse", "remote_cache": 20.0}
    state["config"]["train"]["optimizer_code"] = "torch"
    record_changes(recipe, state, Path("step-00000009"))
    assert resumed({"train.precision": "bf16"}, {"train.precision": "fp32"}) == {
        "train.precision": (100, "bf16", "fp32")
    }
    assert resumed({}, {"train.steps": "2000"}) == {"train.steps": (100, 1000, 2000)}
    with pytest.raises(UserError, match=r"train\.steps=150, and .* has done 200"):
        resumed({}, {"train.steps": "150"}, step=200)


@pytest.mark.full
def test_a_finished_run_is_extended_and_a_setting_changed_with_its_step_on_record(tiny_data, tmp_path):
    run = tmp_path / "run"
    finish(start(command(tiny_data, run, train__steps=6)))
    before = curve(run)
    more = {
        "checkpoint__resume": "auto",
        "train__steps": 12,
        "objective__contrastive__temperature": 0.3,
        "train__lr": "5e-4",
    }
    output = finish(start(command(tiny_data, run, **more)))
    after = curve(run)
    assert {step: after[step] for step in before} == before and max(after) == 12
    assert "train.lr: 0.001 until step 6, 0.0005 from now on" in output
    # The rate at a step is that of a run which had these settings from the start: (12 - 6) / (12 - 2) of the
    # way is left.
    assert after[7]["lr"] == pytest.approx(5e-4 * (12 - 6) / (12 - 2))
    changed = [record for record in records(run) if "changed" in record]
    keys = {"train.steps", "objective.contrastive.temperature", "train.lr"}
    assert (
        len(changed) == 1
        and changed[0]["step"] == 6
        and {row["key"] for row in changed[0]["changed"]} == keys
    )
    state = store.read_state(store.latest(run / "checkpoints"))
    assert state["progress"]["changes"] == changed[0]["changed"] and state["config"]["train"]["steps"] == 12
    finish(start(command(tiny_data, run, **more)))  # the same command again changes nothing more
    assert [record for record in records(run) if "changed" in record] == changed


@pytest.mark.slow
def test_the_remedy_of_a_loss_that_is_not_finite_is_accepted(tiny_data, tmp_path):
    run = tmp_path / "run"
    simcse = {
        "objective__name": "simcse",
        "objective__mlm__weight": 0,
        "aug": "none",
        "train__steps": 4,
        "train__warmup_steps": 0,
    }
    finish(start(command(tiny_data, run, **simcse)))
    longer = simcse | {"checkpoint__resume": "auto", "train__steps": 30, "checkpoint__every": 0}
    output = finish(start(command(tiny_data, run, **longer, train__lr="1e37", train__clip=0)), expect=2)
    said = output[output.index("error: ") :]
    assert (
        "raise objective.simcse.temperature (now 0.05)" in said
        and "contrastive" not in said
        and "Traceback" not in output
    )
    mended = longer | {"train__lr": "1e-4", "train__clip": 0.5, "objective__simcse__temperature": 0.1}
    finish(start(command(tiny_data, run, **mended)))
    changed = {row["key"]: row["to"] for record in records(run) for row in record.get("changed", [])}
    assert changed == {
        "train.lr": 1e-4,
        "train.clip": 0.5,
        "train.steps": 30,
        "objective.simcse.temperature": 0.1,
    }
