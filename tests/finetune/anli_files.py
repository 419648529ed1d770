"""ANLI and the sets that it is trained with, a few rows of each."""

import json
import random

from finetuning_helpers import sentence

SIZES = {"R1": 6, "R2": 8, "R3": 10}


def write_anli(root, training=("anli", "snli", "fever", "mnli")):
    draw = random.Random(4)

    def write(path, rows):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text("".join(json.dumps(row) + "\n" for row in rows))

    def rounds(count, first=0):
        return [
            {
                "uid": n,
                "context": sentence(draw),
                "hypothesis": sentence(draw),
                "label": "enc"[(n + first) % 3],
                "reason": "",
            }
            for n in range(count)
        ]

    for name, count in SIZES.items():
        for first, split in enumerate(("dev", "test")):  # one's answers have other figures in the other
            write(f"ANLI/{name}/{split}.jsonl", rounds(count, first))
        if "anli" in training:
            write(f"ANLI/{name}/train.jsonl", rounds(4))
    words = ("entailment", "neutral", "contradiction", "-")
    pairs = [
        {"sentence1": sentence(draw), "sentence2": sentence(draw), "gold_label": words[n % 4]}
        for n in range(16)
    ]
    if "snli" in training:
        write("NLI/snli_1.0/snli_1.0_train.jsonl", pairs)
    if "fever" in training:
        labels = ("SUPPORTS", "NOT ENOUGH INFO", "REFUTES")
        claims = [{"query": "claim", "context": "text", "label": labels[n % 3]} for n in range(5)]
        write("NLI/nli_fever/train_fitems.jsonl", claims)
    if "mnli" in training:
        folder = root / "GLUE" / "MNLI"
        folder.mkdir(parents=True)
        rows = [f"{pair['sentence1']}\t{pair['sentence2']}\t{words[n % 3]}" for n, pair in enumerate(pairs)]
        (folder / "train.tsv").write_text("\n".join(["sentence1\tsentence2\tgold_label", *rows]) + "\n")
    return str(root)
