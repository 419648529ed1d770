"""Bad input ends in one clear message, status 2 and nothing lost; by the command, as a user meets it."""

import json
import os
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch.distributed as dist
from loader_helpers import write_folder
from run_helpers import command, curve, finish, free_port, outputs_of, records, start, start_rank, wait_for

from augment.core.ragged import Ragged
from pretrain.checkpoint import store
from pretrain.common.errors import UserError
from pretrain.config.recipe import RECIPES, load_config
from pretrain.data.damage import known_damaged
from pretrain.data.lanes import Lanes
from pretrain.data.shard_writer import write_manifest
from pretrain.data.shards import DamagedShard, ShardReader
from pretrain.start.data import Data, find_data, report_damage
from pretrain.step.heldout import read_sound
from pretrain.step.progress import Progress
from pretrain.telemetry.run import Telemetry


def refused(words: list[str], *needles: str) -> str:
    output = finish(start(words), expect=2)
    errors = output[output.index("error: ") :]
    for needle in needles:
        assert needle in errors, errors
    assert "Traceback" not in output
    return output


def test_unknown_flag_names_the_nearest(tiny_data, tmp_path):
    refused(
        command(tiny_data, tmp_path / "run", train__learning_rat="1"),
        "train.learning-rat",
        "did you mean --train.lr?",
    )
    assert not (tmp_path / "run").exists()


def test_stray_word(tiny_data, tmp_path):
    refused([*command(tiny_data, tmp_path / "run"), "del-span"], "unexpected word 'del-span'")


def test_missing_corpus(tmp_path):
    output = refused(
        command(tmp_path / "data", tmp_path / "run", data__prepare__sources=str(tmp_path / "no.txt")),
        "failed",
    )
    assert str(tmp_path / "no.txt") in output


def test_data_that_is_not_there_names_the_nearest_and_the_command(tiny_data, tmp_path):
    near = tiny_data.parent / f"{tiny_data.name}s"
    refused(
        command(near, tmp_path / "run"),
        f"--data {near} holds no prepared data; did you mean {tiny_data}?",
        f"clearly prepare --source FILES --out {near}",
    )


def test_a_column_that_is_missing_is_one_error_of_one_rank(tiny_data, tmp_path):
    flags = {"objective__name": "simcse", "objective__simcse__hard_negatives": "true"}
    processes = start(command(tiny_data, tmp_path / "run", **flags), ranks=2)
    outputs = outputs_of(processes, 240)
    assert [process.returncode for process in processes] == [2, 2]
    assert "".join(outputs).count("has no column 'negative'") == 1 and "Traceback" not in "".join(outputs)


def test_data_of_the_recipes_name_that_is_of_other_sources(tiny_data, tmp_path, monkeypatch):
    """Without --data a run's data is in data/NAME, and may be of what was asked for before."""
    monkeypatch.chdir(tmp_path)
    folder = shutil.copytree(tiny_data, tmp_path / "data" / "demo")
    manifest = json.loads((folder / "manifest.json").read_text())
    (held,) = manifest["config"]["sources"]
    held["a key of an older version"] = None
    write_manifest(folder, manifest)

    def found(**flags: str) -> None:
        find_data(load_config(RECIPES / "demo.yaml", flags), [])

    for others in ("new.txt", f"{held['source']},new.txt", f"{held['source']}@2"):
        with pytest.raises(UserError, match=r"data/demo holds .*, and data\.prepare\.sources"):
            found(**{"data.prepare.sources": others})
    found()
    found(**{"data.prepare.sources": held["source"]})
    found(**{"data.prepare.sources": "new.txt"}, data="data/demo")


def test_benchmarks_that_are_not_there(tmp_path):
    words = command(tmp_path / "data", tmp_path / "run", data__prepare__sources="embedded")
    refused([*words, "--eval-data", str(tmp_path / "nowhere")], "nowhere has no SentEval/STS/STSBenchmark")
    assert not (tmp_path / "data").exists() and not (tmp_path / "run").exists()


def test_a_checkpoint_that_is_not_there(tmp_path):
    words = command(tmp_path / "data", tmp_path / "run", checkpoint__resume="maybe")
    refused(words, "--resume maybe", "auto, never")
    assert not (tmp_path / "data").exists() and not (tmp_path / "run").exists()


def test_longer_sequences_than_positions(tiny_data, tmp_path):
    """Before any rank starts: of data that are there, and of data that would be prepared first."""
    wanted = "sequences of up to 48 tokens, and the model takes 32 (model.max_positions): give "
    for data, flags, needles in (
        (tiny_data, {}, (f"{tiny_data} has", "prepare it with max_length 32")),
        (tmp_path / "none", {"data__prepare__sources": "embedded", "data__prepare__max_length": 48},
         ("data.prepare.max_length makes", "or --data.prepare.max_length 32")),
    ):  # fmt: skip
        words = command(data, tmp_path / "run", model__max_positions=32, **flags)
        assert "loading torch" not in refused(words, wanted, "--model.max_positions 48", *needles)
    assert not (tmp_path / "run").exists() and not (tmp_path / "none").exists()


