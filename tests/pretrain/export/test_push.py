"""Uploads to a hub on this machine, by the real library: what is sent, shown, refused."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import huggingface_hub
import pytest
import yaml
from commands import call
from export_helpers import make_run
from hub_server import TOKEN, Hub
from huggingface_hub import ModelCard, constants
from run_helpers import ROOT, environment

from pretrain.commands.export import main
from pretrain.common.errors import UserError
from pretrain.common.program import own_version
from pretrain.export.folder import export
from pretrain.export.push import Upload
from pretrain.export.sums import evaluations_of, weights_identity

REPO = "jane/small-encoder"


def pushed(source: Path, *flags: str, code: int = 0, **variables: str) -> str:
    """What the command prints."""
    inherited = {key: value for key, value in environment().items() if not key.startswith(("HF_", "HUGGING"))}
    home = str(source.parent / "no token")
    surroundings = inherited | {"HF_HOME": home, "HF_HUB_DISABLE_XET": "1"} | variables
    words = [sys.executable, "-m", "pretrain.commands.export", str(source), "--push", REPO, *flags]
    done = subprocess.run(words, env=surroundings, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def stamps(folder: Path) -> dict[str, int]:
    """When each file and folder below one was last written."""
    return {str(path): path.stat().st_mtime_ns for path in folder.rglob("*")}


def write_evaluation(run: Path, folder: Path, name: str, complete: bool, value: float | None = 71.25) -> None:
    """A file as finetune/results.py writes it, of the weights in `folder`."""
    task = {"metric": "cosine spearman", "value": value, "scores": {}, "std": None, "details": {}}
    content = {
        "evaluation": name, "model": str(run), "pooling": "mean", "trained_pooling": "mean",
        "protocol": "all pairs", "tasks": {"stsb-test": task}, "notes": [] if complete else ["9 rows of 10"],
        "complete": complete, "seconds": 1.0, "source": weights_identity(folder),
    }  # fmt: skip
    (run / "report").mkdir(exist_ok=True)
    (run / "report" / f"{name}-mean.json").write_text(json.dumps(content))


@pytest.fixture
def run(tmp_path) -> Path:
    """A run with an evaluation of its weights, one that is not complete, and one of other weights."""
    folder = tmp_path / "jane-doe" / "run"
    make_run(folder, kind="roberta")
    write_evaluation(folder, export(folder), "sts", True)
    write_evaluation(folder, folder / "export", "clustering", False)
    older = tmp_path / "older"
    make_run(older)
    write_evaluation(folder, export(older), "senteval", True)
    return folder


def headings(text: str) -> list[str]:
    """The headings of a page in Markdown, without its code."""
    return re.findall(r"^#+ .*$", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S), re.M)


@pytest.mark.full
def test_what_is_pushed_is_the_export_with_its_evaluations(run):
    with Hub() as hub:
        output = pushed(run, HF_ENDPOINT=hub.endpoint, HF_TOKEN=TOKEN)
        assert hub.visibility == {REPO: "private"} and f"{REPO}/commit/" in output
        first = dict(hub.files[REPO])
        pushed(run, "--public", HF_ENDPOINT=hub.endpoint, HF_TOKEN=TOKEN)  # again: the same files
        assert hub.files[REPO] == first and hub.visibility == {REPO: "private"}
    made = {path.relative_to(run / "export").as_posix(): path for path in (run / "export").rglob("*")}
    assert first.keys() == {name for name, path in made.items() if path.is_file()} - {"SHA256SUMS"}
    rewritten = {"README.md", "clear.json", "training_config.yaml"}
    assert all(first[name] == made[name].read_bytes() for name in first.keys() - rewritten)
    assert b"jane-doe" not in b"".join(first.values())  # no folder of this machine
    assert yaml.safe_load(first["training_config.yaml"])["folder"] == "run"
    card = ModelCard(first["README.md"].decode())
    (result,) = card.data.eval_results
    assert (result.dataset_name, result.metric_type, result.metric_value) == (
        "stsb-test",
        "cosine_spearman",
        71.25,
    )
    assert card.data.library_name == "sentence-transformers" and "fill-mask" in card.data.tags
    assert f'SentenceTransformer("{REPO}")' in card.text and '"PATH"' not in card.text
    assert "9 rows of 10" in card.text and "not comparable" in card.text and "senteval" not in card.text
    assert "sha256 of model.safetensors" in card.text and "## More Information" in card.text
    assert f"| code | Clearly {own_version()} |" in card.text  # as it was when the run was saved
    template = Path(huggingface_hub.__file__).parent / "templates" / "modelcard_template.md"
    order = [heading.removesuffix(" [optional]") for heading in headings(template.read_text())]
    of_template = [heading for heading in headings(card.text) if heading in order]
    assert of_template == sorted(set(of_template), key=order.index)
    assert {"## Uses", "## Bias, Risks, and Limitations", "### Training Data"} <= set(of_template)
    assert headings(card.text)[0] == f"# Model Card for {card.data.model_name}"
    before, after = "## Evaluation", "## Technical Specifications"
    assert card.text.index(before) < card.text.index("### sts, mean pooling") < card.text.index(after)
    assert "other weights: senteval-mean.json" in output


@pytest.mark.full
def test_a_dry_run_shows_the_card_and_the_files_and_sends_nothing(run):
    before = stamps(run)
    output = pushed(run, "--dry-run", HF_ENDPOINT="http://127.0.0.1:9")
    assert stamps(run) == before
    assert f"would export step 7 of {run}" in output
    assert "model-index:" in output and f'SentenceTransformer("{REPO}")' in output
    assert "\nmodel.safetensors\n" in output and "nothing was written or sent" in output
    shutil.rmtree(run / "export")
    assert main(str(run), push=REPO, dry_run=True) == 0 and not (run / "export").exists()
    (run / "export").write_text("a file of the user's")
    with pytest.raises(UserError, match="is not an export of this program"):
        main(str(run), push=REPO, dry_run=True)


@pytest.mark.full
def test_an_export_is_pushed_as_it_is(run, capsys):
    """With what its owner wrote into its card, and with the evaluations of its run."""
    made = run / "export"
    with (made / "README.md").open("a") as card:
        card.write("\n## Licence\n\nAs the data allows.\n")
    before = stamps(run)
    with Hub() as hub:
        output = pushed(made, HF_ENDPOINT=hub.endpoint, HF_TOKEN=TOKEN)
        sent = hub.files[REPO]
    assert "sent:" in output and stamps(run) == before
    assert sent["model.safetensors"] == (made / "model.safetensors").read_bytes()
    assert b"As the data allows." in sent["README.md"] and b"model-index:" in sent["README.md"]
    assert main(str(made), push=REPO, dry_run=True) == 0 and stamps(run) == before
    assert "## Licence" in capsys.readouterr().out


def test_evaluations_of_an_export_are_looked_for_beside_it(run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(run / "export")
    assert main(".", push=REPO, dry_run=True) == 0
    said = capsys.readouterr().out
    assert "model-index:" in said and "no evaluations" not in said
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(run / "export", elsewhere / "export")
    assert main(str(elsewhere / "export"), push=REPO, dry_run=True) == 0
    said = capsys.readouterr().out
    assert f"the card has no evaluations: {elsewhere / 'report'} has none of these weights" in said


def test_a_dry_run_of_a_run_writes_nothing_and_says_what_it_would(run, tmp_path, capsys):
    """What it shows is the card and the files; a plain export says where they are."""
    place = tmp_path / "run"
    shutil.copytree(run, place)
    shutil.rmtree(place / "export")
    before = stamps(place)
    assert main(str(place), push=REPO, dry_run=True) == 0 and stamps(place) == before
    said = capsys.readouterr().out
    assert said.startswith(f"would export step 7 of {place} (pooling mean)\n")
    assert said.endswith("\nnothing was written or sent (--dry-run)\n") and "\nmodel.safetensors\n" in said
    assert "from_pretrained" not in said.split("---")[0]
    out = str(tmp_path / "out")
    assert main(str(place), out=out) == 0 and stamps(place) == before
    assert capsys.readouterr().out == (
        f"exported step 7 of {place} (pooling mean)\n"
        f"  AutoModel.from_pretrained({out!r})\n  SentenceTransformer({out!r})\n"
    )


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"whiten": 8}, "takes --out FOLDER"),
        ({"remove": 1, "out": "o", "step": "7"}, "and no --step, --push or --dry-run"),
        ({"pooling": "sif", "out": "o", "push": REPO}, "and no --step, --push or --dry-run"),
        ({"whiten": 0, "out": "o", "public": True}, "and no --step, --push or --dry-run"),
        ({"static": "input", "out": "o", "dry_run": True}, "and no --step, --push or --dry-run"),
        ({"text": "t"}, "^--text goes with --pooling sif"),
        ({"sentences": 5}, "^--sentences goes with --pooling sif"),
        ({"power": 0.5}, "^--power goes with --pooling sif"),
        ({"public": True}, "^--public says how to --push"),
        ({"dry_run": True}, "^--dry-run says how to --push"),
        ({"push": "nobody"}, "nobody"),
    ],
)
def test_flags_that_do_not_go_together_are_refused(tmp_path, monkeypatch, flags, said):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=said):
        call(main, "run", **flags)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("share", "what"),
    [
        (None, "the start, kept by clearly adapt"),
        (0.0, "the start, kept by clearly adapt"),
        (0.5, "0.5 of it and 0.5 of the start, chosen by clearly adapt"),
        (1.0, ""),
    ],
)
def test_what_adapt_has_kept_is_named_where_something_else_is_exported(run, capsys, share, what):
    """share: of what was trained; None: best/ is the start as a library wrote it."""
    shutil.copytree(run / "export", best := run / "best")
    policy = json.loads((best / "clear.json").read_text()) | {"average": {"start": "base", "alpha": share}}
    (best / "clear.json").write_text(json.dumps(policy))
    if share is None:
        (best / "clear.json").unlink()
    (run / "report").mkdir(exist_ok=True)
    (run / "report" / "judge.json").write_text("{}")
    assert main(str(run), push=REPO, dry_run=True) == 0
    found = capsys.readouterr().err.splitlines()
    assert len(found) == bool(what) and all(what in line for line in found)
    if what:
        assert found[0].startswith(f"note: this is step 7, as it was trained; {best} is ")
        assert (f"clearly export {best} --push OWNER/NAME" in found[0]) == (share is not None)
    if share:
        assert main(str(run), push=REPO, step="best", dry_run=True) == 0
        assert main(str(best), push=REPO, dry_run=True) == 0
        assert not capsys.readouterr().err


@pytest.mark.parametrize("of_adapt", [True, False])
def test_a_best_folder_that_says_nothing_is_no_start_and_stops_no_export(run, capsys, of_adapt):
    """of_adapt: its clear.json is damaged. Not: a user has made the folder."""
    (run / "best").mkdir()
    if of_adapt:
        (run / "report").mkdir(exist_ok=True)
        (run / "report" / "judge.json").write_text("{}")
        (run / "best" / "clear.json").write_text("{")
    assert main(str(run), push=REPO, dry_run=True) == 0
    assert not capsys.readouterr().err


def test_what_does_not_go_with_an_export_is_refused(run):
    made = run / "export"
    for flags in ({"step": "7"}, {"out": str(run / "other")}):
        with pytest.raises(UserError, match="is an export: --step and --out"):
            main(str(made), push=REPO, **flags)
    with pytest.raises(UserError, match="export already; send it to the hub with --push"):
        export(made)
    (made / "README.md").unlink()
    with pytest.raises(UserError, match=r"lacks README\.md"):
        main(str(made), push=REPO, dry_run=True)


@pytest.mark.full
def test_what_cannot_be_pushed_is_one_clear_error(run, monkeypatch):
    def refused(endpoint: str, token: str | None = None) -> str:
        monkeypatch.setattr(constants, "ENDPOINT", endpoint)
        monkeypatch.setenv("HF_TOKEN", token or "")
        with pytest.raises(UserError) as raised:
            main(str(run), push=REPO)
        return str(raised.value)

    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(run / "no token"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    nowhere = "http://127.0.0.1:9"
    assert "no token" in refused(nowhere)
    assert f"cannot send to {nowhere}" in refused(nowhere, TOKEN)
    with Hub(forbidden=(REPO,)) as hub:
        assert "403: You have no write access" in refused(hub.endpoint, TOKEN) and not hub.files
        assert "refuses (401" in refused(hub.endpoint, "hf_another")
    with pytest.raises(UserError, match="OWNER/NAME"):
        Upload(run / "export", "small-encoder", run / "report")


def test_evaluations_of_weights_that_have_changed_are_left_out(run):
    found, others = evaluations_of(run / "export", run / "report")
    assert {content["evaluation"] for content in found} == {"sts", "clustering"}
    assert others == ["senteval-mean.json"]
    (run / "export" / "model.safetensors").touch()
    assert evaluations_of(run / "export", run / "report")[0] == []
