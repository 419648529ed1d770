"""The command line: flags from the signature, typed values, one message for every mistake, short help."""

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Literal

import pytest
from pydantic import BaseModel, Field

from pretrain.common.cli import Count, Flag, Names, Rate, run, shorten
from pretrain.common.errors import UserError
from pretrain.common.files import replace_durably


class Where(BaseModel):
    executor: Literal["local", "slurm"] = Field("local", description="where it runs")
    memory_gb: int = Field(4, ge=1, description="memory of a task")


def example(
    model: str,
    *,
    eval_data: Path | None = None,
    tasks: Names = (),
    seeds: Count = 1,
    lr: Rate | None = None,
    sweep: bool = False,
    where: Where,
) -> int:
    """Evaluate MODEL.

    Args:
        model: a run folder.
        tasks: names by commas, which may be
            continued.
        seeds, lr: numbers.
    """
    print(repr((model, eval_data and str(eval_data), tasks, seeds, lr, sweep, where.memory_gb)))
    if tasks == ("none",):
        raise UserError("there is nothing to do")
    return 3 if tasks == ("fail",) else 0


def check(eval_data: str) -> None:
    """Check a folder."""
    print("check", eval_data)


def overridden(config: str = "", *, dry_run: bool = False, **keys: str) -> None:
    """Train."""
    print(repr((config, dry_run, keys)))


def keys():
    return [
        Flag("train.lr", "float", "0.1", "learning rate"),
        Flag("train.mask_some", "bool", "False", "a switch"),
        Flag("deepspeed", "dict", "", "options"),
    ]


@pytest.fixture
def call(monkeypatch, capsys):
    """(exit status, standard output, standard error) of a command with these words."""

    def words(*arguments, function=example, **options):
        monkeypatch.setattr("sys.argv", ["example", *arguments])
        with pytest.raises(SystemExit) as exited:
            run(function, **options)
        captured = capsys.readouterr()
        return exited.value.code, captured.out, captured.err

    return words


@pytest.mark.parametrize(
    "words,values",
    [
        (["2026_11", "--tasks", "a,b,"], ("2026_11", None, ("a", "b"), 1, None, False, 4)),
        (["--model=x", "--eval-data", "d", "--sweep"], ("x", "d", (), 1, None, True, 4)),
        (["--sweep", "x", "--eval_data=d", "--memory-gb", "9"], ("x", "d", (), 1, None, True, 9)),
        (["x", "--sweep=no", "--lr", "2e-5", "--seeds", "3"], ("x", None, (), 3, 2e-5, False, 4)),
        (["-", "--sweep", "false", "--tasks=-"], ("-", None, ("-",), 1, None, False, 4)),
    ],
)
def test_values_are_read_by_their_types(call, words, values):
    assert call(*words)[:2] == (0, f"{values!r}\n")


def test_the_functions_status_and_errors_are_the_commands(call):
    assert call("x", "--tasks", "fail")[0] == 3
    code, _, error = call("x", "--tasks", "none")
    assert code == 2 and error.strip() == "error: there is nothing to do"


