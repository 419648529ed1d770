"""Code of the user's own runs where the command names it, and nowhere else."""

import pickle

import numpy as np
import pytest
import yaml
from forked_python import run_python
from run_helpers import TINY, command, environment, finish, records, start

from augment.core.errors import AugmentationError
from augment.core.keys import sequence_keys
from augment.core.own_code import ALLOWED, allow, load, words_allow_nothing
from augment.core.ragged import Ragged
from augment.core.vocabulary import Vocabulary
from augment.spec.build import build, build_texts
from augment.spec.grammar import parse
from augment.spec.resources import resource_hash, resources
from augment.text.parsed import without_parse
from pretrain.checkpoint import store
from pretrain.commands.sweep.file import read_sweep
from pretrain.common.errors import UserError
from pretrain.config.recipe import DEFAULT_RECIPE

OWN = """
from pathlib import Path

Path(__file__).with_name("ran").touch()
from augment.core.entry import Entry
from pretrain.objectives import Objective


class Near(Objective):
    def __init__(self, config, encoder):
        super().__init__()

    def weights(self, step):
        return {"near": 1.0}

    def relate(self, views, context):
        return {"near": (views["anchor"] - views["positive"]).norm(dim=1).mean()}


def embed(texts):
    return [[1.0]] * len(texts)


def shout(sentence, draws, rate=0.5):
    return sentence.text.upper() if draws.chance(rate) else None


def twice(batch, keys, vocabulary, times: int = 2):
    return batch.take([row for row in range(len(batch))])


def wrong(sentence, draws):
    return 7


def fails(sentence, draws):
    raise KeyError("x")


def needs_more(sentence, draws, model):
    return None


BOTH = Entry(name="both", paper="", description="", function=lambda sentences, draws: [None] * len(sentences),
             meaning="altering", batch=True, languages=("en",))
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A file of code, which nothing names yet."""
    monkeypatch.delenv(ALLOWED, raising=False)
    file = tmp_path / "theirs" / "own.py"
    file.parent.mkdir()
    file.write_text(OWN)
    return file


def ran(own):
    """Whether the file was imported since the last question."""
    mark = own.with_name("ran")
    found = mark.exists()
    mark.unlink(missing_ok=True)
    return found


def settings(**changed):
    flat = TINY | changed
    tree = {}
    for key, value in flat.items():
        *sections, name = key.split(".")
        node = tree
        for section in sections:
            node = node.setdefault(section, {})
        node[name] = yaml.safe_load(value) if isinstance(value, str) else value
    return tree


@pytest.mark.full
def test_looking_at_a_run_runs_none_of_its_code(own, tiny_data, tmp_path):
    of_run = (["show"], ["verify"], ["verify", "--views"])
    of_recipe = (["inspect"], ["plan"], ["main", "--resume", "auto"])
    for key, name, commands in (
        ("objective.name", f"{own}:Near", (*of_run, *of_recipe, ["sweep", "plan"])),
        ("augment.spec", f"{own}:shout", (["inspect"], ["sweep", "plan"])),
    ):
        section, setting = key.split(".")
        run = tmp_path / section
        run.mkdir()
        tree = settings(**{"data.folder": str(tiny_data), "folder": str(run)})
        tree[section] = {setting: name}
        (run / "config.yaml").write_text(yaml.safe_dump(tree))
        (run / "metrics.jsonl").write_text('{"step": 1, "loss": {"near": 1.0}}\n')
        sweep = {"title": "t", "recipe": str(DEFAULT_RECIPE), "rows": {"a": {"set": {key: name}}}}
        (run / "sweep.yaml").write_text(yaml.safe_dump(sweep))
        for named, *flags in commands:
            place = [str(run)] if [named, *flags] in of_run else ["--config", str(run / "config.yaml")]
            words = [*flags, str(run / "sweep.yaml")] if named == "sweep" else [*place, *flags]
            module = "pretrain.main" if named == "main" else f"pretrain.commands.{named}"
            said = run_python(["-m", module, *words], environment(), tmp_path)
            assert said.returncode == 2 and not ran(own), (words, said)
            assert f"code in {own} runs only where the command itself names it" in said.stderr, said
            assert len(said.stderr.strip().splitlines()) == 1, said.stderr
    looked = ["-m", "pretrain.commands.inspect", "--config", str(tmp_path / "objective" / "config.yaml")]
    for more in (["--trust"], [f"--objective=mlm+{own}:Near"]):
        said = run_python([*looked, *more], environment(), tmp_path)
        assert said.returncode == 0 and ran(own), said
    words = [
        "-m",
        "pretrain.commands.sweep",
        "plan",
        str(tmp_path / "objective" / "sweep.yaml"),
        "--words-of",
        "0",
    ]
    said = run_python([*words, "--trust"], environment(), tmp_path)
    assert said.stdout.splitlines()[-1] == "--trust=true", said  # for a task on another machine


