"""The settings on which published figures depend, written down a second time.

A change of one is a change of every figure that was made before: of the protocol, its name and the documents.
"""

from dataclasses import asdict

from finetune import anli, clustering, compare, derived, nli_distance, zh_sts
from finetune.geometry import run as geometry
from finetune.glue import runs as glue
from finetune.intents import __main__ as intents
from finetune.intents import sets as intent_sets
from finetune.judge import averaging, by_products, choice, heldout, parts, scores
from finetune.senteval.classifier import ClassifierSettings
from finetune.senteval.protocol import L2_GRID, SETTINGS
from finetune.tuning.recipe import Recipe, TrainingOptions
from pretrain.benchmarks import own_sets, retrieval, sts_tasks
from pretrain.telemetry import intervals

STS = ["STS12", "STS13", "STS14", "STS15", "STS16", "STS-B", "SICK-R"]
ROBERTA = {"betas": (0.9, 0.98), "eps": 1e-6, "weight_decay": 0.1, "clip": 0.0, "dropout": 0.1}


def test_fine_tuning_is_robertas_and_anlis():
    """Liu et al. 2019, table 10 and section 5.1; Nie et al. 2020, appendix D."""
    assert asdict(Recipe(1e-5, 16)) == {"lr": 1e-5, "batch_size": 16, "epochs": 10, "warmup": 0.06} | ROBERTA
    grid = [(1e-5, 16), (2e-5, 16), (3e-5, 16), (1e-5, 32), (2e-5, 32), (3e-5, 32)]
    assert [row[:2] for row in glue.GRID] == grid and {row[2] for row in glue.GRID} == {0.06}
    assert (glue.SEEDS, glue.EPOCHS, glue.MAX_LENGTH) == (5, 10, 512)
    adam = {"betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0, "clip": 1.0, "dropout": 0.1}
    assert asdict(anli.RECIPE) == {"lr": 1e-5, "batch_size": 128, "epochs": 2, "warmup": 0.1} | adam
    assert (anli.MAX_LENGTH, anli.EVALUATE_EVERY, anli.ROUNDS) == (156, 2000, ("R1", "R2", "R3"))
    options = TrainingOptions()
    assert (options.seeds, options.lr, options.batch_size, options.max_train) == (1, None, None, 0)


def test_senteval_is_its_papers_and_simcses():
    plain = {"optimizer": "adam", "batch_size": 64, "tenacity": 5, "epoch_size": 4, "max_epoch": 200}
    assert asdict(ClassifierSettings()) == plain | {"seed": 1111}
    fast = {"optimizer": "rmsprop", "batch_size": 128, "tenacity": 3, "epoch_size": 2}
    assert asdict(SETTINGS["dev"].classifier) == plain | fast | {"seed": 1111}
    assert asdict(SETTINGS["test"].classifier) == plain | {"seed": 1111}
    assert (SETTINGS["test"].folds, SETTINGS["dev"].folds) == (10, 5)
    assert list(L2_GRID) == [0.00001, 0.0001, 0.001, 0.01]


def test_probes_of_frozen_vectors():
    """VaSCL, section 4.2; SCCL's six sets, shortened as its code does."""
    assert (intent_sets.SHOTS, intent_sets.SPLITS, intent_sets.SEED) == ((5, 10, 20), 5, 0)
    assert (intent_sets.LEARNING_RATE, intent_sets.BATCH) == (1e-4, 32)
    assert (intents.ITERATIONS, intents.VALIDATE_EVERY) == (1000, 100)
    assert (clustering.TRIALS, clustering.RESTARTS, clustering.MAX_LENGTH) == (10, 10, 64)
    assert len(clustering.SIX) == len(set(clustering.SIX)) == 6
    assert clustering.METRICS == ("accuracy", "nmi", "ami", "ari")
    assert (own_sets.MOST_CLASSES, own_sets.ITERATIONS) == (1000, 1000)
    assert (nli_distance.LABELS["e"], nli_distance.LABELS["n"]) == ("entailment", "neutral")


def test_averages_are_those_of_the_papers_tables():
    assert list(compare.AVERAGES["average of 7 STS"]) == list(sts_tasks.SEVEN_TASKS) == STS
    transfer = ["MR", "CR", "SUBJ", "MPQA", "SST2", "TREC", "MRPC"]
    assert list(compare.AVERAGES["average of 7 transfer"]) == transfer
    table_1 = ["MNLI", "QNLI", "QQP", "RTE", "SST-2", "MRPC", "CoLA", "STS-B"]
    assert list(compare.AVERAGES["average of 8"]) == table_1
    assert len(set(compare.AVERAGES["average of 13"])) == 13 and len(compare.AVERAGES) == 4
    assert (intervals.LEVEL, intervals.RESAMPLES) == (0.95, 1000)
    assert zh_sts.TASKS == {"STS-B-zh": "test", "STS-B-zh-dev": "dev"}
    pairs = {"STS12": 3108, "STS13": 1500, "STS14": 3750, "STS15": 3000, "STS16": 1186}
    found = {task: sts_tasks.OFFICIAL_PAIRS[task] for task in STS}
    assert found == pairs | {"STS-B": 1379, "SICK-R": 4927}


def test_the_judge_holds_out_and_forgives_as_documented():
    assert (heldout.SHARE, heldout.MOST_DOCUMENTS, heldout.MOST_CHARACTERS) == (0.2, 10_000, 4_000_000)
    assert (heldout.MOST_PASSAGES, heldout.MOST_PASSAGE_CHARACTERS) == (10_000, 1_000_000)
    assert (heldout.MOST_QUERIES, heldout.ENOUGH) == (2000, 100)
    assert (heldout.FEWEST, heldout.FEWEST_DOCUMENTS) == (20, 4)
    assert (heldout.SHINGLE, heldout.SHARED) == (5, 0.5) and heldout.HALVES == ("dev", "test")
    assert (parts.FEW, parts.PARTS, parts.SMALLEST, parts.GAP) == (50, 200, 1000, 300)
    assert choice.MOST_FORGOTTEN == 1.0 and averaging.ALPHAS == (0, 0.25, 0.5, 0.75, 1)
    assert list(scores.METRICS) == ["ndcg@10", "mrr@10", "recall@10"]
    assert (retrieval.DEPTH, retrieval.HEADLINE) == (100, "ndcg@10")
    sif, whitened, static = by_products.FITTED.values()
    assert (sif.pooling, sif.whiten, sif.remove, sif.static) == ("sif", None, 0, "")
    assert (whitened.pooling, whitened.whiten, whitened.sentences, whitened.static) == ("", 0, 2000, "")
    assert (static.pooling, static.whiten, static.static) == ("", None, "encoded")


def test_sizes_that_decide_what_is_computed():
    assert (derived.SPECTRUM_FLOOR, derived.MOST_SENTENCES, derived.TABLE_BYTES) == (1e-6, 10_000, 8_000_000)
    assert derived.WEIGHTINGS == ("sif", "idf")
    assert geometry.TOP == (1, 2, 5, 10, 20, 50, 100)
    assert (geometry.NLI_SAMPLE, geometry.RATIOS) == (20_000, 3.0)
