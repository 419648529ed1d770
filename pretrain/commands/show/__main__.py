"""Show a run on one page: curves, held-out figures, a batch, and what search finds before and after training.

    clearly show runs/demo
    clearly show runs/demo --queries questions.txt --sentences 50000 --out demo.html

The page is one file that asks no network for anything. Search compares two encoders of the run: its own
start, made again from its seed and configuration, and what the run stands for (best/). Sentences are those of
its data, as its tokenizer reads them.
"""

from pathlib import Path

from pretrain.benchmarks.files import read_queries
from pretrain.common import cli
from pretrain.common.environment import choose_accelerator
from pretrain.common.files import make_folder, replace_durably, require_writable_file
from pretrain.common.run_folder import require_run


def show(
    run: str, *, out: cli.OutFile | None = None, sentences: cli.Count = 10_000, queries: Path | None = None
) -> None:
    """Write one page on a run: curves, a batch, and what search finds before and after training.

    Args:
        run: the run folder.
        out: the file to write; default: RUN/report/page.html.
        sentences: how many of its training sentences are searched.
        queries: a file with a query a line; default: five held-out sentences.
    """
    require_run(Path(run))
    given_queries = read_queries(queries) if queries is not None else []
    place = out or Path(run) / "report" / "page.html"
    require_writable_file(place)
    choose_accelerator()
    from pretrain.commands.show.page import page_of  # imports torch and transformers

    html = page_of(Path(run), sentences, given_queries)
    make_folder(place.parent)
    replace_durably(place, html.encode())
    print(f"page: {place.resolve()}")


if __name__ == "__main__":
    cli.run(show)