@pytest.mark.parametrize("kind", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_disk_that_takes_no_file_is_one_message_that_names_the_file(call, tmp_path, monkeypatch, kind):
    def full(descriptor: int, data: bytes) -> int:
        raise OSError(kind, os.strerror(kind))

    def writes(out: Path) -> None:
        """Write."""
        monkeypatch.setattr(os, "write", full)
        try:
            replace_durably(out, b"content")
        finally:
            monkeypatch.undo()

    code, _, error = call(str(tmp_path / "file"), function=writes)
    assert code == 2 and len(error.strip().splitlines()) == 1
    assert f"error: {tmp_path / 'file'}: {os.strerror(kind)}; " in error and "same command again" in error
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "MODEL is missing"),
        (("--tasks", "a"), "MODEL is missing"),
        (("x", "--taks", "a"), "unknown flag --taks; did you mean --tasks?"),
        (("x", "--data", "a"), "--eval-data (the folder of the benchmarks; --data is prepared data). "),
        (("x", "--memory_bg", "1"), "did you mean --memory-gb?"),
        (("x", "--tiem", "1"), "unknown flag --tiem. "),  # nothing here is like it
        (("x", "y"), "unexpected word 'y'"),
        (("x", "y.yaml"), "unexpected word 'y.yaml'; flags are --name value"),
        (("x", "-"), "unexpected word '-'"),
        (("x", "--model", "y"), "MODEL is given twice"),
        (("x", "--tasks"), "--tasks needs a value"),
        (("x", "--tasks", "--sweep"), "--tasks needs a value"),
        (("x", "--sweep=maybe"), "--sweep: Input should be a valid boolean"),
        (("x", "--seeds", "0"), "--seeds: Input should be greater than or equal to 1 (got '0')"),
        (("x", "--seeds", "1.5"), "--seeds: Input should be a valid integer"),
        (("x", "--lr", "fast"), "--lr: Input should be a valid number"),
        (("x", "--lr", "nan"), "--lr: Input should be"),
        (("x", "--executor", "moon"), "--executor: Input should be 'local' or 'slurm'"),
        (("x", "--seeds", "a", "--memory_gb", "0"), "--memory-gb: Input should be greater"),
    ],
)
def test_mistakes_are_one_message(call, words, said):
    code, out, error = call(*words)
    assert code == 2 and said in error and "Traceback" not in error and not out
    assert len(error.strip().splitlines()) == 1


def test_a_recipe_or_a_folder_among_the_words_is_said_to_be_for_its_flag(call, tmp_path):
    def plan(*, config: str = "", data: str = "") -> None:
        """Plan."""

    for word, flag in (("clear_base.yaml", "config"), (str(tmp_path), "data")):
        said = call(word, function=plan)[2]
        assert f"unexpected word {word!r}; did you mean --{flag} {word}? " in said
        assert "did you mean" not in call(f"--{flag}", "x", word, function=plan)[2]


def test_short_help_has_ten_flags_a_line_each_and_full_help_all(call):
    def many(model: str, *, a=1, b=2, c=3, d=4, e=5, f=6, g=7, h=8, i=9, j=10, last: Count = 11) -> None:
        """Do it.

        Args:
            model: a model.
            a: the first, of which there is much more to be said than the width of a terminal's line allows.
            last: the last, of which there is much more to be said than the width of a terminal's line allows.
        """

    code, out, _ = call("--help", function=many)
    lines = out.splitlines()
    assert code == 0 and lines[0].startswith("usage: ") and lines[0].endswith(" MODEL [--flag value ...]")
    assert len([line for line in lines if line.startswith("  --")]) == 10 and "--last" not in out
    assert "2 more flags: --help all" in out and max(map(len, lines)) <= 80
    for words in (["--help", "all"], ["--help=all"], ["x", "--help", "all"]):
        whole = " ".join(call(*words, function=many)[1].split())
        assert "--last int (default 11)" in whole and "terminal's line allows." in whole
    assert "--b" in call("-h", function=many, first=("b",))[1]


def test_any_number_of_words_where_the_function_takes_them(call):
    def many(*names: str, out: str = "x") -> None:
        """Do it."""
        print(names, out)

    assert call("a", "b", "--out", "c", function=many)[:2] == (0, "('a', 'b') c\n")
    assert "NAMES..." in call("--help", function=many)[1]
    assert (
        "unexpected word '-'" in call("a", "-", "b", function=many)[2]
        or call("a", "-", function=many)[0] == 2
    )


