"""Parts of saving and loading by themselves: numbers of optimizers, owners of tensors, names, and errors."""

import json
import threading
from fractions import Fraction
from types import SimpleNamespace

import pytest
import torch
from checkpoint_helpers import PlainEngine, flip, save
from torch import nn

from pretrain.checkpoint import saver as saving
from pretrain.checkpoint import store
from pretrain.checkpoint.engine_state import EngineState, Part, engine_state
from pretrain.checkpoint.folder_writer import FolderWriter, Retention, TensorEntry
from pretrain.checkpoint.saver import Item, Saver, bytes_of
from pretrain.checkpoint.store import CheckpointError, Problem, locate, quarantine


def with_state(**state) -> tuple[nn.Parameter, EngineState]:
    """Return a parameter of four numbers, and the view of an optimizer that has this state of it."""
    parameter = nn.Parameter(torch.ones(4))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    optimizer.state[parameter] |= state
    return parameter, engine_state(SimpleNamespace(module=nn.Linear(1, 1), optimizer=optimizer))


def test_moments_have_the_shape_of_their_parameter_and_numbers_are_what_else_counts():
    one = {
        "mean": torch.ones(4),
        "count": 3,
        "rate": 0.5,
        "flag": True,
        "step": torch.tensor(7.0),
        "note": "x",
    }
    parameter, view = with_state(**one, rows=torch.ones(2), single=torch.tensor([2.0]))
    assert view.moment_keys(parameter) == ["mean"]
    assert view.scalars(parameter) == {"count": 3, "rate": 0.5, "step": 7.0, "single": 2.0}
    view.inner.param_groups[0]["step"] = 9  # its own step comes first
    assert view.scalars(parameter)["step"] == 7.0
    parameter, view = with_state(mean=torch.ones(4))
    assert view.scalars(parameter) == {}
    view.inner.param_groups += [{"params": [], "step": 4}, {"params": [], "step": torch.tensor(6)}]
    assert view.scalars(parameter) == {"step": 6}  # as apex counts, per group
    stranger = nn.Parameter(torch.ones(1))
    assert view.scalars(stranger) == {} and view.moment_keys(stranger) == []


def test_state_is_made_of_zeros_for_what_was_saved_and_for_nothing_else():
    parameter, view = with_state(mean=torch.ones(4), count=3, rate=0.5, note="x")
    kept = view.inner.state[parameter]["mean"]
    view.prepare({id(parameter): ["mean", "square"]})
    state = view.inner.state[parameter]
    assert state["mean"] is kept and state["mean"].tolist() == state["square"].tolist() == [0.0] * 4
    assert (repr(state["count"]), repr(state["rate"]), state["note"]) == ("0", "0.0", "x")
    view.prepare({})
    assert parameter not in view.inner.state
    view.prepare({})  # nothing is made
    assert parameter not in view.inner.state
    view.set_scalars({id(parameter): {"step": 5}, 1: {"step": 9}})
    assert view.inner.state[parameter]["step"].dtype == torch.float32 and view.scalars(parameter) == {
        "step": 5.0
    }


def test_a_tied_weight_has_one_name_and_buffers_that_stay_are_named():
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.BatchNorm1d(2))
    module[1].weight = module[0].weight
    module.register_buffer("own", torch.ones(1))
    module.register_buffer("made", torch.ones(1), persistent=False)
    module.register_buffer("nothing", None)
    view = engine_state(SimpleNamespace(module=module, optimizer=torch.optim.SGD(module.parameters())))
    assert view.aliases() == {"1.weight": "0.weight"}
    names = ["own", "2.running_mean", "2.running_var", "2.num_batches_tracked"]
    assert [name for name, _ in view.named_buffers()] == names


