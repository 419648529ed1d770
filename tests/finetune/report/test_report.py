"""The report: what it reads, how it groups and averages, and the page itself."""

import html.parser
import json
import re

import pytest
from commands import call
from made_runs import make_result, make_run, tables_of

from finetune import sts
from finetune.report.__main__ import report
from finetune.report.figures import POINTS, curve, curve_names
from finetune.report.sources import collect, differences, group
from finetune.results import Evaluation, TaskResult, read, write
from pretrain.benchmarks.sts_tasks import SEVEN_TASKS
from pretrain.common.errors import UserError

# -- reading and grouping ----------------------------------------------


def test_runs_that_differ_in_seed_only_are_one_row(tmp_path):
    for seed, value in ((1, 40.0), (2, 44.0), (3, 51.0)):
        run = make_run(tmp_path / f"clear-seed{seed}", seed)
        make_result(run / "report", "senteval", dict.fromkeys(SEVEN_TASKS, value), metric="spearman_all")
    other = make_run(tmp_path / "mlm-seed1", 1, "mlm")
    make_result(other / "report", "senteval", dict.fromkeys(SEVEN_TASKS, 45.0), metric="spearman_all")
    tables, systems = tables_of(tmp_path)
    assert [(s.label, s.seeds) for s in systems] == [("clear", [1, 2, 3]), ("mlm-seed1", [1])]
    first, second = tables["sts"].ours
    assert str(first.cells[0]) == "45.00 ± 5.57"
    assert first.cells[0].seeds == 3
    assert str(first.cells[-1]) == "45.00 ± 5.57"
    assert str(second.cells[0]) == "45.00 ± 0.50"  # one seed: the evaluation's own
    assert not first.cells[0].best  # all tie
    assert differences(systems) == {"objective.name": ["clear", "mlm"]}


def test_the_same_seed_twice_is_two_systems(tmp_path):
    for name in ("a/run", "b/run"):
        make_run(tmp_path / name)
    _, systems = tables_of(tmp_path / "a", tmp_path / "b")
    assert [system.label for system in systems] == ["a/run", "b/run"]


def test_a_seed_without_the_figure_is_said(tmp_path):
    make_result(make_run(tmp_path / "x-seed1", 1) / "report", "glue", {"RTE": 50.0})
    make_run(tmp_path / "x-seed2", 2)
    tables, _ = tables_of(tmp_path)
    (row,) = tables["glue"].ours
    assert tables["glue"].notes == ["x: 1 of 2 seeds have this figure"]
    assert row.cells[3].notes == [1]


def test_incomplete_figures_carry_their_reason(tmp_path):
    run = make_run(tmp_path / "run")
    make_result(
        run / "report", "clustering", dict.fromkeys(("agnews", "searchsnippets"), 30.0), note="two sets only"
    )
    tables, _ = tables_of(run)
    cell = tables["clustering"].ours[0].cells[0]
    assert cell.incomplete
    assert "two sets only" in tables["clustering"].notes[cell.notes[0] - 1]
    assert tables["clustering"].ours[0].cells[-1].value is None  # no average of two of six


def test_best_of_ours_is_marked_and_tasks_of_no_paper_are_kept(tmp_path):
    for name, value in (("one", 40.0), ("two", 42.0)):
        make_result(
            tmp_path / "results" / name, "senteval", {"MR": value, "SST5": 33.0, "average of 7 STS": 1.0}
        )
    tables, systems = tables_of(tmp_path / "results")
    assert [system.label for system in systems] == ["results/one", "results/two"]
    assert [row.cells[0].best for row in tables["transfer"].ours] == [False, True]
    assert tables["other_senteval"].columns == ["SST5 (accuracy)"]


def test_geometry_is_a_table_without_its_augmentations(tmp_path):
    evaluation = Evaluation("geometry", "some/model", "mean", "mean", "a protocol")
    evaluation.tasks = {
        name: TaskResult("cosine", 0.1239, {"cosine": 0.1239})
        for name in ("isotropy", "augmentation/reorder")
    }
    write(evaluation, tmp_path / "results" / "one")
    table = tables_of(tmp_path / "results")[0]["other_geometry"]
    assert table.columns == ["isotropy (cosine)"] and str(table.ours[0].cells[0]) == "0.124"


