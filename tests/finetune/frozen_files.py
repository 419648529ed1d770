"""Write a few examples of NLI, CoLA and Chinese STS-B, which frozen vectors are scored on, in their own
formats."""

import json

import numpy as np


def nli_examples(count=60, seed=0):
    """Return (premise, hypothesis, label); "-" is SNLI's label without agreement."""
    random = np.random.RandomState(seed)
    return [
        (f"premise {n % 12}", f"hypothesis {random.randint(999)}", "enc-"[random.randint(4)])
        for n in range(count)
    ]


def write_nli(folder, train=False):
    """ANLI's round 1, SNLI's test split, MNLI's dev split and two triplets."""
    rows = nli_examples()
    words = {"e": "entailment", "n": "neutral", "c": "contradiction", "-": "-"}
    anli = folder / "ANLI" / "R1"
    anli.mkdir(parents=True)
    for part in ("dev", "test", *(["train"] if train else [])):
        lines = [
            json.dumps({"context": p, "hypothesis": h, "label": label})
            for p, h, label in nli_examples(seed=1)
            if label != "-"
        ]
        (anli / f"{part}.jsonl").write_text("\n".join(lines) + "\n")
    snli = folder / "SentEval" / "SNLI"
    snli.mkdir(parents=True)
    for column, kind in enumerate(("s1", "s2")):
        (snli / f"{kind}.test").write_text("".join(f"{row[column]}\n" for row in rows))
    (snli / "labels.test").write_text("".join(f"{words[row[2]]}\n" for row in rows))
    nli = folder / "NLI"
    nli.mkdir()
    (nli / "mnli_dev.jsonl").write_text(
        "".join(
            json.dumps({"premise": p, "hypothesis": h, "label": words[label]}) + "\n" for p, h, label in rows
        )
    )
    (nli / "nli_triplets_from_snli.csv").write_text('sent0,sent1,hard_neg\n"a, b",b,c\nd,e,f\n')
    return folder


def write_cola(data):
    """CoLA's train and dev files, whose sentences are the longer the more acceptable."""
    folder = data / "GLUE" / "CoLA"
    folder.mkdir(parents=True)
    for part, count in (("train", 60), ("dev", 30)):
        rows = [
            f'gj04\t{n % 3 > 0:d}\t{"*" if n % 3 == 0 else ""}\t"{"word " * (n % 3 * 4 + 1)}{n}'
            for n in range(count)
        ]
        (folder / f"{part}.tsv").write_text("\n".join(rows) + "\n")


def write_zh(path, count=40):
    """Pairs of CNSD's STS-B; return the file."""
    random = np.random.RandomState(count)
    pool = list("一个男人女在吹笛子飞机")
    text = ""
    for number in range(count):
        one, two = ("".join(random.choice(pool, 6)) + "。" for _ in range(2))
        text += f"2012test-{number:04d}||{one}||{one if number % 9 == 0 else two}||{random.randint(6)}\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path
