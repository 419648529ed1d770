"""Few-shot intents: the batched optimisation against separate torch.optim.Adam fits, splits, readers,
messages."""

import json
import sys

import numpy as np
import pytest
import torch
from commands import call
from real_data import needs_data

from finetune import intents
from finetune.encoders.models import open_model
from finetune.intents import BATCH, FOUR, SETS, Sample, first_weights, fit, mini_batches, read, samples
from pretrain.common.errors import UserError


def separate_fit(vectors, labels, test, test_labels, sample, classes, split, iterations, every):
    """The protocol for one split, written plainly: (test accuracy, validation accuracy, iteration,
    weights)."""
    layer = torch.nn.Linear(vectors.shape[1], classes)
    with torch.no_grad():
        weight, bias = first_weights(vectors.shape[1], classes, split)
        layer.weight.copy_(weight)
        layer.bias.copy_(bias)
    optimizer = torch.optim.Adam(layer.parameters(), lr=intents.LEARNING_RATE)
    best = (0.0, -1.0, 0)
    for step, batch in enumerate(mini_batches(len(sample.train), split, iterations), start=1):
        rows = torch.from_numpy(sample.train[batch])
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(layer(vectors[rows]), labels[rows]).backward()
        optimizer.step()
        if step % every == 0:
            part = torch.from_numpy(sample.validation)
            with torch.no_grad():
                score = 100 * (layer(vectors[part]).argmax(1) == labels[part]).double().mean().item()
                if score > best[1]:
                    best = (100 * (layer(test).argmax(1) == test_labels).double().mean().item(), score, step)
    return best


def examples(classes=6, each=45, width=20, seed=0):
    random = np.random.RandomState(seed)
    centres = random.randn(classes, width)
    labels = np.repeat(np.arange(classes), each)
    vectors = (centres[labels] + 1.5 * random.randn(len(labels), width)).astype(np.float32)
    test_labels = random.randint(classes, size=200)
    test = (centres[test_labels] + 1.5 * random.randn(200, width)).astype(np.float32)
    return (
        torch.from_numpy(vectors),
        torch.from_numpy(labels),
        torch.from_numpy(test),
        torch.from_numpy(test_labels),
    )


def test_all_fits_in_one_optimisation_equal_separate_ones(monkeypatch):
    monkeypatch.setattr(intents, "LEARNING_RATE", 1e-2)  # so that 100 steps go somewhere
    vectors, labels, test, test_labels = examples()
    chosen = [sample for shots in (5, 10, 20) for sample in samples(labels.numpy(), shots)]
    assert len({len(sample.train) % BATCH for sample in chosen}) > 1  # passes end at different steps
    together = fit(vectors, labels, test, test_labels, chosen, 6, iterations=100, validate_every=20)
    for number in (0, 3, 6, 9, 12):
        alone = separate_fit(vectors, labels, test, test_labels, chosen[number], 6, number % 5, 100, 20)
        assert (
            together[number].test,
            together[number].validation,
            together[number].iteration,
        ) == pytest.approx(alone)
    assert len({one.test for one in together}) > 3 and min(one.test for one in together) > 30


def test_weights_equal_after_many_steps(monkeypatch):
    """Not only the accuracies: the weights themselves, one validation at the very end."""
    vectors, labels, test, test_labels = examples()
    chosen = samples(labels.numpy(), 7, splits=3)
    kept = []
    monkeypatch.setattr(intents, "_accuracy", lambda layer, *_: kept.append(layer.clone()) or 0.0)
    fit(vectors, labels, test, test_labels, chosen, 6, iterations=200, validate_every=200)
    for number, sample in enumerate(chosen):
        layer = torch.nn.Linear(20, 6)
        weight, bias = first_weights(20, 6, number)
        layer.load_state_dict({"weight": weight, "bias": bias})
        optimizer = torch.optim.Adam(layer.parameters(), lr=1e-4)
        for batch in mini_batches(len(sample.train), number, 200):
            rows = torch.from_numpy(sample.train[batch])
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(layer(vectors[rows]), labels[rows]).backward()
            optimizer.step()
        expected = torch.cat([layer.weight, layer.bias[:, None]], 1).detach()
        torch.testing.assert_close(kept[2 * number], expected, atol=2e-6, rtol=1e-5)
        assert (expected - torch.cat([weight, bias[:, None]], 1)).abs().max() > 5e-3