def test_clears_table_takes_the_regressor_and_the_mean_over_subsets(tmp_path):
    run = make_run(tmp_path / "run")
    make_result(
        run / "report",
        "senteval",
        {"SICK-R-supervised": 60.0, "STS12": 30.0, "SICK-R": 1.0},
        pearson_mean=35.0,
        pearson=70.0,
        spearman_all=36.0,
    )
    tables, _ = tables_of(run)
    assert tables["sts"].ours[0].cells[0].value == 36.0  # Spearman over all pairs, whichever is the headline
    (row,) = tables["clear_senteval"].ours
    assert [row.cells[0].value, row.cells[2].value] == [70.0, 35.0]
    assert row.cells[2].std is None  # the spread belongs to the headline


def test_the_commands_in_the_readmes_order_show_sts(tmp_path, monkeypatch):
    """sts, then report: whatever is evaluated, a run or another model, by one pooling or several."""
    from model_folders import save_bert, save_run

    benchmark = tmp_path / "data" / "STS" / "STSBenchmark"
    benchmark.mkdir(parents=True)
    texts = ["a man plays a guitar", "a woman rides", "the cat", "dogs bark at night", "cats do not"]
    rows = [f"g\tf\ty\t{n}\t{n % 6}\t{texts[n % 5]}\t{texts[(n * n + 1) % 5]}\n" for n in range(12)]
    (benchmark / "sts-dev.csv").write_text("".join(rows))
    (benchmark / "sts-test.csv").write_text("".join(rows))
    run = save_run(save_bert(tmp_path / "bert"), tmp_path / "run", "mean")
    monkeypatch.chdir(tmp_path)
    call(sts.main, str(run), eval_data="data")
    call(sts.main, "bert", pooling="mean", eval_data="data")
    written = sorted(path.name for path in (run / "report").glob("*.json"))
    assert written == ["sts-cls.json", "sts-mean.json"]
    assert (tmp_path / "results" / "bert" / "sts-mean.json").is_file()
    tables, _ = tables_of(run)
    rows = tables["sts"].ours
    assert {row.label for row in rows} == {"run, cls", "run, mean"}
    found = read(run / "report" / "sts-mean.json")
    column = tables["sts"].columns.index("STS-B")
    mean = next(row for row in rows if row.label == "run, mean")
    assert mean.cells[column].value == found.tasks["STS-B"].value and mean.cells[column].incomplete
    assert "STS-B has 12 pairs here, 1,379 as published" in found.notes
    assert (
        read(run / "report" / "sts-cls.json").notes[0]
        == f"{run} was trained with mean pooling and is evaluated with cls pooling"
    )
    assert tables_of("bert")[0]["sts"].ours[0].cells[column].value == found.tasks["STS-B"].value


def test_null_figures_are_blank(tmp_path):
    make_result(tmp_path / "x", "glue", {"RTE": float("nan"), "CoLA": 3.0})
    tables, _ = tables_of(tmp_path / "x")
    printed = [str(cell) for cell in tables["glue"].ours[0].cells]
    assert printed == 6 * [""] + ["3.00 ± 0.50", "", ""]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: path.mkdir(), "no run "),
        (lambda path: None, "no such folder"),
        (lambda path: (make_run(path) / "report" / "x.json").write_text("{"), "x.json is damaged"),
        (lambda path: (make_run(path) / "config.yaml").write_text("a: [b"), "is not YAML"),
        (
            lambda path: (make_run(path) / "report" / "x.json").write_text('{"evaluation": 1, "tasks": 2}'),
            "not a result",
        ),
    ],
)
def test_what_cannot_be_read_is_one_message(make, message, tmp_path):
    make(tmp_path / "thing")
    with pytest.raises(UserError, match=message):
        collect([str(tmp_path / "thing")])


# -- curves ------------------------------------------------------------


