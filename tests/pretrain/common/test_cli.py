"""The command-line runner: raw strings, one message for every mistake, help from the signature."""

import pytest

from pretrain.common.cli import as_bool, as_count, as_rate, run
from pretrain.common.errors import UserError


def example(model: str, tasks: str = "all", seed: str = "1", *rest: str) -> int:
    """Judge MODEL.

    Args:
        tasks: names by commas.
    """
    print(repr((model, tasks, seed, rest)))
    if tasks == "none":
        raise UserError("there is nothing to do")
    return 3 if tasks == "fail" else 0


@pytest.fixture
def call(monkeypatch, capsys):
    """(exit status, standard output, standard error) of `example` with these words."""

    def words(*arguments, positional=1, function=example):
        monkeypatch.setattr("sys.argv", ["example", *arguments])
        with pytest.raises(SystemExit) as leaving:
            run(function, positional=positional)
        captured = capsys.readouterr()
        return leaving.value.code, captured.out, captured.err

    return words


def test_values_are_the_strings_that_were_typed(call):
    assert call("2026_11", "--tasks", "a,b")[:2] == (0, "('2026_11', 'a,b', '1', ())\n")
    assert call("--model=x", "--tasks=1e-3")[:2] == (0, "('x', '1e-3', '1', ())\n")
    assert call("x", "--seed", "-1")[:2] == (0, "('x', 'all', '-1', ())\n")


def test_the_functions_status_and_errors_are_the_commands(call):
    assert call("x", "--tasks", "fail")[0] == 3
    code, _, error = call("x", "--tasks", "none")
    assert code == 2 and error.strip() == "error: there is nothing to do"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "MODEL is missing"),
        (("--tasks", "a"), "MODEL is missing"),
        (("x", "--taks", "a"), "did you mean --tasks?"),
        (("x", "y"), "unexpected argument 'y'"),
        (("x", "-"), "unexpected argument '-'"),
    ],
)
def test_mistakes_are_one_message(call, words, said):
    code, out, error = call(*words)
    assert code == 2 and said in error and "Traceback" not in error and not out


def test_help_is_made_of_signature_and_docstring(call):
    code, out, _ = call("--help")
    assert code == 0 and "MODEL" in out and "names by commas" in out and "--tasks 'all'" in out


def test_any_number_of_words_where_the_function_takes_them(call):
    def many(*names: str) -> None:
        print(names)

    assert call("a", "b", "c", positional=-1, function=many)[:2] == (0, "('a', 'b', 'c')\n")


def test_interrupting_is_said(call):
    def stopped() -> None:
        raise KeyboardInterrupt

    code, _, error = call(function=stopped)
    assert code == 130 and "interrupted" in error


def test_switches():
    assert as_bool(True, "f") and as_bool("yes", "f") and not as_bool("False", "f")
    with pytest.raises(UserError, match="--f is a switch"):
        as_bool("maybe", "f")


def test_numbers():
    assert as_count("0", "f") == 0 and as_count(7, "f", 7, 7) == 7
    for value, least, most, allowed in (
        ("x", 0, None, ", 0 or more"),
        ("1.5", 1, None, ", 1 or more"),
        ("-1", 0, None, ", 0 or more"),
        ("9", 2, 8, " from 2 to 8"),
    ):
        with pytest.raises(UserError, match=f"--f '{value}': give a whole number{allowed}"):
            as_count(value, "f", least, most)
    assert as_rate("") == 0.0 and as_rate("2e-5") == 2e-5
    for value in ("fast", "0", "1", "-1e-5", "nan"):
        with pytest.raises(UserError, match="give a learning rate such as 2e-5"):
            as_rate(value)
