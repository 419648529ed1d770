"""What pyproject.toml cannot say: compiled parts, and recipes that lie outside the packages."""

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
    packages=[
        *find_packages(include=["augment", "augment.*", "pretrain", "pretrain.*", "finetune", "finetune.*"]),
        "pretrain.recipes",  # the recipes: `pretrain.config.recipe.RECIPES`
        "pretrain.recipes.sweeps",
    ],
    package_dir={"pretrain.recipes": "configs"},
    # What a package takes along is listed here alone. Otherwise setuptools adds the C++ sources, which
    # MANIFEST.in names for the source archive, and warns of each such folder at every installation.
    include_package_data=False,
    package_data={
        "augment": ["word_lists/*"],
        "finetune": ["anli.yaml"],
        "finetune.figures": ["page.mplstyle"],
        "finetune.judge": ["docstrings.tsv"],
        "finetune.senteval": ["tasks.yaml"],
        "finetune.tuning": ["glue.yaml"],
        "finetune.report": ["curves.yaml", "page.css", "page.html.jinja", "published.yaml"],
        "pretrain.benchmarks": ["data_sets.tsv"],
        "pretrain.export": ["card.md.jinja"],
        "pretrain.commands.show": ["show.html.jinja"],
        "pretrain.recipes": ["*.yaml"],
        "pretrain.recipes.sweeps": ["*.yaml"],
    },
    # The loops of text augmentation are required: they need a C++17 compiler, and nanobind (pyproject.toml).
    ext_modules=[
        Extension(
            "augment._native",
            sorted(map(str, Path("augment/native").glob("*.cpp"))),
            depends=sorted(map(str, Path("augment/native").glob("*.h"))),
            include_dirs=nanobind_folders(),
            # nanobind asks for the last two, and its debug information would be most of the file
            extra_compile_args=["-O2", "-std=c++17", "-g0", "-fvisibility=hidden", "-fno-strict-aliasing"],
        ),
        # Optional: without OpenMP the layers compute in plain torch, with the same results but for
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
)
