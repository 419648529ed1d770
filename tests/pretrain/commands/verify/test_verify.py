"""The ledger of real runs: the same for any ranks, compared at a resume, and verified from the data alone."""

import hashlib
import json
import random
import shutil
import tarfile
from pathlib import Path

import pytest
import torch
from run_helpers import command, finish, kill, outputs_of, records, reproducible_records, start, wait_for
from safetensors.torch import load_file, save_file

from pretrain.checkpoint import store as checkpoint_folder
from pretrain.commands.verify.__main__ import verify
from pretrain.commands.verify.files import check_chain, check_files
from pretrain.commands.verify.replay import Replay
from pretrain.common.errors import UserError
from pretrain.common.files import sha256_of
from pretrain.config.recipe import load_config
from pretrain.data.shards import ShardReader
from pretrain.export.sums import write_sums
from pretrain.telemetry.metrics_file import NO_LINES, chained

CLEAR = {"objective__name": "clear", "train__log_every": 2, "checkpoint__keep": 9}


def ledgers(run: Path) -> dict[int, dict]:
    return {row["step"]: row["ledger"] for row in records(run) if "ledger" in row}


@pytest.fixture(scope="module")
def whole(tiny_data, tmp_path_factory) -> Path:
    run = tmp_path_factory.mktemp("verified") / "run"
    finish(start(command(tiny_data, run, **CLEAR)))
    return run


@pytest.mark.full
def test_the_ledger_is_the_same_for_ranks_micro_batches_workers_and_kills(tiny_data, whole, tmp_path):
    expected = ledgers(whole)
    assert list(expected) == [1, 2, 4, 6, 8, 10]
    assert len({row[kind] for row in expected.values() for kind in ("sequences", "views")}) == 12
    other = {"train__micro_batch_tokens": 64, "data__workers": 0}
    finish(start(command(tiny_data, tmp_path / "two", **CLEAR, **other), ranks=2))
    assert ledgers(tmp_path / "two") == expected
    killed = tmp_path / "killed"
    processes = start(command(tiny_data, killed, **CLEAR, data__workers=2))
    wait_for(lambda: (killed / "checkpoints" / "step-00000006").exists(), processes)
    kill(processes)
    said = finish(start(command(tiny_data, killed, **CLEAR, data__workers=2, checkpoint__resume="auto")))
    assert "is as recorded (sequences, views)" in said
    assert ledgers(killed) == expected


@pytest.mark.parametrize("views", [False, True])
def test_a_run_is_verified_from_its_data_alone(whole, capsys, views):
    assert verify(whole, views=views, workers=1) == 0
    said = capsys.readouterr().out
    assert "steps 1 to 10: every batch" in said and "6 rows of metrics.jsonl" in said
    assert "step-00000009" in said and "best" in said
    assert verify(whole, views=views, workers=0, **{"from": "5", "to": "8"}) == 0
    assert "steps 5 to 8:" in capsys.readouterr().out


def test_a_run_has_the_rows_checkpoints_and_rates_that_its_recipe_says(whole):
    rows = records(whole)
    of_steps = [row for row in rows if "loss" in row]
    assert [row["step"] for row in of_steps] == [1, 2, 4, 6, 8, 10]
    assert [row["step"] for row in rows if "evaluation" in row] == [0, 4, 8, 10]
    assert [row["steps"] for row in of_steps] == [1, 1, 2, 2, 2, 2] and of_steps[-1]["skipped_steps"] == 0
    # two steps of warm-up to 1e-3, then evenly to 0 at step 10, which would be the next
    rates = [5e-4, 1e-3, *(1e-3 * (10 - step) / 8 for step in range(2, 10))]
    assert [row["lr"] for row in of_steps] == pytest.approx([rates[row["step"] - 1] for row in of_steps])
    kept = {
        checkpoint_folder.step_of(path): checkpoint_folder.read_state(path)["progress"]
        for path in checkpoint_folder.candidates(whole / "checkpoints")
    }
    assert {3, 6, 9, 10} <= kept.keys() <= {3, 4, 6, 8, 9, 10}  # those of 4 and 8 if they were the best
    assert all(state["step"] == step for step, state in kept.items())
    for row in of_steps:
        assert row["step"] not in kept or kept[row["step"]]["tokens"] == row["tokens"]