@pytest.mark.parametrize("ranks", [1, 2, 3, 7])
def test_a_tensor_belongs_to_the_rank_in_whose_share_its_middle_lies(ranks):
    shapes = [(3, 4), (5,), (0,), (2, 2, 2), (100,), (1,), ()]
    sizes = [12, 5, 0, 8, 100, 1, 1]
    whole, before, expected = sum(sizes), 0, []
    for size in sizes:
        middle = Fraction(2 * before + size, 2 * whole)
        expected.append(min(ranks - 1, int(middle * ranks)))
        before += size
    assert saving._owners(shapes, ranks) == expected and saving._owners([(0,)], ranks) == [0]
    assert saving._owners([(1,)], ranks) == [ranks // 2] == saving._owners([(), (0,)], ranks)[:1]


def test_copies_take_multiples_of_64_bytes():
    def item(count, dtype=torch.float32, there=True):
        part = Part(torch.zeros(count), 0) if there else None
        return Item("parameters", TensorEntry("w", dtype, (count,)), 0, part)

    sizes = [bytes_of([item(count)]) for count in (0, 1, 16, 17)]
    assert sizes == [0, 64, 64, 128] and bytes_of([item(17, torch.float64), item(9, there=False)]) == 192
    values = item(3, torch.float16).values()
    assert values.dtype == torch.float16 and values.shape == (3,)
    saver = Saver(PlainEngine())
    parts = [Part(torch.arange(5.0), 3), Part(torch.arange(20.0), 0)]
    items = [Item("parameters", TensorEntry("w", torch.float32, (99,)), 0, part) for part in (*parts, None)]
    first, second, none = saver._copied(items)
    for copied, part in zip((first, second), parts, strict=True):
        assert copied.part.start == part.start and torch.equal(copied.part.values, part.values)
        assert copied.part.values.data_ptr() % 64 == first.part.values.data_ptr() % 64
        part.values.zero_()
    assert none.part is None and second.part.values.tolist() == list(range(20))
    kept = saver._memory
    for some in (items[:1], items):
        saver._copied(some)
        assert saver._memory is kept  # the same memory again
    saver.close()


def test_each_rank_names_its_files_behind_those_of_the_ranks_before(tmp_path):
    saver = Saver(PlainEngine(), max_file_bytes=80)
    writers, series = [0, 1, 1, 0, 1], ["parameters"] * 4 + ["buffers"]
    items = [Item(kind, TensorEntry(str(n), torch.float32, (10,)), 0, None) for n, kind in enumerate(series)]
    named = []
    for rank in (0, 1):
        files = saver._files_of(rank, items, writers)
        named.append([(name, [entry.name for entry in batch]) for name, batch in files])
    assert named[0] == [("parameters-00000.safetensors", ["0", "3"])]
    assert named[1] == [("parameters-00001.safetensors", ["1", "2"]), ("buffers-00000.safetensors", ["4"])]
    saver.max_file_bytes = 79
    assert [name for name, _ in saver._files_of(1, items, writers)] == [
        "parameters-00002.safetensors",
        "parameters-00003.safetensors",
        "buffers-00000.safetensors",
    ]
    saver.close()


@pytest.mark.parametrize("background", [True, False])
def test_a_save_that_fails_is_said_once_by_wait(background, tmp_path, monkeypatch):
    saver, release = Saver(PlainEngine()), threading.Event()
    raised = RuntimeError("a rank was lost")

    def write(*_):
        release.wait(10)
        raise raised

    monkeypatch.setattr(saver, "_write_folder", write)
    if not background:
        release.set()
        with pytest.raises(RuntimeError, match="a rank was lost"):
            saver.save(tmp_path, {"step": 1}, Retention(1), background=False)
        assert not saver.failed and not saver.in_flight
        return
    assert saver.save(tmp_path, {"step": 1}, Retention(1)) == tmp_path / "step-00000001"
    assert saver.in_flight and not saver.failed
    release.set()
    saver.close()  # raises nothing
    assert saver.failed and not saver.in_flight
    with pytest.raises(RuntimeError, match="a rank was lost"):
        saver.wait()
    assert not saver.failed
    saver.wait()
    monkeypatch.setattr(saver, "_write_folder", lambda *_: "the disk is full")
    with pytest.raises(CheckpointError, match="the disk is full"):
        saver.save(tmp_path, {"step": 2}, Retention(1), background=False)


def test_rates_and_counters_are_loaded_and_another_number_of_groups_keeps_its_own(tmp_path):
    engine = PlainEngine()
    engine.step()
    engine.optimizer.param_groups[0]["lr"] = 0.25
    engine.skipped_steps = 3
    folder = save(tmp_path, engine, {"step": 1}, keep=1)
    other = PlainEngine()
    assert store.load(folder, other) == {"step": 1}
    assert other.optimizer.param_groups[0]["lr"] == 0.25
    assert other.global_steps == 1 and not hasattr(other, "skipped_steps")  # no counter of this engine
    other = PlainEngine()
    weight, bias = other.module.parameters()
    other.optimizer = torch.optim.AdamW([{"params": [weight], "lr": 0.5}, {"params": [bias], "lr": 0.75}])
    store.load(folder, other)
    assert [group["lr"] for group in other.optimizer.param_groups] == [0.5, 0.75]


@pytest.mark.parametrize("layers", [3, 4, 6])
def test_eight_differences_of_a_model_are_named(layers, tmp_path):
    folder = save(tmp_path, PlainEngine(), {"step": 1}, keep=1)
    other = PlainEngine()
    other.module = nn.Sequential(*(nn.Linear(3, 3) for _ in range(layers)))
    other.optimizer = torch.optim.AdamW(other.module.parameters())
    with pytest.raises(CheckpointError, match="is of another model than the config builds") as refused:
        store.load(folder, other)
    said, count = str(refused.value), 2 * layers + 2
    assert said.count(" in the checkpoint, ") == min(8, count)
    assert ("; and" in said) == (count > 8) and (f"; and {count - 8} more" in said or count <= 8)
    assert "0.weight is not in the checkpoint, (3, 3) in the model" in said
    if count <= 8:
        assert "bias is (3,) in the checkpoint, not in the model" in said


def test_what_cannot_be_read_is_one_error(saved, tmp_path):
    loop = tmp_path / "loop"
    loop.symlink_to("loop")
    with pytest.raises(CheckpointError, match="cannot be read now: Too many levels"):
        store.candidates(loop)
    (tmp_path / "file").touch()
    assert store.candidates(tmp_path / "file") == store.candidates(tmp_path / "none") == []
    folder = saved / "step-00000003"
    assert locate(folder, "parameters").keys() == {"weight", "bias"} and locate(folder, "none") == {}
    (folder / "parameters-00000.safetensors").write_bytes(b"x" * 99)
    with pytest.raises(CheckpointError, match="is not a readable checkpoint"):
        locate(folder, "parameters")
    (folder / "manifest.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"step-00000003 is damaged: manifest\.json .*--resume PATH"):
        locate(folder, "parameters")
    flip(folder / "state.json")
    (folder / "state.json").write_text("[")
    with pytest.raises(CheckpointError, match="is not a readable checkpoint"):
        store.read_state(folder)


def test_names_of_checkpoints_and_of_those_set_aside(tmp_path):
    names = ["step-00000003", "step-00000012", "step-123456789", "step-00000012.replaced"]
    others = ["step-0000003", "step-00000003.tmp", ".tmp-step-00000004", "step-00000005x", "best"]
    for name in [*names, *others]:
        (tmp_path / name).mkdir()
    (tmp_path / "step-00000044").touch()  # a file
    found = ["step-123456789", "step-00000012", "step-00000012.replaced", "step-00000003"]
    assert [path.name for path in store.candidates(tmp_path)] == found
    for reason, wanted in (("damaged", ""), ("damaged", "-2"), ("damaged", "-3"), ("abandoned", "")):
        path = tmp_path / "step-00000003"
        path.mkdir(exist_ok=True)
        assert quarantine(path, reason).name == f"step-00000003.{reason}{wanted}" and not path.exists()
    assert quarantine(tmp_path / "step-00000012.replaced", "damaged").name == "step-00000012.replaced.damaged"
    assert len(store.quarantined_folders(tmp_path)) == 5


SOUND = {"bytes": 3, "sha256": "0" * 64}


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"state.json": SOUND | {"bytes": "3"}}, "lists state.json without"),
        ({"state.json": SOUND | {"sha256": "0" * 63}}, "lists state.json without"),
        ({"state.json": SOUND, "../a": SOUND}, "lists ../a"),
        ({"state.json": SOUND, "a" * 202: SOUND}, "lists aaa"),
        ({"a.json": {}}, "not a checkpoint's manifest"),
    ],
)
def test_a_manifest_lists_files_by_name_size_and_sum(files, said):
    found = store._parse_manifest(json.dumps({"format_version": 1, "files": files}).encode())
    assert isinstance(found, Problem) and found.kind == "damaged" and said in found.what

    def parsed(version, listed):
        return store._parse_manifest(json.dumps({"format_version": version, "files": listed}).encode())

    for version in ("1", None, 1.0):
        assert "not a checkpoint's manifest" in parsed(version, {"state.json": SOUND}).what
    good = {"state.json": SOUND, "a" * 201: {"bytes": 0, "sha256": "f" * 64}}
    assert parsed(0, good) == parsed(1, good) == good


