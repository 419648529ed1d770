"""The command: several poolings of any encoder, its tables and its files."""

import json

import pytest
from commands import call
from model_folders import save_bert, save_run, write_function
from sts_layout import bag_of_words

from finetune import sts
from finetune.encoders import models
from finetune.encoders.embed import embed_poolings, load_model
from finetune.encoders.source import resolve
from pretrain.benchmarks.sts_tasks import TASKS, UNDEFINED, StsEvaluator, StsResults
from pretrain.common.errors import UserError


def test_tables_print_the_figures_and_warn_of_other_pairs(layout):
    results = StsEvaluator(layout).evaluate(bag_of_words)
    table = sts.headline_table({"mean": results})
    row = table.splitlines()[1].split()
    figures = [results[task]["spearman_all"] for task in TASKS] + [results.average]
    assert row == ["mean", *(f"{figure:.2f}" for figure in figures)]
    assert "STS-B has 30 pairs here, 1379" in table and "nan" not in table

    equal = dict(StsEvaluator(layout).evaluate(bag_of_words))
    equal["STS-B"] = equal["STS-B"] | {"spearman_all": float("nan")}
    table = sts.headline_table({"cls": results, "mean": StsResults(equal)})
    assert f"note: STS-B has no figure: {UNDEFINED}" in table and "STS12 has no figure" not in table


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A Hugging Face folder, a run trained for cls pooling, a sentence-transformers folder that pools the
    maximum."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    root = tmp_path_factory.mktemp("models")
    bert = save_bert(root / "bert")
    SentenceTransformer(modules=[Transformer(str(bert)), Pooling(32, "max")], device="cpu").save(
        str(root / "st")
    )
    return {"bert": bert, "run": save_run(bert, root / "run", "cls"), "st": root / "st"}


def command(model, layout, tmp_path, **flags):
    """Return the scores that the command writes: pooling -> task -> scores, as `StsEvaluator` gives them."""
    out = tmp_path / "scores" / str(model).rsplit("/", 1)[-1]
    call(sts.main, str(model), eval_data=str(layout), tasks="STS13, SICK-R", out=str(out), **flags)
    written = [json.loads(path.read_text()) for path in sorted(out.glob("*.json"))]
    return {
        one["pooling"]: {task: found["scores"] | found["details"] for task, found in one["tasks"].items()}
        for one in written
    }


@pytest.mark.parametrize("kind", ["bert", "run"])
@pytest.mark.parametrize("pooling", ["", "all", "mean"])
def test_the_command_evaluates_several_poolings_of_a_run_or_folder_at_once(
    folders, layout, tmp_path, capsys, kind, pooling
):
    encoder, tokenizer = load_model(resolve(folders[kind]))
    names = {"": ["cls", "mean"], "mean": ["mean"]}.get(
        pooling, ["cls", "mean", "first-last", "embedding-last", "last-two"]
    )
    expected = StsEvaluator(layout).evaluate_poolings(
        lambda sentences: embed_poolings(encoder, tokenizer, sentences, names), ["STS13", "SICK-R"]
    )
    capsys.readouterr()
    assert command(folders[kind], layout, tmp_path, pooling=pooling) == expected
    # about the pooling only where a single one is evaluated that it was not trained for
    said = capsys.readouterr().err
    assert ("was trained with cls pooling and is evaluated with mean" in said) == (
        kind == "run" and pooling == "mean"
    )
    assert "does not say how" not in said


def test_a_runs_own_pooling_is_evaluated_beside_cls_and_mean(folders, layout, tmp_path):
    run = save_run(folders["bert"], tmp_path / "run", "embedding-last")
    assert list(command(run, layout, tmp_path)) == ["cls", "embedding-last", "mean"]


def test_the_command_takes_models_that_bring_their_vectors(folders, layout, tmp_path, capsys):
    function = write_function(tmp_path / "encoder_for_sts.py", "[len(t), t.count('a'), 1.0]")
    for model, name in ((folders["st"], "own modules"), (function, "function")):
        results = command(model, layout, tmp_path)
        encode = models.open_model(str(model)).encode
        assert results == {name: StsEvaluator(layout).evaluate(encode, ["STS13", "SICK-R"])}
        assert f"\n{name}" in capsys.readouterr().out
        with pytest.raises(UserError, match="leave the"):
            command(model, layout, tmp_path, pooling="cls,mean")


def test_the_first_coordinates_of_vectors_are_evaluated(folders, layout, tmp_path, monkeypatch, capsys):
    """As sentence-transformers cuts them; vectors that are kept are encoded once, for all dimensions."""
    from sentence_transformers import SentenceTransformer

    monkeypatch.setenv("CLEAR_VECTORS", str(tmp_path / "vectors"))
    results = command(folders["st"], layout, tmp_path, dimensions="32,8")
    assert set(results) == {"own modules", "own modules-8"}
    for name, dimension in (("own modules", None), ("own modules-8", 8)):
        library = SentenceTransformer(str(folders["st"]), device="cpu", truncate_dim=dimension)
        encode = lambda texts, library=library: library.encode(texts)  # noqa: E731
        for task, score in StsEvaluator(layout).evaluate(encode, ["STS13", "SICK-R"]).items():
            assert results[name][task]["spearman_all"] == pytest.approx(score["spearman_all"], abs=0.02)
    out = tmp_path / "report"
    words = {"eval_data": str(layout), "tasks": "STS13", "pooling": "cls", "out": str(out)}
    call(sts.main, str(folders["run"]), dimensions="8", **words)
    written = json.loads((out / "sts-cls-8.json").read_text())
    assert written["pooling"] == "cls-8" and written["trained_pooling"] == "cls"
    assert "vectors cut to their first 8 coordinates" in written["notes"]
    assert not any("pooling" in note for note in written["notes"])
    for wrong, says in (("64", "have 32 coordinates"), ("8,x", "--dimensions"), ("0", "--dimensions")):
        with pytest.raises(UserError, match=says):
            command(folders["bert"], layout, tmp_path, dimensions=wrong)


def test_the_command_pools_types_that_run_padded_only(layout, tmp_path):
    from model_folders import albert, padded

    folder = albert(tmp_path / "albert")
    results = command(folder, layout, tmp_path)
    for pooling in ("cls", "mean"):
        expected = StsEvaluator(layout).evaluate(
            lambda sentences, by=pooling: padded(folder, by, sentences), ["SICK-R"]
        )
        assert results[pooling]["SICK-R"]["pearson_all"] == pytest.approx(
            expected["SICK-R"]["pearson_all"], abs=1e-2
        )
    with pytest.raises(UserError, match="runs padded only"):
        command(folder, layout, tmp_path, pooling="pooler")