def test_splits_are_fixed_nested_and_disjoint():
    labels = np.array([0] * 50 + [1] * 45 + [2] * 7 + [3])
    by_shots = {shots: samples(labels, shots) for shots in (5, 10, 20)}
    for shots, found in by_shots.items():
        assert len(found) == 5
        for sample in found:
            assert not set(sample.train) & set(sample.validation)
            assert np.bincount(labels[sample.train]).tolist() == [shots, shots, 4, 1]
            assert np.bincount(labels[sample.validation], minlength=4).tolist() == [shots, shots, 3, 0]
    for small, large in ((5, 10), (10, 20)):
        for one, other in zip(by_shots[small], by_shots[large], strict=True):
            assert set(one.train) <= set(other.train)
    assert len({tuple(sample.train) for sample in by_shots[5]}) == 5
    # These very rows: a change of the sampling would make every earlier result incomparable.
    assert by_shots[5][0].train[:5].tolist() == PINNED_ROWS


PINNED_ROWS = [32, 29, 13, 49, 14]


def test_mini_batches_pass_over_all_rows():
    batches = mini_batches(70, 0, 7)
    assert [len(batch) for batch in batches] == [32, 32, 6, 32, 32, 6, 32]
    assert sorted(np.concatenate(batches[:3])) == sorted(np.concatenate(batches[3:6])) == list(range(70))


