"""MTEB by the library itself, on tasks of local data: figures are those that it gives for the export."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from commands import call
from datasets import Dataset, DatasetDict
from model_folders import SENTENCES, save_bert, save_prompted, save_run
from scipy import stats
from sentence_transformers import SentenceTransformer

from finetune import mteb_english
from finetune.encoders.models import open_model
from finetune.mteb_english import add_average, choose, evaluate, load, main, mteb_encoder
from finetune.results import Evaluation
from pretrain.common.errors import UserError

mteb = pytest.importorskip("mteb", reason="mteb is not installed; the extra `mteb` brings it")
WORDS = sorted({word for sentence in SENTENCES for word in sentence.split()})


def texts_of(seed, count):
    draw = np.random.default_rng(seed)
    return [" ".join(draw.choice(WORDS, draw.integers(2, 9))) for _ in range(count)]


def about(name, kind, score):
    """Describe a task of our own as the library wants it described."""
    from mteb.abstasks.task_metadata import TaskMetadata

    return TaskMetadata(
        name=name,
        dataset={"path": "local", "revision": "1"},
        description="of the tests",
        type=kind,
        modalities=["text"],
        category="t2c" if kind == "Classification" else "t2t",
        eval_splits=["test"],
        eval_langs=["eng-Latn"],
        main_score=score,
    )


def local_tasks():
    """Return new tasks of local data: similarity, classification and retrieval."""
    from mteb.abstasks import AbsTaskClassification, AbsTaskRetrieval, AbsTaskSTS

    class LocalSTS(AbsTaskSTS):
        metadata = about("LocalSTS", "STS", "cosine_spearman")
        min_score, max_score = 0, 5

        def load_data(self, **_):
            gold = np.random.default_rng(2).uniform(0, 5, 60)
            rows = {"sentence1": texts_of(0, 60), "sentence2": texts_of(1, 60), "score": gold.tolist()}
            self.dataset = DatasetDict({"test": Dataset.from_dict(rows)})
            self.data_loaded = True

    class LocalClassification(AbsTaskClassification):
        metadata = about("LocalClassification", "Classification", "accuracy")

        def load_data(self, **_):
            def rows(seed):
                texts = texts_of(seed, 80)
                return Dataset.from_dict({"text": texts, "label": [int("cat" in text) for text in texts]})

            self.dataset = DatasetDict({"train": rows(3), "test": rows(4)})
            self.data_loaded = True

    class LocalRetrieval(AbsTaskRetrieval):
        metadata = about("LocalRetrieval", "Retrieval", "ndcg_at_10")

        def load_data(self, **_):
            def rows(seed, count):
                texts = texts_of(seed, count)
                return Dataset.from_dict({"id": [f"{seed}-{n}" for n in range(count)], "text": texts})

            draw = np.random.default_rng(7)
            relevant = {f"6-{n}": {f"5-{m}": 1 for m in draw.integers(0, 60, 4)} for n in range(20)}
            split = {"corpus": rows(5, 60), "queries": rows(6, 20), "relevant_docs": relevant}
            self.dataset = {"default": {"test": {**split, "top_ranked": None}}}
            self.data_loaded = True

    return [LocalSTS(), LocalClassification(), LocalRetrieval()]


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mteb")
    return save_run(save_bert(folder / "bert"), folder / "mine", "mean")


@pytest.mark.full
@pytest.mark.parametrize("default", [pytest.param(None, marks=pytest.mark.slow), "query"])
def test_a_models_prompts_are_those_that_the_library_uses(run_folder, tmp_path, default):
    prompts = {"query": "the cat ", "document": "a man rides ", "Classification": "dogs bark "}
    folder = save_prompted(run_folder / "export", tmp_path / "model", prompts, default)
    found = evaluate(open_model(folder), local_tasks(), tmp_path / "out")
    model = SentenceTransformer(str(folder), device="cpu")
    own = mteb.evaluate(model, local_tasks(), cache=None, co2_tracker=False, show_progress_bar=False)
    for theirs in own.task_results:
        value = found.tasks[theirs.task_name].value
        # Packed and padded vectors differ by rounding, and one of 800 predictions by it.
        rounding = 0.13 if theirs.task_name == "LocalClassification" else 0.01
        assert value == pytest.approx(100 * theirs.get_score(), abs=rounding), theirs.task_name
    plain = evaluate(open_model(run_folder), local_tasks(), tmp_path / "plain")
    assert plain.tasks["LocalRetrieval"].details != found.tasks["LocalRetrieval"].details


@pytest.mark.full
def test_figures_are_the_librarys_own_and_are_kept_in_its_format(run_folder, tmp_path, monkeypatch):
    found = evaluate(open_model(run_folder), local_tasks(), tmp_path)
    model = SentenceTransformer(str(run_folder / "export"), device="cpu")
    own = mteb.evaluate(model, local_tasks(), cache=None, co2_tracker=False, show_progress_bar=False)
    for theirs in own.task_results:
        ours = found.tasks[theirs.task_name]
        assert ours.value == pytest.approx(100 * theirs.get_score(), abs=0.01)
        (path,) = (tmp_path / "results").glob(f"*/*/{theirs.task_name}.json")
        written = json.loads(path.read_text())
        assert 100 * written["scores"]["test"][0]["main_score"] == pytest.approx(ours.value, abs=1e-3)
        assert set(written["scores"]["test"][0]) == set(theirs.to_dict()["scores"]["test"][0])
    # the same weights again: nothing is loaded, nothing encoded
    opened = open_model(run_folder)
    monkeypatch.setattr(mteb_english, "load", None)
    again = evaluate(opened, local_tasks(), tmp_path)
    for name, one in found.tasks.items():
        assert again.tasks[name].value == pytest.approx(one.value, abs=1e-3)  # the files' digits
    with pytest.raises(TypeError):  # other vectors are not taken for these
        evaluate(open_model(run_folder, "cls"), local_tasks(), tmp_path)


def test_the_benchmark_is_the_librarys():
    assert len(choose(())) == 41
    assert [task.metadata.name for task in choose(["stsbenchmark", "STS12"])] == ["STSBenchmark", "STS12"]
    with pytest.raises(UserError, match="did you mean 'STSBenchmark'"):
        choose(["STSBenchmrk"])


def test_the_average_is_over_tasks_and_over_kinds():
    tasks = choose(())
    result = Evaluation("mteb_english", "m", "mean", None, "p")
    for number, task in enumerate(tasks[:-1]):
        result.add(task.metadata.name, "s", {"s": float(number)}, kind=task.metadata.type)
    add_average(result)
    assert "average" not in result.tasks
    result.add(tasks[-1].metadata.name, "s", {"s": 40.0}, kind=tasks[-1].metadata.type)
    add_average(result)
    scores = result.tasks["average"].scores
    kinds = {}
    for number, task in enumerate(tasks):
        kinds.setdefault(task.metadata.type, []).append(number)
    assert scores["mean"] == 20.0
    assert scores["mean over kinds"] == pytest.approx(np.mean([np.mean(one) for one in kinds.values()]))


def test_data_that_cannot_be_had_are_one_message(run_folder, tmp_path, monkeypatch):
    def unreachable(source, otherwise):
        raise UserError(f"cannot load {source}: no answer. Without network, {otherwise}")

    monkeypatch.setattr(mteb_english, "reach_hub", unreachable)
    with pytest.raises(
        UserError, match=r"cannot load the data of MTEB's STS12 \(mteb/sts12-sts\): no answer"
    ):
        call(main, run_folder, tasks="STS12", out=tmp_path)
    task, *_ = local_tasks()
    monkeypatch.setattr(type(task), "load_data", lambda self: 1 / 0)
    with pytest.raises(UserError, match=r"cannot load the data of MTEB's LocalSTS .*division by zero"):
        load(task)


def test_without_the_library_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "mteb", None)
    with pytest.raises(UserError, match=r"pip install 'sentence-clear\[mteb\]'"):
        choose(())


def test_what_makes_other_vectors_is_filed_under_another_revision():
    """Results are kept by it: weights, pooling, precision and prompts, those that the library uses."""

    def named(identity="w", pooling="mean", precision="fp32", prompts=None):
        stand_in = SimpleNamespace(encode_query=None, encode_document=None, encode=None, name="runs/mine")
        vars(stand_in).update(identity=identity, pooling=pooling, precision=precision, prompts=prompts or {})
        about = mteb_encoder(stand_in).mteb_model_meta
        return about.name, about.revision

    plain = named()
    assert (
        plain == named(prompts={"query": "", "document": ""}) == named(prompts={"none of the library": "a "})
    )
    others = [
        *(named(identity="v"), named(pooling="first last"), named(precision="bf16")),
        *(named(prompts=one) for one in ({"query": "a "}, {"query": "b "}, {"document": "a "})),
        named(prompts={"query": "a ", "document": "a "}),
    ]
    assert len({plain, *others}) == 1 + len(others)
    assert {name for name, _ in others} == {"clear/runs-mine-mean", "clear/runs-mine-first-last"}


def test_similarity_is_spearman_of_cosines_and_kept_results_are_taken(
    run_folder, tmp_path, monkeypatch, capsys
):
    model, task = open_model(run_folder), local_tasks()[0]
    found = evaluate(model, [task], tmp_path)
    rows = task.dataset["test"]
    first, second = (model.encode(rows[side]).astype(float) for side in ("sentence1", "sentence2"))
    cosine = (first * second).sum(1) / np.linalg.norm(first, axis=1) / np.linalg.norm(second, axis=1)
    expected = 100 * stats.spearmanr(cosine.round(6), rows["score"]).statistic
    one = found.tasks["LocalSTS"]
    assert one.value == one.scores["cosine_spearman"] == pytest.approx(expected, abs=0.2)
    assert one.metric == "cosine_spearman" and one.details["kind"] == "STS"
    assert f"LocalSTS: cosine_spearman {one.value:.2f}" in capsys.readouterr().err
    monkeypatch.setattr(mteb_english, "load", None)  # nothing is loaded a second time
    again = evaluate(open_model(run_folder), local_tasks()[:1], tmp_path)
    assert again.tasks["LocalSTS"].value == pytest.approx(one.value, abs=1e-3)


def test_texts_get_the_prompt_of_their_task_or_their_type():
    from mteb.types import PromptType

    query, document, seen = PromptType.query, PromptType.document, []
    stand_in = SimpleNamespace(name="m", identity="w", pooling="mean", precision="fp32")
    stand_in.prompts = {"query": "q ", "document": "d ", "STS": "s "}
    stand_in.encode = lambda texts, prompt=None: seen.append(("encode", texts, prompt))
    stand_in.encode_query = lambda texts: seen.append(("query", texts))
    stand_in.encode_document = lambda texts: seen.append(("document", texts))
    task, plain = about("LocalSTS", "STS", "x"), about("Other", "Clustering", "x")
    batches = [{"text": ["a", "b"]}, {"text": ["c"]}]
    encoder = mteb_encoder(stand_in)
    for metadata, kind in ((task, None), (plain, query), (plain, document), (plain, None)):
        encoder.encode(batches, task_metadata=metadata, prompt_type=kind)
    texts = ["a", "b", "c"]
    assert seen[0] == ("encode", texts, "s ") and seen[-1] == ("encode", texts, None)
    of_types = seen[1:-1]
    assert of_types in (
        [("encode", texts, "q "), ("encode", texts, "d ")],
        [("query", texts), ("document", texts)],
    )
    stand_in.prompts = {}
    encoder = mteb_encoder(stand_in)
    seen.clear()
    for kind in (query, document, None):
        encoder.encode(batches, task_metadata=plain, prompt_type=kind)
    assert seen == [("query", texts), ("document", texts), ("encode", texts, None)]