def test_problems_say_what_to_do():
    ways = {kind: Problem(kind, "x").remedy for kind in ("damaged", "unreadable", "newer")}
    last = "To continue without it, name an earlier one with --resume PATH"
    assert all(way.endswith(last) for way in ways.values()) and ways["damaged"] == last
    assert "same command again" in ways["unreadable"] and "this program that wrote it" in ways["newer"]
    assert str(Problem("newer", "y")) == "is of a newer format: y"


def test_a_failed_save_says_what_is_left(tmp_path):
    writer = FolderWriter(tmp_path / "step-00000005")
    writer.hidden.mkdir()
    assert "There is no earlier one. Free" in writer.discard("full") and not writer.hidden.exists()
    (tmp_path / "step-00000003").mkdir()
    (tmp_path / "step-00000004").mkdir()
    said = writer.discard("full")
    assert said.startswith(f"could not write checkpoint step-00000005 under {tmp_path}: full.")
    assert "step-00000004 is untouched" in said


def test_the_config_of_the_language_model_is_found_with_its_prefix():
    class Model(nn.Linear):
        config = SimpleNamespace(to_json_string=lambda all_keys: json.dumps({"all": all_keys}))

        def save_pretrained(self):
            pass

    model = Model(1, 1)
    assert saving._hugging_face_config(nn.ModuleDict({"a": nn.ModuleDict({"lm": model})})) == {
        "prefix": "a.lm.",
        "config": {"all": False},
    }
    assert saving._hugging_face_config(model)["prefix"] == ""
    assert saving._hugging_face_config(nn.Linear(1, 1)) is None