def test_long_curves_are_thinned_evenly_and_keep_their_ends(tmp_path):
    run = make_run(tmp_path / "run", steps=range(1, 2001))
    (system,) = group(collect([str(run)]))
    steps, values = curve(system.members[0], "loss/mlm")
    assert len(steps) == POINTS and steps[0] == 1 and steps[-1] == 2000
    assert values[-1] == 9 - 200
    assert curve_names([system]) == ["loss/mlm", "evaluation/stsb-dev"]


# -- the page ----------------------------------------------------------


class Checker(html.parser.HTMLParser):
    """Tags balance, ids are unique, and nothing is fetched."""

    void = frozenset({"meta", "br", "img", "link", "input", "hr"})

    def __init__(self):
        super().__init__()
        self.open, self.ids, self.links = [], [], []

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.ids += [given["id"]] if "id" in given else []
        self.links += [given[name] for name in ("src", "href", "xlink:href") if name in given]
        if tag not in self.void:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in self.void:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_stands_alone(tmp_path, capsys):
    for seed in (1, 2):
        run = make_run(tmp_path / "runs" / f"clear-seed{seed}", seed)
        make_result(
            run / "report", "senteval", dict.fromkeys(SEVEN_TASKS, 40.0 + seed), metric="spearman_all"
        )
    run = make_run(tmp_path / "runs" / "<mlm>|x", 1, "mlm")
    make_result(
        run / "report",
        "senteval",
        dict.fromkeys(SEVEN_TASKS, 39.0),
        metric="spearman_all",
        note="a <b>note</b>",
    )
    report(str(run), out=tmp_path / "out")
    report(str(tmp_path / "runs"), out=tmp_path / "out", title="A & B")
    page = tmp_path / "out" / "report.html"
    assert capsys.readouterr().out.splitlines() == [
        f"{page}: systems: 1, runs or models: 1; report.json beside it",
        f"{page}: systems: 2, runs or models: 3; report.json beside it",
    ]
    text = (tmp_path / "out" / "report.html").read_text()
    checker = Checker()
    checker.feed(text)
    assert not checker.open
    assert len(checker.ids) == len(set(checker.ids))
    assert checker.links and all(link.startswith(("#", "data:")) for link in checker.links)
    assert not re.search(r"@import|url\((?!#)", text)
    assert {link[1:] for link in checker.links if link.startswith("#")} <= set(checker.ids)
    assert "<title>A &amp; B</title>" in text and "&lt;mlm&gt;|x" in text and "<b>note" not in text
    assert "<strong>41.50</strong>" in text and "Unsup. SimCSE-BERT-base" in text
    content = json.loads((tmp_path / "out" / "report.json").read_text())
    assert [system["label"] for system in content["systems"]] == ["<mlm>|x", "clear"]
    sts = next(table for table in content["tables"]["Results"] if table["key"] == "sts")
    assert sts["blocks"][0]["rows"][1]["cells"][0]["value"] == 41.5


def test_a_folder_of_results_that_has_none_yet_is_one_message(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results" / "nope" / "eval").mkdir(parents=True)  # as of an evaluation that was interrupted
    with pytest.raises(UserError, match="nope: there are no results in results/nope yet"):
        collect(["nope"])


def test_nothing_named_is_an_error():
    with pytest.raises(UserError, match="name runs or"):
        report()


def test_tasks_of_another_protocols_file_are_not_lost(tmp_path):
    folder = tmp_path / "results" / "one"
    make_result(folder, "senteval", {"MR": 70.0, "CR": 60.0})
    (path,) = folder.glob("senteval-*.json")
    other = json.loads(path.read_text())
    other["tasks"] = {"MR": other["tasks"]["MR"] | {"value": 1.0}, "SST5": other["tasks"]["CR"]}
    path.with_name(f"{path.stem}-01234567.json").write_text(json.dumps(other))
    tables, _ = tables_of(folder)
    assert [cell.value for cell in tables["transfer"].ours[0].cells[:2]] == [70.0, 60.0]
    assert tables["other_senteval"].columns == ["SST5 (accuracy)"]