@pytest.mark.full
def test_a_run_is_not_overwritten_and_data_is_not_exchanged(tiny_data, tmp_path):
    run = tmp_path / "run"
    finish(start(command(tiny_data, run, train__steps=3)))
    before = (run / "metrics.jsonl").read_bytes()
    refused(command(tiny_data, run, train__steps=3), str(run), "--resume auto", "--run")
    refused(
        command(tiny_data, run, train__steps=3, checkpoint__resume="auto", train__global_batch=32),
        "train.global_batch=16",
    )
    other = tmp_path / "other"
    shutil.copytree(tiny_data, other)
    tokenizer = json.loads((other / "tokenizer" / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"] = dict(reversed(tokenizer["model"]["vocab"].items()))
    first, second = list(tokenizer["model"]["vocab"])[:2]
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    (other / "tokenizer" / "tokenizer.json").write_text(json.dumps(tokenizer))
    refused(command(other, tmp_path / "run2"), "is not that of the shards", str(other))
    assert (run / "metrics.jsonl").read_bytes() == before


def flip(path, position):
    content = bytearray(path.read_bytes())
    content[position] ^= 0xFF
    path.write_bytes(content)


def flip_chunk_of(data, step, lane):
    """Damage the chunk that a lane of the tiny run is in the middle of at a step; returns its number."""
    reader = ShardReader(data)
    lanes = Lanes(reader.chunk_sizes, 42, 16, 4)
    before, chunk = (
        int(lanes.draw_steps(number, number + 1, lane, lane + 1)[0][0]) for number in (step - 1, step)
    )
    assert before == chunk
    flip(data / reader._files[reader._shard[chunk]], int(reader._offset[chunk]) + 1500)
    return chunk


def warnings_of(run):
    return [(record["step"], record["warning"]) for record in records(run) if "warning" in record]


@pytest.mark.full
def test_damaged_shard_is_refused_by_name_or_skipped_and_written_down(tiny_data, tmp_path):
    data, run = tmp_path / "data", tmp_path / "skip"
    shutil.copytree(tiny_data, data)
    chunk = flip_chunk_of(data, 1, lane=3)
    flags = {"train__steps": 4, "checkpoint__every": 0, "evaluate__every": 0}
    refused(
        command(data, tmp_path / "refuse", **flags),
        str(data / "train"),
        f"chunk {chunk}",
        "--data.damaged skip",
    )
    # rank 1 serves lanes 2 and 3, rank 0 writes
    finish(start(command(data, run, data__damaged="skip", **flags), ranks=2))
    listed = store.read_state(store.latest(run / "checkpoints"))["progress"]["substitutions"]
    assert (chunk, 3) in {(row["chunk"], row["lane"]) for row in listed}
    assert len(warnings_of(run)) == len(listed)
    assert all(f"chunk {chunk} is damaged" in text for _, text in warnings_of(run))


@pytest.mark.full
def test_damage_and_repair_between_two_starts_are_said_and_the_data_stay(tiny_data, tmp_path):
    """Damaged while the run stood still, then repaired while it stood still: both are warned of, the record
    decides."""
    data, run, again = (tmp_path / name for name in ("data", "run", "again"))
    shutil.copytree(tiny_data, data)
    sound = {path: path.read_bytes() for path in data.glob("*/*.tar")}
    flags = {
        "data__damaged": "skip",
        "train__steps": 8,
        "evaluate__every": 0,
        "checkpoint__every": 2,
        "checkpoint__keep": 9,
    }

    def cut_back(folder, step):
        for later in (folder / "checkpoints").glob("step-*"):
            if int(later.name[5:]) > step:
                shutil.rmtree(later)

    finish(start(command(data, run, **flags)))
    whole = curve(run)
    cut_back(run, 4)
    chunk = flip_chunk_of(data, 4, lane=2)
    finish(start(command(data, run, **flags, checkpoint__resume="auto")))
    warnings = warnings_of(run)
    assert (
        warnings[0][0] == 5
        and f"chunk {chunk} is damaged" in warnings[0][1]
        and "from step 5 on (earlier steps may have read the chunk itself)" in warnings[0][1]
    ), warnings
    damaged = curve(run)
    assert damaged[5]["loss"] != whole[5]["loss"]

    shutil.copytree(run, again)
    cut_back(again, 6)
    for path, content in sound.items():
        path.write_bytes(content)
    output = finish(start(command(data, again, **flags, checkpoint__resume="auto")))
    assert "stay replaced, also if they have been repaired" in output
    assert curve(again) == damaged


@pytest.mark.full
def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_checkpoint(tiny_data, tmp_path):
    run = tmp_path / "run"
    refused(
        command(
            tiny_data,
            run,
            train__lr="1e15",
            train__clip=0,
            train__warmup_steps=0,
            train__schedule="constant",
            checkpoint__every=1,
        ),
        "the loss is not finite (",
        "at step",
        "train.lr",
        "--resume auto",
    )
    assert store.latest(run / "checkpoints") is not None
    assert records(run)


def test_damaged_held_out_chunk_is_refused_or_left_out(tmp_path):
    sequences = Ragged.from_sequences([[2, *range(5, 5 + n % 7), 3] for n in range(300)])
    write_folder(tmp_path, {"heldout": sequences}, 100, 16, chunk_tokens=256)
    shard = next((tmp_path / "heldout").glob("*.tar"))
    sound = shard.read_bytes()
    flip(shard, 1600)
    reader = ShardReader(tmp_path, "heldout")
    with pytest.raises(DamagedShard):
        read_sound(reader, 100, False, {})
    kept, numbers, _, damaged = read_sound(reader, 100, True, {})
    first = int(reader.chunk_sizes[0])
    assert len(kept) == 100 and numbers.tolist() == list(range(first, first + 100)) and list(damaged) == [0]
    shard.write_bytes(sound)
    again, _, _, damaged = read_sound(reader, 100, True, damaged)
    assert again == kept and list(damaged) == [0]  # what the record names stays left out


def test_held_out_damage_is_recorded_and_stays_left_out(tmp_path, monkeypatch):
    sequences = Ragged.from_sequences([[2, *range(5, 5 + n % 7), 3] for n in range(300)])
    write_folder(tmp_path / "data", {"train": sequences, "heldout": sequences}, 100, 16, chunk_tokens=256)
    shard = next((tmp_path / "data" / "heldout").glob("*.tar"))
    sound = shard.read_bytes()
    flip(shard, 1600)
    readers = [ShardReader(tmp_path / "data", split) for split in ("train", "heldout")]
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    progress = Progress(step=7, best_score=-2.0, best_step=5, best_by="heldout_mlm_loss")
    with Telemetry(tmp_path / "run", 10, start_step=7) as telemetry:
        for attempt in range(2):
            *_, damaged = read_sound(readers[1], 100, True, known_damaged(progress.heldout_left_out))
            found = [{"chunk": chunk, "reason": reason} for chunk, reason in damaged.items() if not attempt]
            data = Data(None, [], *readers, None, None, None, {})
            report_damage(data, SimpleNamespace(left_out=found), progress, telemetry)
            assert [(row["chunk"], row["step"]) for row in progress.heldout_left_out] == [(0, 7)]
            assert progress.best_score is None  # scores on other sequences are not compared
            shard.write_bytes(sound)
    warnings = [text for _, text in warnings_of(tmp_path / "run")]
    assert "held-out chunk 0 is damaged" in warnings[0] and "the best score starts anew" in warnings[0]
    assert (
        "stay left out of evaluations, also if they have been repaired: 0. A" in warnings[1]
        and len(warnings) == 2
    )


@pytest.mark.full
def test_a_report_that_cannot_be_written_is_written_by_the_next_start(tiny_data, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "report").write_text("in the way")
    words = command(tiny_data, run, train__steps=1, track="none")
    refused(words, f"cannot write {run}/report/summary.json: ", "then --resume auto")
    (run / "report").unlink()
    finish(start([*words, "--resume", "auto"]))
    summary = json.loads((run / "report" / "summary.json").read_text())
    assert summary["steps"] == 1 and Path(summary["export"]).is_dir()


@pytest.mark.full
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_dead_loader_worker_is_one_error(tiny_data, tmp_path, ranks):
    run = tmp_path / "run"
    processes = start(
        command(tiny_data, run, train__steps=100_000, evaluate__every=0, checkpoint__every=2), ranks=ranks
    )
    wait_for(lambda: (run / "checkpoints" / "step-00000002").exists(), processes)
    parent = processes[-1].pid
    listed = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    words = Path(f"/proc/{parent}/cmdline").read_text()
    forked = [pid for pid in listed if Path(f"/proc/{pid}/cmdline").read_text() == words]
    os.kill(int(forked[0]), signal.SIGKILL)
    outputs = outputs_of(processes, 120)
    assert (
        f"loader worker {forked[0]} was killed by SIGKILL" in outputs[-1] and "--resume auto" in outputs[-1]
    )
    assert [process.returncode for process in processes] == [2] * ranks  # not requeued
    assert "".join(outputs).count("error: ") == 1 and "Traceback" not in "".join(outputs), outputs
    assert f"safe: {store.latest(run / 'checkpoints')}" in outputs[-1]


@pytest.mark.full
def test_a_rank_that_never_comes_is_one_error_in_time(tiny_data, tmp_path):
    """By the command: of two ranks one is never started."""
    words = command(tiny_data, tmp_path / "run", train__rendezvous_seconds=20)
    output = finish([start_rank(words, 0, 2, free_port())], expect=2)
    assert "1 of 2 ranks have reached 127.0.0.1:" in output and "missing: rank 1." in output
    assert "Traceback" not in output and not (tmp_path / "run").exists()