def test_keys_reach_the_function_as_they_were_typed(call):
    words = ["r.yaml", "--dry-run", "--train.lr", "1e-3", "--train.mask-some", "--deepspeed.a.b", "none"]
    code, out, _ = call(*words, function=overridden, keys=keys)
    given = {"train.lr": "1e-3", "train.mask_some": "true", "deepspeed.a.b": "none"}
    assert (code, out) == (0, f"{('r.yaml', True, given)!r}\n")
    assert "did you mean --train.lr?" in call("--train.lrr", "1", function=overridden, keys=keys)[2]
    assert "did you mean --train.lr?" in call("--lr", "1", function=overridden, keys=keys)[2]
    assert "--train.lr float (default 0.1)" in call("--help", "all", function=overridden, keys=keys)[1]
    assert call("--help", function=overridden, keys=keys)[1].rstrip().endswith("by section: --help train")
    for words in (["--help", "train"], ["--help=train"]):
        page = call(*words, function=overridden, keys=keys)[1]
        assert page.startswith("  --train.lr float (default 0.1)") and "usage" not in page


@pytest.mark.parametrize("asked", ["--help", "-h"])
def test_the_value_of_a_flag_is_no_topic_of_help(call, asked):
    for words in (["--config", "all", "--data", "train", asked], ["train", asked, "--config", "all"]):
        assert call(*words, function=overridden, keys=keys)[1].startswith("usage: ")
    page = call("--config", "train", asked, "all", function=overridden, keys=keys)[1]
    assert page.startswith("usage: ") and "  --train.lr float (default 0.1)" in page


def test_defaults_of_a_models_fields_are_shown_and_its_own_fields_come_first(call):
    class Base(BaseModel):
        pooling: str = Field("", description="how")

    class Derived(Base):
        out: str = Field("", description="a folder")

    def evaluate(name: str = "", *, flags: Derived) -> None:
        """Evaluate."""

    page = call("--help", "all", function=evaluate)[1]
    assert "  NAME str\n" in page and "(default none)" not in page and "(default )" not in page
    assert page.index("--out str") < page.index("--pooling str")


def test_sub_commands(call):
    assert call("check", "d", function=None, check=check)[:2] == (0, "check d\n")
    assert call("x", check=check)[0] == 0 and call("check", "d", check=check)[1] == "check d\n"
    for words, said in (
        ((), "no command; write"),
        (("chekc", "d"), "unknown command 'chekc'; did you mean check?"),
        (("check",), "EVAL_DATA is missing"),
        (("check", "--data", "d"), "its name here is --eval-data"),
    ):
        code, _, error = call(*words, function=None, check=check)
        assert code == 2 and said in error
    assert "unknown command 'chekc'; did you mean check?" in call("chekc", "d", check=check)[2]
    for function in (None, example):
        assert "check  Check a folder" in call("--help", function=function, check=check)[1]
    assert "check EVAL_DATA" in call("check", "--help", function=None, check=check)[1]


def test_interrupting_is_said(call):
    def stopped() -> None:
        """Stop."""
        raise KeyboardInterrupt

    code, _, error = call(function=stopped)
    assert code == 130 and "interrupted" in error


def test_the_status_of_an_interrupt_does_not_depend_on_where_it_comes(tmp_path):
    """Imports make data classes, whose methods are texts that Python executes."""
    code = (
        "def main():\n    exec('raise KeyboardInterrupt')\nimport pretrain.common.cli as cli\ncli.run(main)\n"
    )
    (tmp_path / "stopped.py").write_text(code)
    path = f"{Path(__file__).resolve().parents[3]}:{tmp_path}"
    done = subprocess.run([sys.executable, "-m", "stopped"], env=os.environ | {"PYTHONPATH": path})
    assert done.returncode == 130


@pytest.mark.parametrize(
    "meaning,width,shown",
    [
        ("one. Two.", 9, "one. Two"),
        ("one. Two.", 8, "one. Two"),
        ("one. Two.", 7, "one"),
        ("one; two. Three", 8, "one"),
        ("(one; two), three. Four", 20, "(one; two), three"),  # no clause ends within brackets
        ("(one; two), three. Four", 16, "(one; two), ..."),
        ("one (two; three). Four", 17, "one (two; three)"),
    ],
)
def test_a_meaning_is_shown_whole_or_to_the_end_of_a_clause_or_a_word(meaning, width, shown):
    assert shorten(meaning, width) == shown
