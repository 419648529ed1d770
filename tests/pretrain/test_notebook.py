"""docs/first_encoder.ipynb, run by a Jupyter kernel as a reader runs it, on less text and for fewer steps."""

import base64

import pytest
from run_helpers import ROOT, environment, write_corpus
from sts_layout import write_layout

nbformat = pytest.importorskip("nbformat", reason="nbclient is not installed: the extra dev brings it")
from nbclient import NotebookClient  # noqa: E402

NOTEBOOK = ROOT / "docs" / "first_encoder.ipynb"
FORKS = f"""
import sys
sys.path.append({str(ROOT / "tests")!r})
from forked_python import forked_children
forks = forked_children()
forks.__enter__()
"""
SMALLER = {"STEPS = 300": "STEPS = 6", '"embedded",': '"corpus.txt",'}


@pytest.fixture(scope="module")
def cells(tmp_path_factory) -> list:
    """The code cells after a run beside a small corpus and benchmark."""
    folder = tmp_path_factory.mktemp("notebook")
    write_corpus(folder / "corpus.txt", documents=200)
    write_layout(folder / "benchmarks")
    notebook = nbformat.read(NOTEBOOK, 4)
    text = "\n".join(cell.source for cell in notebook.cells)
    assert all(text.count(long) == 1 for long in SMALLER)
    for cell in notebook.cells:
        for long, short in SMALLER.items():
            cell.source = cell.source.replace(long, short)
    client = NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(folder)}})
    startup = folder / "IPYTHONDIR" / "profile_default" / "startup"
    startup.mkdir(parents=True)
    (startup / "forks.py").write_text(FORKS)
    homes = {name: str(folder / name) for name in ("JUPYTER_RUNTIME_DIR", "IPYTHONDIR")}
    client.execute(env=environment() | homes | {"CLEAR_DATA": str(folder / "benchmarks")})
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def printed(cell) -> str:
    return "".join(output.text for output in cell.outputs if output.output_type == "stream")


@pytest.mark.full
def test_the_notebook_prepares_trains_shows_evaluates_and_exports(cells):
    prepared, counts, trained, curves, cosines, scores, exported = cells[1:]
    assert "unit sentence" in printed(prepared)
    assert "'documents': '200'" in counts.outputs[-1].data["text/plain"]
    assert "step 6/6" in printed(trained) and "is exported to first/run/export" in printed(trained)
    for cell in (curves, cosines):
        pictures = [
            output.data["image/png"] for output in cell.outputs if output.output_type == "display_data"
        ]
        assert len(pictures) == 1 and len(base64.b64decode(pictures[0])) > 10_000
    assert "STS-B  " in printed(scores)
    assert float(exported.outputs[-1].data["text/plain"]) < 1e-5


@pytest.mark.full
def test_what_runs_does_not_draw_bars_into_it(cells):
    """Frame after frame: a kernel tells its children that they may use colours."""
    for cell in cells[:-1]:  # the last one's is the library's own
        text = printed(cell)
        assert "\x1b[2K" not in text and "Loading weights" not in text, text[:2000]


def test_the_stored_outputs_are_of_one_run_and_of_no_machine():
    notebook = nbformat.read(NOTEBOOK, 4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert not any(place in NOTEBOOK.read_text("utf-8") for place in ("site-packages", str(ROOT)))
