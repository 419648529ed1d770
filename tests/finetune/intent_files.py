"""Write a few examples of every intent set in its own format."""

import json


def layout(folder):
    """A few examples of every set in its own format; SNIPS has a class that only the test set knows."""
    for name in ("SNIPS", "HWU64"):
        for part in ("train", "valid", "test"):
            where = folder / "intents" / name / part
            where.mkdir(parents=True)
            labels = [f"class{n % 3}" for n in range(30)] + (
                ["unseen"] if part == "test" and name == "SNIPS" else []
            )
            (where / "label").write_text("".join(f"{label}\n" for label in labels))
            (where / "seq.in").write_text("".join(f"{part} {n} {label} \n" for n, label in enumerate(labels)))
    bank = folder / "intents" / "BANKING77"
    bank.mkdir()
    for part in ("train", "test"):
        (bank / f"{part}.csv").write_text(
            "text,category\n" + "".join(f'"a, ""b"" {n}",c{n % 2}\n' for n in range(20))
        )
    clinc = folder / "intents" / "CLINC150"
    clinc.mkdir()
    rows = [[f"text {n}", f"c{n % 2}"] for n in range(20)]
    (clinc / "data_full.json").write_text(
        json.dumps({"train": rows, "val": rows, "test": rows, "oos_train": [["x", "oos"]]})
    )
    return folder
