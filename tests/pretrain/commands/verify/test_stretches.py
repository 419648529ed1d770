"""Stretches of real runs are done again: the same bits, and every planted edit is found where it is.

Edits are sealed: manifests, sums, digests and the chain of rows are made to agree again, as a forger would.
Only what the steps themselves give can tell then.
"""

import hashlib
import json
import math
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from forked_python import forked_children
from run_helpers import command, environment, finish, outputs_of, records, start
from safetensors.torch import load_file, save_file
from test_verify import change_a_token, sequences_of

from pretrain.checkpoint import store
from pretrain.commands.verify import stretches
from pretrain.commands.verify.__main__ import verify
from pretrain.common.errors import UserError
from pretrain.config.recipe import as_yaml
from pretrain.data.shards import ShardReader
from pretrain.export.sums import write_sums
from pretrain.start import continuity
from pretrain.step.progress import Progress
from pretrain.telemetry.metrics_file import NO_LINES, chained

pytestmark = pytest.mark.full
FLAGS = {
    "objective__name": "clear",
    "train__steps": 9,
    "train__log_every": 2,
    "checkpoint__keep": 9,
    "checkpoint__every": 4,
    "checkpoint__background": "false",
    "train__lr": 1.0,  # no evaluation is better than the first
    "model__layers": 1,
    "model__hidden_size": 16,
    "track": "none",
}


@pytest.fixture(autouse=True)
def children():
    """Processes of this module are forks that have imported the project."""
    with forked_children():
        yield


@pytest.fixture(scope="module")
def kept(tiny_data, tmp_path_factory) -> Path:
    """A run with all its checkpoints: of steps 4, 8 and 9."""
    run = tmp_path_factory.mktemp("kept") / "run"
    finish(start(command(tiny_data, run, **FLAGS)))
    return run


def bytes_of(folder: Path) -> dict[str, tuple[bytes, int]]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


def test_all_stretches_give_the_same_bits_and_the_run_is_only_read(kept, capsys):
    before = bytes_of(kept)
    assert verify(kept, replay=5, replay_seed=7) == 0
    said = capsys.readouterr().out
    assert "doing 3 of 3 stretches again, chosen by --replay-seed 7: 9 steps" in said
    for steps in ("1 to 4", "5 to 8", "9 to 9"):
        assert f"steps {steps}: as recorded, bit for bit\n" in said
    assert "best/ of step 0: as the run starts\nexport/ of step 9: as its checkpoint\n" in said
    assert bytes_of(kept) == before


def test_best_that_a_resume_has_made_again_is_as_the_run_starts(kept, tmp_path, steps_once, capsys):
    """It records no evaluation. An average with the start is said to be none of these."""
    run = shutil.copytree(kept, tmp_path / "run")
    edit_export(run / "best", lambda policy: policy.update(progress=asdict(Progress())))
    assert verify(run, replay=3) == 0
    assert "best/ of step 0: as the run starts\n" in capsys.readouterr().out
    edit_export(run / "best", lambda policy: policy.update(average={"start": "base", "alpha": 0.5}))
    assert verify(run, replay=3) == 0
    assert "best/ of step 0: not compared: it is an average with the start\n" in capsys.readouterr().out


def test_the_choice_is_the_seeds(kept, capsys, monkeypatch):
    done = []
    monkeypatch.setattr(
        stretches, "do_again", lambda run, one, *others: done.append(one.begin) or "no memory"
    )
    for seed in (1, 1, 5, 7):
        assert verify(kept, replay=1, replay_seed=seed) == 1
        assert "not as recorded, compared bit for bit\n  no memory\n" in capsys.readouterr().out
    assert done[0] == done[1] and set(done) == {0, 4, 8}
    verify(kept, replay=2)
    assert "2 of 3 stretches again, chosen by --replay-seed" in capsys.readouterr().out


