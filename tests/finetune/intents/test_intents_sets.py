"""The intent sets: every format is read, damage is named, the real files have the published sizes."""

from intent_files import layout
from real_data import needs_data

from finetune.intents.sets import SETS, read
from pretrain.benchmarks.files import DATA_SETS


def test_every_format_is_read(tmp_path):
    data = layout(tmp_path)
    snips = read("SNIPS", data)
    assert len(snips.texts) == 60 and snips.classes == ["class0", "class1", "class2"]
    assert snips.test_labels[-1] == -1
    assert read("BANKING77", data).texts[0] == 'a, "b" 0'
    clinc = read("CLINC150", data)
    assert len(clinc.texts) == 40 and clinc.classes == ["c0", "c1"]  # in scope only
    assert snips.texts[0] == "train 0 class0"


@needs_data(*(f"intents/{name}" for name in SETS))
def test_real_files_have_the_published_sizes():
    for name in SETS:
        found, published = read(name), DATA_SETS[f"intents/{name}"].rows
        assert len(found.classes) == published["classes"]
        if "test" in published:
            assert (len(found.texts), len(found.test_texts)) == (published["examples"], published["test"])