def test_the_last_update_of_a_run_is_adamws_at_the_rate_of_its_step(whole):
    """By the checkpoints before it and behind it: the gradient is what the first moment took in."""
    train = load_config(whole / "config.yaml", {}).train
    (first, second), rate, count = train.betas, train.lr / 8, 10
    before, after = (
        {
            series: dict(checkpoint_folder.read_tensors(whole / "checkpoints" / f"step-{step:08d}", series))
            for series in ("parameters", "exp_avg", "exp_avg_sq")
        }
        for step in (9, 10)
    )
    squares = 0.0
    for name, parameter in before["parameters"].items():
        means, variances = (
            [at[moment][name].double() for at in (before, after)] for moment in list(before)[1:]
        )
        gradient = (means[1] - first * means[0]) / (1 - first)
        squares += float(gradient.square().sum())
        expected = second * variances[0] + (1 - second) * gradient**2
        torch.testing.assert_close(variances[1], expected, rtol=1e-3, atol=1e-12)
        step = means[1] / (1 - first**count) / ((variances[1] / (1 - second**count)).sqrt() + train.eps)
        decayed = parameter.double() * (1 - rate * train.weight_decay * (parameter.ndim > 1))
        moved = after["parameters"][name].double()
        torch.testing.assert_close(moved, decayed - rate * step, rtol=5e-7, atol=2e-8, msg=name)
    largest = max(row["gradient_norm_max"] for row in records(whole) if "loss" in row)
    assert 0 < squares**0.5 <= min(train.clip, largest) + 1e-5


def edited_lines(lines: list[str], draw: random.Random) -> list[str]:
    """Return the lines of metrics.jsonl after an edit that is drawn: of a row, or of the order of rows."""
    first, second = sorted(draw.sample(range(len(lines)), 2))
    row = json.loads(lines[first])
    kind = draw.choice(
        ["number", "space", "double", "swap", "delete", "cut", "unlink", "unlink all", "insert"]
    )
    if kind == "number":  # a loss, a score, a time: any of them
        digits = [at for at, one in enumerate(lines[first][:-45]) if one.isdecimal()]
        at = draw.choice(digits)
        return [*lines[:first], lines[first][:at] + str(9 - int(lines[first][at])) + lines[first][at + 1 :],
                *lines[first + 1 :]]  # fmt: skip
    if kind == "space":
        return [*lines[:first], lines[first].replace(": ", ":", 1), *lines[first + 1 :]]
    if kind == "double":
        return [*lines[:second], lines[first], *lines[second:]]
    if kind == "swap":
        lines[first], lines[second] = lines[second], lines[first]
        return lines
    if kind == "delete":
        return lines[:first] + lines[first + 1 :]
    if kind == "cut":
        return lines[:second]
    row.pop("link")
    if kind == "insert":
        return [*lines[:second], json.dumps(row) + "\n", *lines[second:]]
    unlinked = [json.dumps({k: v for k, v in json.loads(one).items() if k != "link"}) + "\n" for one in lines]
    return unlinked if kind == "unlink all" else [*lines[:first], unlinked[first], *lines[first + 1 :]]


def plant(run: Path, draw: random.Random) -> str:
    """Change something in the folder of a run; return what."""
    kind = draw.choice(["rows"] * 4 + ["settings", "tokenizer"] + ["weights"] * 4)
    if kind == "rows":
        path = run / "metrics.jsonl"
        path.write_text("".join(edited_lines(path.read_text().splitlines(keepends=True), draw)))
        return "metrics.jsonl"
    if kind == "settings":
        path = run / "config.yaml"
        path.write_text(
            path.read_text().replace("  lr: 0.001", "  lr: 0.002") + draw.choice(["", "# a note"])
        )
        return "train.lr is 0.002, and was 0.001"
    if kind == "tokenizer":
        path = run / "tokenizer" / "tokenizer.json"
        path.write_text(path.read_text().replace("river", "rivet", 1))
        return "tokenizer.json"
    folder = draw.choice([*checkpoint_folder.candidates(run / "checkpoints"), run / "best", run / "export"])
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "README.md")
    path = draw.choice(files)
    content = bytearray(path.read_bytes())
    content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    path.write_bytes(content) if draw.random() < 0.9 else path.unlink()
    return folder.name


