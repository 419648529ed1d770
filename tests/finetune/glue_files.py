"""GLUE in the official layout, a few rows of each task."""

import random

from finetuning_helpers import sentence

from finetune.tuning import tasks


def write_glue(root, train=40, dev=24, test=7):
    """All tasks in the official layout, a few rows each."""
    draw = random.Random(2)

    def write(task, split, header, row, rows, mark=""):
        folder = root / "GLUE" / task
        folder.mkdir(parents=True, exist_ok=True)
        lines = ([header] if header else []) + [row(n) for n in range(rows)]
        (folder / f"{split}.tsv").write_text(mark + "\n".join(lines) + "\n", encoding="utf-8")

    s = lambda: sentence(draw)  # noqa: E731
    counts = {"train": train, "dev": dev}
    words = {"QNLI": tasks.TASKS["RTE"].labels, "RTE": tasks.TASKS["RTE"].labels, "WNLI": ("0", "1")}
    for split, rows in counts.items():
        write("CoLA", split, "", lambda n: f"gj04\t{n % 2}\t{'*' * (n % 2)}\t{s()}", rows)
        write(
            "SST-2", split, "sentence\tlabel", lambda n: f"{s()} {'good' if n % 2 else 'bad'} \t{n % 2}", rows
        )
        columns = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"
        write("MRPC", split, columns, lambda n: f'{n % 2}\t1\t2\t" {s()}\t{s()}', rows, "\ufeff")
        columns = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate"
        write("QQP", split, columns, lambda n: f"{n}\t1\t2\t{s()}\t{s()}\t{n % 2}", rows)
        columns = "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2"
        write(
            "STS-B",
            split,
            columns + "\tscore",
            lambda n: f"{n}\tg\tf\ty\t0\tn\tn\t{s()}\t{s()}\t{n % 6 * 0.9:.3f}",
            rows,
        )
        for task, labels in words.items():
            names = "question\tsentence" if task == "QNLI" else "sentence1\tsentence2"
            write(
                task,
                split,
                f"index\t{names}\tlabel",
                lambda n, labels=labels: f"{n}\t{s()}\t{s()}\t{labels[n % 2]}",
                rows,
            )
    many = "\t".join(["index", *"abcdefg", "sentence1", "sentence2"])
    for split, rows in (("train", train), ("dev_matched", dev), ("dev_mismatched", dev)):
        header = many + "\tlabel1\tgold_label"
        write(
            "MNLI",
            split,
            header,
            lambda n: f"{n}\t" + "x\t" * 7 + f"{s()}\t{s()}\tx\t{tasks.NLI[n % 3]}",
            rows,
        )
    for split in ("test_matched", "test_mismatched"):
        write("MNLI", split, many, lambda n: f"{n}\t" + "x\t" * 7 + f"{s()}\t{s()}", test)
    for task in ("CoLA", "SST-2"):
        write(task, "test", "index\tsentence", lambda n: f"{n}\t{s()}", test)
    write(
        "MRPC",
        "test",
        "index\t#1 ID\t#2 ID\t#1 String\t#2 String",
        lambda n: f"{n}\t1\t2\t{s()}\t{s()}",
        test,
        "\ufeff",
    )
    write("QQP", "test", "id\tquestion1\tquestion2", lambda n: f"{n}\t{s()}\t{s()}", test)
    write("STS-B", "test", columns, lambda n: f"{n}\tg\tf\ty\t0\tn\tn\t{s()}\t{s()}", test)
    write("QNLI", "test", "index\tquestion\tsentence", lambda n: f"{n}\t{s()}\t{s()}", test)
    for task in ("RTE", "WNLI"):
        write(task, "test", "index\tsentence1\tsentence2", lambda n: f"{n}\t{s()}\t{s()}", test)
    write("diagnostic", "diagnostic", "index\tsentence1\tsentence2", lambda n: f"{n}\t{s()}\t{s()}", test)
    return root