def test_what_cannot_be_done_again_is_said_with_what_keeps_it(kept, tmp_path, capsys):
    run = shutil.copytree(kept, tmp_path / "run")
    shutil.rmtree(run / "checkpoints" / "step-00000004")
    assert verify(run, replay=1) == 0
    said = capsys.readouterr().out
    assert "steps 1 to 8 cannot be done again: no checkpoint between them is kept (checkpoint.keep 9)" in said
    assert "--checkpoint.keep_every N" in said and "steps 9 to 9: as recorded, bit for bit" in said
    last = run / "checkpoints" / "step-00000009"
    edit(last, lambda content: content["state"].update(world_size=1000))
    with pytest.raises(UserError, match=r"no steps of .* can be done again"):
        verify(run, replay=1)
    assert "steps 9 to 9 cannot be done again: 1000 ranks did them, and" in capsys.readouterr().out
    edit(last, lambda content: content["state"]["progress"].update(rollbacks=[{"from": 8, "to": 9}]))
    with pytest.raises(UserError, match="no steps of"):
        verify(run, replay=1)


def test_on_another_processor_a_stated_tolerance_holds(kept, tmp_path, steps_once, capsys):
    """The run is of another one, and its weights are somewhat off, as sums in another order make them."""
    for off, good in ((1e-3, True), (0.1, False)):
        run = shutil.copytree(kept, tmp_path / f"run {off}")
        for path in store.candidates(run / "checkpoints"):
            edit(path, lambda content: content["state"]["machine"].update(device="Abacus 9"))
        last, before = (run / "checkpoints" / f"step-0000000{step}" for step in (9, 8))
        assert verify(run, replay=3, replay_seed=0) == 0
        within = "steps 9 to 9: as recorded, within 1%: Abacus 9 did them, this is"
        assert within in capsys.readouterr().out
        origins = tensors_of(before)
        edit_tensors(last, lambda name, now: now + off * (now - origins[name]))  # noqa: B023
        edit_weights(run / "best", lambda weights: {name: (1 + off) * w for name, w in weights.items()})  # noqa: B023
        assert verify(run, replay=3, replay_seed=0) == 1  # export/ is no more that of the checkpoint
        said = capsys.readouterr().out
        assert good == ("step-00000009: parameters are" not in said)
        assert good == ("best/ of step 0: as the run starts\n" in said)
        if not good:
            assert "best/ of step 0: model.safetensors are 9.09% of their way from" in said
            assert "step-00000009: parameters are 9.09% of their way from where the steps lead" in said


def test_a_run_of_two_ranks_is_done_again_by_two(tiny_data, tmp_path):
    run = tmp_path / "run"
    finish(start(command(tiny_data, run, **FLAGS | {"checkpoint__every": 5}), ranks=2))
    words = [
        sys.executable,
        "-m",
        "pretrain.commands.verify",
        str(run),
        "--replay",
        "1",
        "--replay-seed",
        "1",
    ]
    with subprocess.Popen(words, env=environment(), stdout=subprocess.PIPE, text=True) as process:
        (said,) = outputs_of([process], 200)
    assert process.returncode == 0 and "as recorded, bit for bit" in said


# -- planted edits ------------------------------------------------------------------


def edit(checkpoint: Path, change: Callable[[dict], object]) -> None:
    """Change what state.json of a checkpoint holds, and its manifest with it."""
    path = checkpoint / "state.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    seal(checkpoint)