@pytest.mark.full
def test_each_of_100_planted_edits_is_noticed(whole, tmp_path):
    for seed in range(100):
        run = shutil.copytree(whole, tmp_path / "run")
        what = plant(run, random.Random(seed))
        try:
            faults, _ = check_files(run)
            assert what in "\n".join(faults), (seed, what)
        except UserError as error:  # no settings can be read, or no sums of an export
            assert what in str(error), (seed, what)
        shutil.rmtree(run)


def test_a_line_that_is_lost_or_doubled_is_named_and_not_what_follows_from_it():
    lines, places, place = [], {}, NO_LINES
    for step in range(1, 8):
        line, place = chained({"step": step}, place)
        lines.append(line)
        places[f"step-{step}"] = place
    assert not list(check_chain(lines, places))
    what = "is changed, or lines before it are gone"
    for n in range(6):
        others = {name: place for name, place in places.items() if name != f"step-{n + 1}"}
        lost = list(check_chain(lines[:n] + lines[n + 1 :], others))
        assert lost == [f"line {n + 1} of metrics.jsonl (step {n + 2}) {what}"]
        doubled = list(check_chain(lines[: n + 1] + lines[n:], places))
        assert doubled == [f"line {n + 2} of metrics.jsonl (step {n + 1}) {what}"]
    assert list(check_chain(lines[:6], places)) == [
        "step-7 records 7 lines of metrics.jsonl, and the last of them is not there"
    ]


def test_an_edited_file_is_named_beside_the_batches(whole, tmp_path, capsys):
    run = shutil.copytree(whole, tmp_path / "run")
    weights = run / "best" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    del lines[4]
    (run / "metrics.jsonl").write_text("".join(lines))
    assert verify(run) == 1
    said = capsys.readouterr().out
    assert "best/model.safetensors is changed or gone" in said and "every batch is as recorded" in said
    assert "line 5 of metrics.jsonl (step 4) is changed, or lines before it are gone" in said


def test_weights_that_no_cosine_follows_from_are_named(whole, tmp_path):
    run, file = shutil.copytree(whole, tmp_path / "run"), "parameters-00000.safetensors"

    def seal_checkpoint(folder: Path) -> None:
        manifest = json.loads((folder / "manifest.json").read_text())
        now = {"bytes": (folder / file).stat().st_size, "sha256": sha256_of(folder / file)}
        manifest["files"][file] |= now
        (folder / "manifest.json").write_text(json.dumps(manifest))

    checkpoint = checkpoint_folder.latest(run / "checkpoints")
    for path, seal in (
        (run / "best" / "model.safetensors", write_sums),
        (checkpoint / file, seal_checkpoint),
    ):
        tensors = load_file(path)
        name = next(name for name, values in tensors.items() if values.ndim == 2)
        tensors[name][0, 0] = 1e37
        save_file(tensors, path, {"format": "pt"})
        seal(path.parent)
        *_, fault = check_files(run)[0]
        assert fault.startswith(f"{path.parent.name}/{path.name}: {name} has NaN, infinity or numbers whose")
        shutil.rmtree(path.parent)


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("  lr: 0.001", "  lr: 0.002", "train.lr is 0.002, and was 0.001"),
        ("\n", "\n# a note\n", "its text differs"),
    ],
)
def test_settings_that_changed_since_the_last_start_are_named(whole, tmp_path, old, new, what):
    run = shutil.copytree(whole, tmp_path / "run")
    settings = run / "config.yaml"
    settings.write_text(settings.read_text().replace(old, new, 1))
    assert check_files(run)[0] == [f"config.yaml is not as the run wrote it: {what}"]


