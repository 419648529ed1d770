"""Parts of a start alone: precision, token counts, prompts, data that is refused, signal, checkpoints."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from exactness_worker import FakeTokenizer

from augment.core.ragged import Ragged
from pretrain.common.errors import UserError
from pretrain.config.recipe import load_config
from pretrain.data.manifest import MANIFEST
from pretrain.data.shards import DamagedShard
from pretrain.model.encoder import build_encoder
from pretrain.model.pooling import sif_weights
from pretrain.start import checkpoints, data, devices, encoder, resume
from pretrain.start.checkpoints import Checkpoints
from pretrain.start.data import Data, check_parts, find_data, require_different_views, require_signal
from pretrain.start.encoder import count_tokens, weigh_by_frequency
from pretrain.start.evaluation import require_sts, sets_of
from pretrain.step.progress import Progress


def config(name=None, **flags):
    return load_config(name, {key.replace("__", "."): str(value) for key, value in flags.items()})


# -- devices


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def test_auto_is_what_the_run_used_before_or_what_the_machine_is_made_for(no_gpu, monkeypatch):
    monkeypatch.setattr(devices, "native_precision", lambda: "bf16")
    monkeypatch.setattr(devices, "fitting_micro_batch", lambda *given: given)
    state = {"config": {"train": {"precision": "fp32", "micro_batch_tokens": 333}}}
    auto = config(train__precision="auto", train__micro_batch_tokens="auto")
    opened = SimpleNamespace(train=SimpleNamespace(max_length=48), tokenizer="tokens")
    assert devices.choose_precision(auto, None) == "bf16"
    assert devices.choose_precision(auto, state) == "fp32"
    assert devices.choose_micro_batch(auto, state, opened) == 333
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 3)
    assert devices.choose_micro_batch(auto, None, opened) == (auto, "tokens", 48, 3, 0)
    given = config(train__precision="bf16", train__micro_batch_tokens=512)
    assert (
        devices.choose_precision(given, state) == "bf16"
        and devices.choose_micro_batch(given, state, opened) == 512
    )


def test_float16_is_for_gpus(no_gpu, monkeypatch):
    with pytest.raises(UserError, match=r"fp16 is for GPUs"):
        devices.choose_precision(config(train__precision="fp16"), None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert devices.choose_precision(config(train__precision="fp16"), None) == "fp16"


@pytest.mark.parametrize("deterministic, memory", [("true", 1000), ("false", 400)])
def test_others_memory_decides_no_bits_of_a_deterministic_run(monkeypatch, deterministic, memory):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (400, 1000))
    monkeypatch.setattr(devices, "host_group", lambda: None)
    monkeypatch.setattr(devices, "gathered", lambda value, group: [2000, value, 3000])
    monkeypatch.setattr(devices, "fitting_micro_batch", lambda *given: given[-1])
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 3)
    opened = SimpleNamespace(train=SimpleNamespace(max_length=48), tokenizer="tokens")
    auto = config(train__micro_batch_tokens="auto", train__deterministic=deterministic)
    assert devices.choose_micro_batch(auto, None, opened) == memory


def test_a_processor_is_named(no_gpu, monkeypatch):
    monkeypatch.setattr(
        Path, "read_text", lambda path: "flags\t: x\nmodel name\t: A B 3 @ 2\nmodel name\t: C\n"
    )
    assert devices.device_name() == "A B 3 @ 2"
    monkeypatch.setattr(Path, "read_text", lambda path: "processor: 0\n")
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    assert devices.device_name() == "riscv64"


# -- the encoder's data


def reader(*chunks: list[list[int]] | None):
    """Chunks of sequences; None: one that is damaged."""

    def read(number):
        if chunks[number] is None:
            raise DamagedShard("shard-0.tar", number, "gone")
        return SimpleNamespace(stored=Ragged.from_sequences(chunks[number]))

    return SimpleNamespace(num_chunks=len(chunks), read=read)


def test_tokens_are_counted_in_chunks_evenly_spread_without_damaged_ones():
    few = reader([[1, 2, 2]], None, [[2], [3, 3, 3]])
    assert count_tokens(few, 6).tolist() == [0, 1, 3, 3, 0, 0]
    many = reader(*([[number]] for number in range(100)))
    chosen = np.flatnonzero(count_tokens(many, 100))
    assert len(chosen) == 32 and chosen[0] == 0 and chosen[-1] == 99 and set(np.diff(chosen)) == {3, 4}
    assert count_tokens(many, 100).max() == 1


def test_weights_by_frequency_are_of_the_counts_and_need_some():
    one = SimpleNamespace(vocab_size=5, token_weights=None)
    weigh_by_frequency(one, reader([[1, 1, 1, 2]]))
    expected = torch.from_numpy(sif_weights(np.array([0, 3, 1, 0, 0])))
    assert one.token_weights.dtype == torch.float32 and torch.equal(one.token_weights, expected.float())
    assert one.token_weights[1] < one.token_weights[2]
    with pytest.raises(UserError, match=r"no token of the data can be read"):
        weigh_by_frequency(one, reader(None, None))


@pytest.mark.parametrize("part, way", [("retain", "give --init, or set"), ("distill", "a teacher: set")])
def test_a_distilling_objective_needs_a_model(part, way):
    settings = config(objective=f"mlm+{part}")
    assert getattr(settings.objective, part).model is None
    with pytest.raises(UserError) as error:
        encoder.check_sources(settings)
    assert f"objective {part} needs" in str(error.value) and f"objective.{part}.model" in str(error.value)
    assert ("--init" in str(error.value)) == (part == "retain")


@pytest.mark.parametrize("pooling, refused", [("cls", True), ("mean", False)])
def test_token_weights_need_a_mean(pooling, refused):
    settings = config(model__token_weights="sif", model__pooling=pooling)
    if not refused:
        return encoder.check_sources(settings)
    with pytest.raises(UserError, match=r"model.pooling is cls"):
        encoder.check_sources(settings)


# -- data


def test_the_del_token_that_preparation_added_is_told_from_the_models_own(monkeypatch):
    class Tokens(list):
        def get_vocab(self):
            return {name: number for number, name in enumerate(self)}

    with_del = Tokens(["a", "b", "[DEL]"])
    for own, added in ((Tokens("ab"), True), (with_del, False), (None, False)):
        monkeypatch.setattr(data, "own_tokenizer", lambda start, own=own: own)
        assert data._added_del(with_del, "model") == added
        assert not data._added_del(Tokens(["a", "[DEL]", "b"]), "model") and not data._added_del(
            Tokens("ab"), "model"
        )


def test_prompts_are_for_views_that_are_made():
    settings = config(data__prompts="{anchor: 'query: '}")
    data._check_prompts(settings, ["anchor", "positive"])
    with pytest.raises(
        UserError, match=r"data\.prompts\.anchor: no view of clear has that role; .*: positive, augmented"
    ):
        data._check_prompts(settings, ["positive", "augmented"])
    with pytest.raises(UserError, match=r"there are: none"):
        data._check_prompts(settings, [])
    with_diffcse = config(objective="diffcse", data__prompts="{anchor: 'query: '}")
    with pytest.raises(UserError, match=r"diffcse would replace tokens of a prompt"):
        data._check_prompts(with_diffcse, ["anchor", "positive"])
    data._check_prompts(config(objective="diffcse"), ["anchor", "positive"])


def prepared(folder: Path, **held) -> Path:
    folder.mkdir(parents=True)
    (folder / MANIFEST).write_text(json.dumps(held))
    return folder


@pytest.fixture
def preparation(monkeypatch):
    """Record the preparations that are requested, and do none."""
    asked = SimpleNamespace(made=[], cached=[], copied=[])
    monkeypatch.setattr(data, "find_or_prepare", lambda *given: asked.made.append(given))
    monkeypatch.setattr(data.cached_views, "make", lambda *given: asked.cached.append(given))
    monkeypatch.setattr(data, "copy_prepared", lambda *given: asked.copied.append(given))
    monkeypatch.setattr(data, "read_manifest", lambda folder: json.loads((folder / MANIFEST).read_text()))
    return asked


def test_sets_must_be_there_and_nothing_is_prepared_for_them(tmp_path, preparation):
    first = prepared(tmp_path / "first")
    several = config(data__sets=f"[{{folder: {first}}}, {{folder: {tmp_path / 'second'}}}]")
    with pytest.raises(
        UserError, match=r"second holds no prepared data. Prepare it: clearly prepare --source"
    ):
        find_data(several, [])
    prepared(tmp_path / "second")
    find_data(several, [])
    assert preparation.made == []


def test_a_named_folder_without_data_or_sources_is_refused(tmp_path, preparation):
    prepared(tmp_path / "corpus")
    with pytest.raises(UserError, match=r"holds no prepared data; did you mean \S*/corpus\? To prepare"):
        find_data(config(data__folder=tmp_path / "corpsu"), [])
    with pytest.raises(UserError, match=r"holds no prepared data\. To prepare your text"):
        find_data(config(data__folder=tmp_path / "entirely-different"), [])
    there = config(data__folder=tmp_path / "corpus")
    find_data(there, [])
    assert preparation.made == [(tmp_path / "corpus", there.data.prepare)] and preparation.cached == []
    sources = config(data__folder=tmp_path / "new", data__prepare__sources="[a.txt]")
    find_data(sources, [])
    assert preparation.made[1] == (tmp_path / "new", sources.data.prepare)


def test_data_is_prepared_by_the_tokenizer_of_the_start_and_cached_where_asked(tmp_path, preparation):
    flags = {"data__folder": tmp_path / "new", "data__prepare__sources": "[a.txt]"}
    find_data(config(**flags, model__init="some/model"), [])
    find_data(config(**flags, model__init="some/model", data__prepare__tokenizer="other"), [])
    assert [recipe.tokenizer for _, recipe in preparation.made] == ["some/model", "other"]
    assert preparation.cached == []
    cached = config(**flags, data__cache=2)
    views = [data.ViewSpec("positive", "del-span")]
    find_data(cached, views)
    assert preparation.cached == [(cached, views)]
    remote = config(data__folder=prepared(tmp_path / "copy"), data__remote="https://host/data")
    find_data(remote, [])
    assert preparation.copied == [("https://host/data", tmp_path / "copy")]


def test_a_folder_of_the_recipes_name_with_other_sources_is_refused(tmp_path, preparation, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = config(name=None, data__prepare__sources="[{source: a.txt, weight: 2}, {source: b.txt}]")
    held = [one.model_dump(mode="json") for one in settings.data.prepare.sources]
    folder = settings.data_folder
    find_data(settings, [])  # nothing there yet
    folder.mkdir(parents=True, exist_ok=True)

    def holding(sources):
        (folder / MANIFEST).write_text(json.dumps({"config": {"sources": sources}}))

    for same in (held, [], [{"source": "a.txt"}, held[1]], [held[0] | {"former": 3}, held[1]]):
        holding(same)
        find_data(settings, [])
    for other in (held[:1], held[::-1], [held[0] | {"weight": 1.0}, held[1]], [*held, held[0]]):
        holding(other)
        with pytest.raises(UserError, match=r"holds data that was prepared from .*sources says a.txt, b.txt"):
            find_data(settings, [])
    assert len(preparation.made) == 5


def test_files_that_are_missing_are_refused_or_warned_of(monkeypatch, capsys):
    def require(folder, manifest):
        if manifest == "bad":
            raise UserError(f"{folder} lacks a shard")

    monkeypatch.setattr(data, "require_files", require)
    monkeypatch.setattr(
        data, "outdated", lambda folder, manifest: f"{folder} is old" if folder == "b" else ""
    )
    parts = [SimpleNamespace(folder=name, manifest=kind) for name, kind in (("a", "good"), ("b", "bad"))]
    with pytest.raises(
        UserError, match=r"b lacks a shard; or train without what cannot be read: --data.damaged skip"
    ):
        check_parts(SimpleNamespace(parts=parts), "refuse")
    check_parts(SimpleNamespace(parts=parts), "skip")
    said = capsys.readouterr().err.splitlines()
    assert said == [
        "WARNING: b lacks a shard. data.damaged is skip: chunks that cannot be read are replaced",
        "WARNING: b is old",
    ]


def test_what_exports_say_of_a_start_is_its_interface_and_its_tokens():
    opened = Data(*[None] * 4, tokenizer=[0] * 7, vocabulary=None, synonyms=None, inputs={}, interface=None)
    assert opened.of_start == {"interface": {}, "tokens": 7}


# -- the signal of two views


@pytest.mark.parametrize("signal, warned", [(0.0499, True), (0.05, False)])
def test_a_signal_below_the_least_is_warned_of_with_the_remedies(signal, warned):
    class Needs:
        def __init__(self):
            self.steps = []

        def needs_views(self, step):
            self.steps.append(step)
            return True

    for pooling, view_dropout, dropout in (("cls", "true", 0.1), ("mean", "false", 0.1), ("mean", "true", 0)):
        flags = {
            "model__pooling": pooling,
            "objective__view_dropout": view_dropout,
            "model__dropout": dropout,
        }
        settings, said, needs = config(train__steps=9, model__attention_dropout=dropout, **flags), [], Needs()
        require_signal(settings, needs, signal, said.append)
        assert len(said) == warned and (not warned or needs.steps == [8])
        for text in said:
            assert f"signal to noise {signal:.3f}, pooling {pooling}" in text
            assert ("--model.pooling mean" in text) == (pooling == "cls")
            assert ("--objective.view_dropout false" in text) == (view_dropout == "true" and dropout > 0)
    stops = config(train__faults__dead_loss="stop")
    if warned:
        with pytest.raises(UserError, match=r"will not learn"):
            require_signal(stops, needs, signal, said.append)
    idle = SimpleNamespace(needs_views=lambda step: False)
    require_signal(stops, idle, 0.0, said.append)


def test_same_views_are_allowed_where_no_term_compares_them():
    same = {"objective": "simcse", "augment__spec": "none", "augment__excerpt": "none"}
    views = [
        SimpleNamespace(role=role, column="text", augmentation="none") for role in ("anchor", "positive")
    ]
    opened = SimpleNamespace(views=views, train=SimpleNamespace(columns=("text",)))
    term = SimpleNamespace(compared=("anchor", "positive"))
    spec = SimpleNamespace(prompt=lambda role: None)
    for name, flags, refused in (
        ("simcse", {"model__dropout": 0, "model__attention_dropout": 0}, True),
        ("simcse", {"objective__view_dropout": "false"}, True),
        ("simcse", {"model__pooling": "words"}, True),
        ("simcse", {"model__dropout": 0}, False),  # attention's is left
        ("simcse", {"model__attention_dropout": 0}, False),
        ("simcse", {"objective__view_dropout": "false", "objective__simcse__weight": 0}, False),
        ("distill", {"objective__view_dropout": "false"}, False),
        ("Mine", {"objective__view_dropout": "false"}, False),
    ):
        terms = SimpleNamespace(terms={name: term})
        settings = config(**same, **flags)
        if refused:
            with pytest.raises(
                UserError, match=r"objective simcse compares views of a sentence that are the same"
            ):
                require_different_views(settings, opened, terms, spec)
        else:
            require_different_views(settings, opened, terms, spec)
    settings = config(**same, objective__view_dropout="false")
    prompted = SimpleNamespace(prompt=lambda role: np.arange(3) if role == "anchor" else None)
    require_different_views(settings, opened, SimpleNamespace(terms={"simcse": term}), prompted)
    views[1].augmentation = "del-word"
    require_different_views(settings, opened, SimpleNamespace(terms={"simcse": term}), spec)


# -- evaluation


def test_a_set_may_not_take_the_name_of_a_score(tmp_path):
    (tmp_path / "a.tsv").write_text("sentence1\tsentence2\tscore\na\tb\t1\nc\td\t2\ne\tf\t2\n")
    for name in (
        "heldout_mlm_loss",
        "partner_found",
        "partner_loss",
        "stsb-dev",
        "partner_among",
        "view_signal",
    ):
        with pytest.raises(UserError, match=f"every run has a score {name}"):
            sets_of(config(evaluate__sets=f"{{{name}: {tmp_path / 'a.tsv'}}}").evaluate)
    own = {"evaluate__sets": f"{{mine: {tmp_path / 'a.tsv'}}}", "evaluate__sts": tmp_path}
    (one,) = sets_of(config(**own, evaluate__best_by="mine").evaluate)
    assert one.name == "mine" and len(one.first) == 3
    for known in ("stsb-dev", "heldout_mlm_loss", "partner_loss"):
        assert len(sets_of(config(**own, evaluate__best_by=known).evaluate)) == 1
    with pytest.raises(UserError, match=r"evaluate.best_by"):
        sets_of(config(**own, evaluate__best_by="other").evaluate)


def test_a_named_folder_of_benchmarks_has_the_dev_set(tmp_path):
    require_sts(None)
    with pytest.raises(UserError, match=r"has no SentEval/STS/STSBenchmark"):
        require_sts(tmp_path)


# -- checkpoints


class Engine:
    """An engine whose model has the weights given."""

    def __init__(self, *values):
        self.module = torch.nn.ParameterDict({f"p{n}": torch.full((2,), v) for n, v in enumerate(values)})


@pytest.mark.parametrize(
    "flags, due",
    [
        ({"checkpoint__every": 4}, {4, 8, 12, 16, 20}),
        ({"checkpoint__every": 0}, set()),
        ({"checkpoint__every": 0, "train__schedule": "wsd", "train__decay_steps": 5}, {15}),
        ({"checkpoint__every": 9, "train__schedule": "wsd", "train__decay_steps": 5}, {9, 15, 18}),
        ({"checkpoint__every": 9, "train__schedule": "cosine"}, {9, 18}),
    ],
)
def test_checkpoints_are_due_every_so_many_steps_and_before_a_decay(flags, due):
    settings = config(train__steps=20, train__warmup_steps=2, **flags)
    kept = Checkpoints(settings, Engine(1.0), {})
    assert {step for step in range(1, 21) if kept.due(step)} == due
    kept.close()


def test_weights_that_are_not_finite_are_a_fault_of_the_step(monkeypatch):
    def view(engine):
        return SimpleNamespace(
            part=lambda parameter, _: None if parameter.isnan().any() else SimpleNamespace(values=parameter),
            named_parameters=engine.module.named_parameters,
        )

    monkeypatch.setattr(checkpoints, "engine_state", view)
    progress = Progress(step=40, faults=[3, 33, 39])
    sound = Checkpoints(config(), Engine(1.0, float("nan"), 2.0), {})  # a part that this rank does not hold
    sound.require_finite_weights(progress)
    broken = Checkpoints(config(), Engine(1.0, float("inf")), {})
    with pytest.raises(checkpoints.OverBudget) as fault:
        broken.require_finite_weights(progress)
    assert (fault.value.step, fault.value.since) == (40, 33)
    assert "the norm of the weights is not finite after step 40" in fault.value.what
    assert not fault.value.finding.again
    progress.faults = []
    with pytest.raises(checkpoints.OverBudget) as fault:
        broken.require_finite_weights(progress)
    assert fault.value.since == 40
    for one in (sound, broken):
        one.close()


def test_a_folder_that_cannot_be_made_is_one_error(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "tokenizer").mkdir()
    with pytest.raises(UserError, match=r"cannot write .*; name another with --run"):
        resume._make_run_folder(tmp_path / "file" / "run", tmp_path / "tokenizer")
    resume._make_run_folder(tmp_path / "run", tmp_path / "tokenizer")
    assert (tmp_path / "run" / "checkpoints").is_dir() and (tmp_path / "run" / "tokenizer").is_dir()


def test_a_resume_names_a_folder_or_a_word(tmp_path):
    for named in ("auto", "never", str(tmp_path)):
        resume.check_requested(config(checkpoint__resume=named))
    with pytest.raises(UserError, match=r"there is no such checkpoint"):
        resume.check_requested(config(checkpoint__resume=tmp_path / "none"))


@pytest.mark.parametrize("exact, again", [("true", "false"), ("false", "true")])
def test_a_starting_encoder_is_as_the_recipe_says(exact, again):
    flags = {"model__layers": 1, "model__hidden_size": 8, "model__heads": 2, "model__max_positions": 32}
    flags |= {
        "model__attention": "exact" if exact == "true" else "fast",
        "train__activation_checkpointing": again,
    }
    built = encoder.starting_encoder(config(**flags, train__seed=5), FakeTokenizer())
    assert built.exact_attention == (exact == "true")
    assert built.lm.is_gradient_checkpointing == (again == "true")
    torch.manual_seed(5)
    other = build_encoder(config(**flags).model.architecture(), FakeTokenizer(), "mean")
    for name, value in other.lm.state_dict().items():
        assert torch.equal(value, built.lm.state_dict()[name]), name
    encoder.starting_encoder(config(**flags, train__micro_batch_tokens=32), FakeTokenizer())
    with pytest.raises(UserError, match=r"micro_batch_tokens must be model.max_positions=32 or more"):
        encoder.starting_encoder(config(**flags, train__micro_batch_tokens=31), FakeTokenizer())