def test_a_sweep_file_names_no_function_that_is_evaluated(own, tmp_path, monkeypatch):
    row = {"kind": "start", "set": {"model.init": f"{own}:embed"}}
    sweep = {"title": "t", "recipe": str(DEFAULT_RECIPE), "rows": {"a": row}}
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(sweep))
    words = ["-m", "pretrain.commands.sweep", "sweep.yaml", "--eval-data", str(tmp_path)]
    said = run_python(words, environment(), tmp_path)
    assert said.returncode == 2 and "runs only where the command itself" in said.stderr and not ran(own), said
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(sweep | {"evaluations": {"sts": "--trust"}}))
    with pytest.raises(UserError, match="--trust is for the command line"):
        read_sweep(tmp_path / "sweep.yaml")
    allow(["json:dumps"])
    monkeypatch.setenv(ALLOWED, words_allow_nothing()[ALLOWED])
    allow([f"{own}:embed", "--trust"], everything=True)  # of a command that the sweep starts
    with pytest.raises(AugmentationError, match="runs only"):
        load(f"{own}:embed")
    assert load("json:dumps")


def test_a_table_of_results_names_no_function_that_runs(own, monkeypatch):
    from finetune.encoders.models import open_model

    for name in (f"{own}:embed", "own:embed"):
        monkeypatch.chdir(own.parent)
        with pytest.raises(UserError, match="runs only where the command itself names it"):
            open_model(name)
        assert not ran(own)
        allow([name])
        assert len(open_model(name).encode(["a", "b"])) == 2 and ran(own)


def test_only_what_a_word_names_is_allowed(own, tmp_path, monkeypatch):
    monkeypatch.chdir(own.parent)
    for word in ("own.py", "own:f.py", f"{tmp_path}/own.py:Near", "--run=own.py", "./other/own.py:Near", "*"):
        allow([word])
        with pytest.raises(AugmentationError, match="runs only"):
            load(f"{own}:Near")
    for word in (
        "own.py:Near",
        "--aug=del-word|own.py:shout:rate=0.1",
        f"simcse+{own}:Near",
        "{spec: 'own.py:x'}",
    ):
        monkeypatch.delenv(ALLOWED)
        allow([word])
        assert load("own.py:Near").__name__ == "Near"
    elsewhere = tmp_path / "of 12:30" / "own.py"
    elsewhere.parent.mkdir()
    elsewhere.write_text(OWN)
    allow([f"{elsewhere}:Near"])
    assert load(f"{elsewhere}:Near").__name__ == "Near"


def test_an_augmentation_from_a_file_is_one_of_the_grammar(own, monkeypatch):
    monkeypatch.chdir(own.parent)
    allow(["own.py:shout"])
    specification = parse("own.py:shout:rate=0.25 | none, own.py:twice")
    assert (
        str(specification) == "own.py:shout:rate=0.25|none,own.py:twice"
        and parse(str(specification)) == specification
    )
    texts = [without_parse(f"sentence number {number}.") for number in range(400)]
    keys = sequence_keys(seed=0, epoch=0, sequence_ids=np.arange(400), view=0, purpose="augment")
    pipeline = pickle.loads(pickle.dumps(build_texts("own.py:shout:rate=0.25")))
    made = pipeline.texts(keys, texts)
    assert 60 < len(made) < 140 and all(new == texts[row].text.upper() for row, new in made.items())
    assert pipeline.texts(keys[:7], texts[:7]) == {row: new for row, new in made.items() if row < 7}
    plain = np.zeros(8, dtype=bool)
    vocabulary = Vocabulary(8, -1, 0, 1, 2, -1, np.arange(8) < 3, ~plain, np.ones(8, dtype=np.uint8))
    batch = Ragged.from_sequences([[0, 3, 4, 1], [0, 5, 1]])
    assert build("own.py:twice", vocabulary)(batch, keys[:2]).ids.tolist() == batch.ids.tolist()
    assert parse("own.py:BOTH").augmentations[0].entry.languages == ("en",)
    for spec, said in {
        "own.py": "as in own.py:function",
        "own.py:no": "has no function of that name",
        "own.py:shout:rat=1": "did you mean 'rate'",
        "own.py:needs_more": r"must take \(sentence, draws\)",
        "no.py:f": "there is no file",
        "own.py:twice,own.py:shout": "write 'own.py:shout,own.py:twice'",
    }.items():
        with pytest.raises(AugmentationError, match=said):
            parse(spec)
    for name, said in {"wrong": "gave 7 for 'sentence number 0.'", "fails": "failed: KeyError: 'x'"}.items():
        with pytest.raises(AugmentationError, match=said):
            build_texts(f"own.py:{name}").texts(keys[:1], texts[:1])


@pytest.mark.full
def test_the_file_is_an_input_of_the_run(own, tiny_data, tmp_path, monkeypatch):
    monkeypatch.chdir(own.parent)
    spec = f"{own}:twice"
    allow([spec])
    assert resources([spec]) == {spec: str(own)}
    before = resource_hash(own)
    words = command(tiny_data, tmp_path / "run", train__steps=3, aug=spec, objective=f"clear+{own}:Near")
    finish(start(words))
    assert any("near" in row.get("loss", {}) for row in records(tmp_path / "run"))
    recorded = store.read_state(tmp_path / "run" / "checkpoints" / "step-00000003")["inputs"]
    assert all(recorded[name] == {"sha256": before, "where": str(own)} for name in (spec, f"{own}:Near"))
    own.write_text(OWN.replace("norm(dim=1).mean()", "norm(dim=1).sum()"))
    again = [*words, "--resume", "auto", "--train.steps", "6"]
    said = finish(start(again), expect=2)
    assert "own.py:Near was" in said
    finish(start([*again, "--checkpoint.accept", f"{spec},{own}:Near"]))