@pytest.mark.full
def test_what_a_resume_leaves_or_makes_anew_is_no_damage(tiny_data, whole, tmp_path, capsys):
    """export/ of an abandoned end, a card that was edited, and a best/ that is the start again."""
    run, branch, lone = (tmp_path / name for name in ("run", "branch", "lone"))
    shutil.copytree(whole, run)
    point = run / "checkpoints" / "step-00000006"
    shutil.copytree(point, lone / "checkpoints" / point.name)
    (run / "stop").touch()
    finish(start(command(tiny_data, run, **CLEAR, checkpoint__resume=point)))
    policy = json.loads((run / "best" / "clear.json").read_text()) | {"step": 0, "progress": {"step": 0}}
    (run / "best" / "clear.json").write_text(json.dumps(policy))
    write_sums(run / "best")
    (run / "best" / "README.md").write_text("Ours.")
    assert check_files(run)[0] == []
    said = capsys.readouterr().out
    assert "export is of an abandoned end" in said

    point = lone / "checkpoints" / point.name  # its metrics.jsonl is not there
    finish(start(command(tiny_data, branch, **CLEAR, checkpoint__resume=point)))
    assert verify(branch) == 0
    said = capsys.readouterr().out
    assert said.count("every file as the run wrote it") == 1


def with_another_row(whole: Path, run: Path, step: int) -> Path:
    """Copy a run, with a row of metrics that says something else of the batches."""
    shutil.copytree(whole, run)
    path = run / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        if row["step"] == step and "ledger" in row:
            row["ledger"]["sequences"] = "0" * 32
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return run


def test_the_first_row_that_differs_is_named(whole, tmp_path, capsys):
    run = with_another_row(whole, tmp_path / "run", 4)
    assert verify(run) == 1
    said = capsys.readouterr().out
    assert (
        "step 4: the sequences are not as recorded (row of step 4); before it every batch is as recorded"
        in said
    )


def change_a_token(data: Path, copy: Path, sequence: int) -> Path:
    """Copy prepared data, with another token in a sequence of it, and a manifest that agrees."""
    shutil.copytree(data, copy)
    reader = ShardReader(data)
    chunk = int((reader._first.astype(int) <= sequence).sum()) - 1
    row = sequence - int(reader._first[chunk])
    place = int(reader.read(chunk).stored.offsets[row]) + 1
    manifest = json.loads((copy / "manifest.json").read_text())
    summary = manifest["splits"]["train"]["shards"][int(reader._shard[chunk])]
    shard = copy / summary["file"]
    first = int((reader._shard < reader._shard[chunk]).sum())
    entry = summary["chunks"][chunk - first]
    with tarfile.open(shard) as tar:
        member = next(m for m in tar if m.offset >= entry[0] and ".tokens." in m.name)
    content = bytearray(shard.read_bytes())
    at = member.offset_data + 2 * place
    content[at] ^= 1
    shard.write_bytes(content)
    entry[4] = hashlib.sha256(content[entry[0] : entry[0] + entry[1]]).hexdigest()
    summary["sha256"] = hashlib.sha256(content).hexdigest()
    (copy / "manifest.json").write_text(json.dumps(manifest))
    return copy


def sequences_of(run: Path, step: int) -> list[int]:
    """The sequences of a step, counted from 1."""
    replay = Replay(load_config(run / "config.yaml", {}), [])
    ((_, chunk, index),) = replay.draws(step - 1, step)
    return (replay.first_of_chunk[chunk] + index).ravel().tolist()


def test_one_changed_token_is_found(tiny_data, whole, tmp_path, capsys):
    data = change_a_token(tiny_data, tmp_path / "data", sequences_of(whole, 5)[3])
    assert verify(whole, data=str(data)) == 1
    said = capsys.readouterr().out
    assert "steps 5 to 6: the sequences are not as recorded" in said and "before it every batch" in said
    assert verify(whole, views=True, workers=0, data=str(data)) == 1
    assert "steps 5 to 6: the sequences and views are not" in capsys.readouterr().out