def seal(checkpoint: Path) -> None:
    path = checkpoint / "manifest.json"
    manifest = json.loads(path.read_text())
    for name, entry in manifest["files"].items():
        content = (checkpoint / name).read_bytes()
        entry |= {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    path.write_text(json.dumps(manifest))
    assert store.problem_with(checkpoint) is None


def tensors_of(checkpoint: Path, series: str = "parameters") -> dict[str, torch.Tensor]:
    return dict(store.read_tensors(checkpoint, series))


def edit_tensors(
    checkpoint: Path, change: Callable[[str, torch.Tensor], torch.Tensor], series: str = "parameters"
) -> None:
    for path in checkpoint.glob(f"{series}-*"):
        save_file({name: change(name, tensor) for name, tensor in load_file(path).items()}, path)
    seal(checkpoint)


def edit_rows(run: Path, change: Callable[[list[dict]], list[dict]]) -> None:
    """Change the rows of metrics, chain them again, and let checkpoints and exports record that."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    links, place, places, lines = [row["link"] for row in rows], NO_LINES, {}, []
    for row in change(rows):
        old = row.pop("link", "")
        line, place = chained(row, place)
        lines.append(line)
        places[old] = place
    (run / "metrics.jsonl").write_bytes(b"".join(lines))

    def move(progress: dict) -> None:  # to the line before, where its own is gone
        before = links[: links.index(progress["rows"]["link"]) + 1]
        progress["rows"] = next(places[link] for link in reversed(before) if link in places)

    for checkpoint in store.candidates(run / "checkpoints"):
        edit(checkpoint, lambda content: move(content["state"]["progress"]))
    for name in ("best", "export"):
        edit_export(run / name, lambda policy: move(policy["progress"]))


def edit_export(folder: Path, change: Callable[[dict], object]) -> None:
    policy = json.loads((folder / "clear.json").read_text())
    change(policy)
    (folder / "clear.json").write_text(json.dumps(policy))
    write_sums(folder)


def edit_weights(folder: Path, change: Callable[[dict], dict]) -> None:
    path = folder / "model.safetensors"
    save_file(change(load_file(path)), path, {"format": "pt"})
    write_sums(folder)


def edit_settings(run: Path, key: str, value: object) -> None:
    """Let the run say everywhere that a setting was another."""

    def change(config: dict) -> None:
        *sections, name = key.split(".")
        for section in sections:
            config = config[section]
        assert config[name] != value
        config[name] = value

    for checkpoint in store.candidates(run / "checkpoints"):
        edit(checkpoint, lambda content: change(content["state"]["config"]))
    config = store.read_state(checkpoint)["config"]
    (run / "config.yaml").write_text(as_yaml(config))
    digest = hashlib.sha256(as_yaml(config).encode()).hexdigest()
    for name in ("best", "export"):
        edit_export(run / name, lambda policy: policy.update(recipe=config))
    edit_rows(
        run, lambda rows: [row | {"config_sha256": digest} if "config_sha256" in row else row for row in rows]
    )


EXPORT_FILES = "config.json", "tokenizer_config.json", "training_config.yaml", "adapter_model.safetensors"
SETTINGS = {
    "train.lr": 0.0011, "train.weight_decay": 0.02, "train.betas": [0.9, 0.97], "train.eps": 2e-6,
    "train.warmup_steps": 3, "train.schedule": "cosine", "train.steps": 11, "model.dropout": 0.2,
    "objective.mlm.rate": 0.2, "objective.mlm.mask": 0.7, "augment.spec": "del-word", "model.pooling": "cls",
    "evaluate.partners": 23, "evaluate.heldout_sequences": 23, "data.lanes": 8,
}  # fmt: skip
NOT_AS_RECORDED = r"steps \d to \d: (not as recorded|cannot be done)[^\n]*\n  \S"


def plant(kind: str, run: Path, data: Path, draw: random.Random, last: bool) -> tuple[str, Path]:
    """Change something of a run and let all else agree; return a pattern of what is said then, and the data.

    last: in the last checkpoint, from which no stretch begins.
    """
    checkpoint = draw.choice(store.candidates(run / "checkpoints")[: 1 if last else None])
    name = checkpoint.name

    def rows_of(key: str) -> list[int]:
        rows = records(run)
        return [number for number, row in enumerate(rows) if key in row]

    if kind in ("parameters", "exp_avg", "exp_avg_sq"):
        tensors = tensors_of(checkpoint, kind)
        chosen = draw.choice(sorted(tensors))
        place, bit = draw.randrange(tensors[chosen].numel()), draw.randrange(32)

        def flip(name: str, tensor: torch.Tensor) -> torch.Tensor:
            if name == chosen:
                tensor.view(-1).view(torch.int32)[place] ^= torch.tensor(1 << bit).to(torch.int32)
            return tensor

        edit_tensors(checkpoint, flip, kind)
        return rf"{name}: {kind} {re.escape(chosen)}: 1 of [\d,]+ numbers differ, as number {place}:", data
    if kind == "progress":
        key = draw.choice(
            ["tokens", "skipped_steps", "best_score", "best_step", "faults", "jumped", "changes"]
        )

        def change(content: dict) -> None:
            progress = content["state"]["progress"]
            old = progress[key]
            more = {
                "faults": 3,
                "jumped": [1, 2],
                "changes": {"step": 0, "key": "train.lr", "from": 1, "to": 2},
            }
            progress[key] = [*old, more[key]] if key in more else old + draw.choice([1, 7])

        edit(checkpoint, change)
        return rf"{name}: state.progress.{key}[.\d]* is .*, and the steps give ", data
    if kind == "optimizer":

        def change(content: dict) -> None:
            steps = content["optimizer"]["scalars"]["step"]
            steps[draw.choice(sorted(steps))] += draw.choice([-1, 1])

        edit(checkpoint, change)
        return rf"{name}: optimizer.scalars.step\S* is \d+(\.0)?, and the steps give ", data
    if kind == "window":  # sums of the row that the checkpoint cuts

        def change(content: dict) -> None:
            progress = content["state"]["progress"]
            progress["window"] = {"loss": {"total": [draw.random(), 1]}}

        edit(checkpoint, change)
        return rf"{name}: (state.progress.window\S* is|\d+ more values)", data
    if kind == "ledger":

        def change(content: dict) -> None:
            ledger = content["state"]["progress"]["ledger"]
            ledger[draw.choice(["sequences", "views"])] = f"{draw.getrandbits(128):032x}"

        edit(checkpoint, change)
        return rf"{name}: state.progress.ledger.\w+ is [0-9a-f]+, and the steps give [0-9a-f]+", data
    if kind == "inputs":
        edit(checkpoint, lambda content: content["state"]["inputs"]["shards"].update(sha256="0" * 64))
        return rf"{name}: state.inputs.shards.sha256 is 0+", data
    if kind in ("loss", "evaluation"):
        number = draw.choice([number for number, row in enumerate(records(run)) if kind in row])
        key = draw.choice(sorted(records(run)[number][kind]))

        def nudge(rows: list[dict]) -> list[dict]:
            rows[number][kind][key] = math.nextafter(rows[number][kind][key], math.inf)
            return rows

        edit_rows(run, nudge)
        return rf"metrics.jsonl, {kind} of step {records(run)[number]['step']}: {kind}.{key} is ", data
    if kind == "rows":
        number = draw.choice([number for number, row in enumerate(records(run)) if "loss" in row])
        count = draw.choice([0, 2])
        edit_rows(
            run,
            lambda rows: [*rows[:number], *[dict(rows[number]) for _ in range(count)], *rows[number + 1 :]],
        )
        return rf"metrics.jsonl, loss of step \d: there are {count} such rows, and the steps give 1", data
    if kind == "export":
        folder = run / draw.choice(["best", "export"])

        def nudge_one(weights: dict) -> dict:
            weights[draw.choice(sorted(weights))].view(-1)[0] += 1
            return weights

        edit_weights(folder, nudge_one)
        return (
            rf"{folder.name}/ of step \d+: model.safetensors is not what (step-\d+|the start) exports to",
            data,
        )
    if kind == "order":  # of two rows
        steps = rows_of("loss")
        first, second = draw.choice([(0, 1), (3, 4)])  # of one stretch
        first, second = steps[first], steps[second]

        def swap(rows: list[dict]) -> list[dict]:
            rows[first], rows[second] = rows[second], rows[first]
            return rows

        edit_rows(run, swap)
        return r"metrics.jsonl: rows of steps \d to \d are in another order", data
    if kind == "export file":
        path = run / "export" / draw.choice(EXPORT_FILES)
        path.write_text((path.read_text() if path.is_file() else "more weights") + "\n")
        write_sums(path.parent)
        return rf"export/ of step 9: {path.name} is not ", data
    if kind == "recipe":  # of one checkpoint alone
        edit(
            checkpoint,
            lambda content: content["state"]["config"]["objective"]["simcse"].update(temperature=0.9),
        )
        return rf"{name} has other settings than those whose digest metrics.jsonl has", data
    if kind in ("setting", "seed"):
        key = "train.seed" if kind == "seed" else draw.choice(sorted(SETTINGS))
        edit_settings(run, key, draw.randrange(40) if kind == "seed" else SETTINGS[key])
        return NOT_AS_RECORDED, data
    assert kind == "data"
    copy = change_a_token(data, run.with_name("data"), draw.choice(sequences_of(run, draw.randrange(1, 10))))
    reader = ShardReader(copy)
    digests = {"shards": reader.content_hash, "manifest": continuity._manifest_hash(reader)}
    for checkpoint in store.candidates(run / "checkpoints"):
        edit(
            checkpoint,
            lambda content: [content["state"]["inputs"][k].update(sha256=digests[k]) for k in digests],
        )
    return NOT_AS_RECORDED, copy


AFTERWARDS = (
    *("parameters", "exp_avg", "exp_avg_sq", "progress", "optimizer", "window", "ledger", "inputs", "loss"),
    *("evaluation", "rows", "order", "export", "export file", "recipe"),
)
"""Kinds of edits by which no step gives anything else."""
BEFORE = "setting", "seed", "data"


@pytest.fixture(scope="module")
def steps_once(kept) -> Iterator[None]:
    """Do the steps up to a checkpoint once for all tests with the same settings and data."""
    done: dict[str, str] = {}
    do_again = stretches.do_again

    def cached(run, stretch, recipe, folder, overrides) -> str:
        key = json.dumps([stretch.after.config, sorted(overrides.items()), stretch.after.step])
        copy = Path(cache) / hashlib.sha256(key.encode()).hexdigest()
        if key not in done:
            done[key] = do_again(run, stretch, recipe, folder, overrides)
            if folder.exists():
                shutil.copytree(folder, copy)
        elif copy.exists():
            shutil.copytree(copy, folder, dirs_exist_ok=True)
        return done[key]

    with TemporaryDirectory() as cache, pytest.MonkeyPatch.context() as patch:
        patch.setattr(stretches, "do_again", cached)
        assert verify(kept, replay=3) == 0
        yield


def missed(kept: Path, data: Path, folder: Path, kind: str, seed: int, capsys, last: bool = False) -> str:
    """Plant an edit in a copy of a run; return what is said where it is not found, else ""."""
    run, given = shutil.copytree(kept, folder / "run"), {}
    pattern, copy = plant(kind, run, data, random.Random(seed), last)
    if copy != data:
        given["data"] = str(copy)
    count = 1 if kind in ("setting", "seed") else 3
    with pytest.MonkeyPatch.context() as patch:
        if "export" not in kind:  # seconds
            patch.setattr(stretches, "_different_export", lambda *others: (True, []))
        capsys.readouterr()
        status = verify(run, replay=count, replay_seed=seed, **given)
    said = capsys.readouterr().out
    shutil.rmtree(folder)
    return "" if status == 1 and re.search(pattern, said) else f"{kind}, seed {seed}: {pattern}\n{said}"


@pytest.mark.full
def test_a_run_that_is_sealed_anew_without_an_edit_is_as_recorded(kept, tmp_path, steps_once):
    run = shutil.copytree(kept, tmp_path / "run")
    edit_rows(run, lambda rows: rows)
    assert verify(run, replay=3) == 0


def test_an_edit_of_each_kind_that_steps_do_not_read_is_found(kept, tiny_data, tmp_path, steps_once, capsys):
    for seed, kind in enumerate(AFTERWARDS):
        assert not missed(kept, tiny_data, tmp_path / "copy", kind, seed, capsys, last=True)


@pytest.mark.slow
def test_each_of_100_sealed_edits_is_found(kept, tiny_data, tmp_path, steps_once, capsys):
    kinds = AFTERWARDS + BEFORE
    tries = [(kinds[seed % len(kinds)], seed) for seed in range(100)]
    said = [missed(kept, tiny_data, tmp_path / "copy", kind, seed, capsys) for kind, seed in tries]
    assert not list(filter(None, said))