def layout(folder):
    """A few examples of every set in its own format; ATIS has a class that only the test set knows."""
    for name in ("SNIPS", "HWU64", "ATIS"):
        for part in ("train", "valid", "test"):
            where = folder / "intents" / name / part
            where.mkdir(parents=True)
            labels = [f"class{n % 3}" for n in range(30)] + (
                ["unseen"] if part == "test" and name == "ATIS" else []
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


def test_every_format_is_read(tmp_path):
    data = layout(tmp_path)
    atis = read("atis", data)
    assert (
        len(atis.texts) == 60
        and atis.classes == ["class0", "class1", "class2"]
        and atis.test_labels[-1] == -1
    )
    assert read("BANKING77", data).texts[0] == 'a, "b" 0'
    clinc = read("CLINC150", data)
    assert len(clinc.texts) == 40 and clinc.classes == ["c0", "c1"]  # in scope only
    assert atis.texts[0] == "train 0 class0"


def embed(sentences):
    return np.array([[s.count(str(n)) for n in range(10)] + [len(s)] for s in sentences], np.float32)


def test_command_writes_a_task_for_every_number_of_shots(tmp_path, monkeypatch, capsys):
    data = layout(tmp_path / "data")
    monkeypatch.setattr(intents, "ITERATIONS", 10)
    monkeypatch.setattr(intents, "VALIDATE_EVERY", 5)
    monkeypatch.setitem(sys.modules, "words", type(sys)("words"))
    sys.modules["words"].embed = embed
    assert (
        call(
            intents.main,
            "words:embed",
            tasks="SNIPS,ATIS",
            shots="5,20",
            eval_data=str(data),
            out=str(tmp_path / "out"),
        )
        == 0
    )
    content = json.loads((tmp_path / "out" / "intents-function.json").read_text())
    assert list(content["tasks"]) == ["SNIPS-5", "SNIPS-20", "ATIS-5", "ATIS-20"]
    task = content["tasks"]["SNIPS-5"]
    assert (
        task["value"] == pytest.approx(np.mean(task["details"]["splits"])) and task["details"]["train"] == 15
    )
    assert task["std"] == pytest.approx(np.std(task["details"]["splits"], ddof=1))
    assert content["complete"] is False
    notes = " ".join(content["notes"])
    assert "60 examples to sample from" in notes and "1 test examples are of classes without any" in notes
    assert "SNIPS, 20-shot: 3 of 3 classes have fewer than 40" in notes
    assert "SNIPS: 5-shot" in capsys.readouterr().err


def test_every_file_is_read_once(tmp_path, monkeypatch):
    data, opened, lines = layout(tmp_path / "data"), [], intents.lines
    monkeypatch.setattr(intents, "lines", lambda path, *rest: opened.append(path) or lines(path, *rest))
    monkeypatch.setattr(intents, "ITERATIONS", 5)
    monkeypatch.setattr(intents, "VALIDATE_EVERY", 5)
    monkeypatch.setattr(intents, "open_model", lambda *_: open_model(embed))
    call(
        intents.main, "unused", tasks="SNIPS,HWU64", shots="5", eval_data=str(data), out=str(tmp_path / "out")
    )
    assert opened and len(opened) == len(set(opened))


def test_result_does_not_depend_on_other_sets_or_shots(tmp_path, monkeypatch):
    data = layout(tmp_path)
    model = open_model(embed)
    monkeypatch.setattr(intents, "ITERATIONS", 10)
    monkeypatch.setattr(intents, "VALIDATE_EVERY", 5)
    loaded = {name: read(name, data) for name in ("SNIPS", "CLINC150")}
    together = intents.evaluate(model, loaded, (5, 10), report=lambda _: None)
    alone = intents.evaluate(model, {"CLINC150": loaded["CLINC150"]}, (10,), report=lambda _: None)
    assert together.tasks["CLINC150-10"] == alone.tasks["CLINC150-10"]


def test_mistakes_are_one_message(tmp_path):
    data = layout(tmp_path)
    with pytest.raises(UserError, match="did you mean 'BANKING77'"):
        call(intents.main, "unused", tasks="banking", eval_data=str(data))
    for shots in ("", "five", "0", "5;10"):
        with pytest.raises(UserError, match="--shots"):
            call(intents.main, "unused", tasks="SNIPS", shots=shots, eval_data=str(data))
    (data / "intents" / "SNIPS" / "test" / "label").write_text("class0\n")
    with pytest.raises(UserError, match=r"30 lines in seq\.in but 1 in label"):
        read("SNIPS", data)
    (data / "intents" / "HWU64" / "test" / "label").unlink()
    with pytest.raises(UserError, match=r"files seq\.in and label"):
        read("HWU64", data)
    (data / "intents" / "BANKING77" / "train.csv").write_text("text,intent\na,b\n")
    with pytest.raises(UserError, match="must name text and category"):
        read("BANKING77", data)
    for bad in ('{"train": []}', "[" * 50_000, '{"train": [["\\ud800", "a"]], "val": [], "test": []}'):
        (data / "intents" / "CLINC150" / "data_full.json").write_text(bad)
        with pytest.raises(UserError, match="not CLINC150's json"):
            read("CLINC150", data)


def test_short_batches_are_padded_without_weight():
    rows, scale = intents._padded_batches([Sample(np.arange(10, 50), np.arange(3))], 4)
    assert rows.shape == (4, 1, BATCH) and torch.allclose(scale.sum(2), torch.ones(4, 1))
    assert (scale[1, 0, :8] == 1 / 8).all() and (scale[1, 0, 8:] == 0).all()


@needs_data(*(f"intents/{name}" for name in SETS))
def test_real_files_have_the_published_sizes():
    for name, (pool, test, classes) in SETS.items():
        found = read(name)
        assert len(found.classes) == classes
        if test is not None:
            assert (len(found.texts), len(found.test_texts)) == (pool, test)
    atis = np.bincount(read("ATIS").labels)
    assert atis.max() / atis.sum() == pytest.approx(0.73, abs=0.01)  # VaSCL, appendix C
    assert set(FOUR) < set(SETS)