def test_bytes_that_changed_are_named(tiny_data, whole, tmp_path, capsys):
    shutil.copytree(tiny_data, tmp_path / "data")
    shard = next((tmp_path / "data" / "train").glob("*.tar"))
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    assert verify(whole, data=str(tmp_path / "data")) == 1
    assert "cannot be read now: Damaged shard" in capsys.readouterr().out


def edit_state(checkpoint: Path, edit) -> None:
    """Change a checkpoint's state, and its manifest with it."""
    path, listed = checkpoint / "state.json", checkpoint / "manifest.json"
    state = json.loads(path.read_text())
    edit(state["state"])
    content = json.dumps(state).encode()
    path.write_bytes(content)
    old = json.loads(listed.read_text())
    (files,) = [part for part in (old, old.get("files")) if isinstance(part, dict) and "state.json" in part]
    files["state.json"] |= {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    listed.write_text(json.dumps(old))
    assert checkpoint_folder.problem_with(checkpoint) is None


def at_step_6(whole: Path, run: Path, edit) -> Path:
    """Copy a run as it was at step 6, with another state in the checkpoint."""
    shutil.copytree(whole, run)
    for path in checkpoint_folder.candidates(run / "checkpoints"):
        if checkpoint_folder.step_of(path) > 6:
            shutil.rmtree(path)
    edit_state(run / "checkpoints" / "step-00000006", edit)
    return run


def test_a_resume_does_the_steps_that_are_left_and_leaves_the_run_as_if_it_had_never_ended(
    tiny_data, whole, tmp_path
):
    run = at_step_6(whole, tmp_path / "run", lambda state: None)
    said = finish(start(command(tiny_data, run, **CLEAR, checkpoint__resume="auto")))
    assert "is as recorded (sequences, views)" in said
    assert reproducible_records(run) == reproducible_records(whole) and verify(run, workers=0) == 0
    last = [folder / "export" / "model.safetensors" for folder in (run, whole)]
    assert last[0].read_bytes() == last[1].read_bytes()


@pytest.mark.full
def test_a_resume_refuses_other_sequences_and_goes_on_when_told(tiny_data, whole, tmp_path):
    """The inputs' hashes, which would be the first to refuse, are made to agree."""
    data = change_a_token(tiny_data, tmp_path / "data", sequences_of(whole, 6)[0])
    reader = ShardReader(data)

    def edit(state):
        for name in ("shards", "manifest"):
            del state["inputs"][name]

    run = at_step_6(whole, tmp_path / "run", edit)
    assert reader.content_hash != ShardReader(tiny_data).content_hash
    words = command(data, run, **CLEAR, checkpoint__resume="auto")
    (said,) = outputs_of(processes := start(words), 240)
    assert processes[0].returncode == 2
    assert "the batch of step 6, made again, is not the one" in said and "its sequences have" in said
    assert "--checkpoint.accept batches" in said
    said = finish(start([*words, "--checkpoint.accept", "batches"]))
    assert "changed    batches: sequences" in said
    state = checkpoint_folder.read_state(run / "checkpoints" / "step-00000010")
    assert [change["key"] for change in state["progress"]["changes"]] == ["batches"]
    assert ledgers(run)[6] == ledgers(whole)[6]


def test_a_resume_refuses_other_views_on_all_ranks(tiny_data, whole, tmp_path):
    def edit(state):
        state["progress"]["ledger"]["last"]["views"] = "ab" * 16

    run = at_step_6(whole, tmp_path / "run", edit)
    processes = start(command(tiny_data, run, **CLEAR, checkpoint__resume="auto"), ranks=2)
    said = "".join(outputs_of(processes, 240))  # one of the ranks prints it
    assert [process.returncode for process in processes] == [2, 2]
    assert "its views have the hash" in said and "augmentation or masking" in said


def test_what_cannot_be_verified_is_one_error(whole, tmp_path):
    with pytest.raises(UserError, match="is not the folder of a run"):
        verify(tmp_path)
    with pytest.raises(UserError, match="--from x: a step"):
        verify(whole, **{"from": "x"})
    with pytest.raises(UserError, match="--from 11 is after the last step, 10"):
        verify(whole, **{"from": "11"})
