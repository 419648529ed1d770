"""`clearly plan`: what it prints, and what it refuses."""

import sys

import pytest
from test_inspect import folder  # noqa: F401 - a fixture

from pretrain.commands import plan as planning
from pretrain.common import cli
from pretrain.config.recipe import DEFAULT_RECIPE, flags
from pretrain.data.shards import ShardReader

SMALL = ["--model.layers=3", "--model.hidden_size=32", "--model.heads=2", "--data.prepare.vocabulary=500"]


def run(monkeypatch, capsys, *words: str) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["plan", *words])
    with pytest.raises(SystemExit) as left:
        cli.run(planning.plan, keys=flags)
    captured = capsys.readouterr()
    return left.value.code or 0, captured.out, captured.err


def test_a_plan_says_what_a_run_needs(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)  # no prepared data here
    code, out, err = run(monkeypatch, capsys, "--gpus=32", "--gpu=a100-80", *SMALL)
    assert code == 0, err
    assert "32 x a100-80: 312 TFLOP/s, 80.0 GB" in out and "mean length 24 (assumed" in out
    assert "30.0% of the peak (assumed)" in out
    assert "optimizer's moments" in out and "largest micro-batch" in out
    rows = [line.split() for line in out.splitlines() if line.rstrip().endswith(" min")]
    assert [row[0] for row in rows] == list("0123") and all(float(row[-2]) > 0 for row in rows)
    code, out, err = run(monkeypatch, capsys, "--train.steps=10000000", *SMALL)
    assert [line.split()[0] for line in out.splitlines() if line.rstrip().endswith((" h", " d"))] == list(
        "0123"
    )


@pytest.mark.parametrize(
    "words, said",
    [
        (["--gpu=h300"], "--gpu h300: give one of h200, h100"),
        (["--mfu=1.5"], "--mfu"),
        (["--gpus=0"], "--gpus"),
        (["--data=nowhere"], "nowhere holds no prepared data"),
    ],
)
def test_bad_input_is_one_message(monkeypatch, capsys, tmp_path, words, said):
    monkeypatch.chdir(tmp_path)
    code, _, err = run(monkeypatch, capsys, *words, *SMALL)
    assert code == 2 and said in err and len(err.strip().splitlines()) == 1


def test_a_device_that_is_no_h200_has_not_its_share(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    shares = [
        run(monkeypatch, capsys, *words, "--train.precision=bf16", *SMALL)[1]
        for words in ([], ["--peak=500"])
    ]
    assert "as BERT-base reached on an h200" in shares[0] and "30.0% of the peak (assumed)" in shares[1]


@pytest.mark.parametrize("gpu,said", [("h200", "as BERT-base reached on an h200"), ("l40s", "assumed")])
def test_in_float32_the_peak_is_that_of_float32(monkeypatch, capsys, tmp_path, gpu, said):
    monkeypatch.chdir(tmp_path)
    code, out, err = run(monkeypatch, capsys, f"--gpu={gpu}", "--train.precision=fp32", *SMALL)
    assert code == 0, err
    assert f"1 x {gpu}: {planning.GPUS[gpu][1]:.4g} TFLOP/s" in out and f"% of the peak ({said})" in out


def test_a_share_of_the_peak_is_taken_as_given(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    code, out, err = run(monkeypatch, capsys, "--mfu=0.42", *SMALL)
    assert code == 0, err
    assert "speed    42.0% of the peak (--mfu)" in out


@pytest.mark.parametrize("recipe", ["diffcse_micro", "augcse_micro", "esimcse_micro"])
def test_second_encoders_and_heads_of_other_objectives_are_counted(monkeypatch, capsys, tmp_path, recipe):
    words = [f"--config={DEFAULT_RECIPE.with_name(recipe + '.yaml')}", *SMALL]
    monkeypatch.chdir(tmp_path)
    code, out, err = run(monkeypatch, capsys, *words)
    assert code == 0, err
    assert "parameters and " in out.splitlines()[0]  # the masked-language head, which nothing trains here


def test_of_prepared_data_the_length_is_its_own(monkeypatch, capsys, folder):  # noqa: F811
    reader = ShardReader(folder)
    length = reader.num_tokens // reader.num_sequences
    words = [f"--data={folder}", "--model.max_positions=64", *SMALL]
    code, out, err = run(monkeypatch, capsys, *words)
    assert code == 0, err
    assert length not in (24, 64) and f"mean length {length} (of the data)" in out
    out = run(monkeypatch, capsys, *words, "--length=9")[1]
    assert "mean length 9 (assumed: --data or --length say more)" in out


def test_the_machines_memory_is_needed_where_checkpoints_are_written_beside(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    said = []
    for words in (["--checkpoint.background=true"], ["--checkpoint.background=false"]):
        said.append(run(monkeypatch, capsys, "--checkpoint.every=10", *words, *SMALL)[1])
    assert [one.count("in the machine's own memory (checkpoint.background)") for one in said] == [1, 0]
    for words, device in ((["--memory=12"], "989.5 TFLOP/s, 12.0 GB"), (["--peak=5"], "5 TFLOP/s, 141.0 GB")):
        assert f"device   1 x h200: {device}" in run(monkeypatch, capsys, *words, *SMALL)[1]


def test_figures_of_gpus_are_those_of_the_sheets():
    assert planning.GPUS == {
        "h200": (989.5, 67.0, 141.0),
        "h100": (989.5, 67.0, 80.0),
        "a100-80": (312.0, 19.5, 80.0),
        "a100-40": (312.0, 19.5, 40.0),
        "l40s": (362.05, 91.6, 48.0),
    }
