"""The recipes of images, and training inside one.

Nothing is built: what they name must be in the project, and both must be the same image. Apptainer and Slurm
are stand-ins.
"""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SLURM = ROOT / "slurm"
CONTAINERFILE = (SLURM / "Containerfile").read_text()
DEFINITION = (SLURM / "clearly.def").read_text()
INSTALL = (SLURM / "install_in_image.sh").read_text()
STEP = "sh /opt/clear/slurm/install_in_image.sh"


def section(name: str) -> list[str]:
    """The lines of one section of clearly.def, without comments."""
    text = re.split(r"^%", DEFINITION, flags=re.MULTILINE)
    (lines,) = (part.splitlines()[1:] for part in text if part.startswith(name + "\n"))
    return [line.strip() for line in lines if line.strip() and not line.strip().startswith("#")]


def copied_by_containerfile() -> dict[str, str]:
    """{name: where it lies in the image}. COPY of a folder copies what is in it."""
    places = {}
    for line in re.findall(r"^COPY (.+)$", CONTAINERFILE, re.MULTILINE):
        *names, target = line.split()
        for name in names:
            places[name] = target if (ROOT / name).is_dir() else target + name
    return places


def copied_by_definition() -> dict[str, str]:
    """{name: where it lies in the image}. A target that ends with a slash is the folder to copy into."""
    pairs = [line.split() for line in section("files")]
    assert all(target.endswith("/") for _, target in pairs)
    return {name: target + name for name, target in pairs}


def test_both_images_are_the_same():
    bases = re.findall(r"^From(?::)? (\S+)$", CONTAINERFILE + DEFINITION, re.MULTILINE | re.IGNORECASE)
    assert len(bases) == 2 and len(set(bases)) == 1
    assert copied_by_containerfile() == copied_by_definition()
    assert re.findall(r"^RUN (.+)$", CONTAINERFILE, re.MULTILINE) == section("post") == [STEP]
    variables = re.findall(r"^ENV (.+)$", CONTAINERFILE, re.MULTILINE)
    assert variables == [line.removeprefix("export ") for line in section("environment")]


def test_the_code_in_the_image_is_found_before_any_other(tmp_path):
    other = tmp_path / "pretrain"
    other.mkdir()
    (other / "__init__.py").touch()
    (other / "clearly.py").write_text("raise SystemExit('the code of the current folder')\n")
    variables = dict(line.split("=", 1) for line in re.findall(r"^ENV (.+)$", CONTAINERFILE, re.MULTILINE))
    inside = {name: text.replace("/opt/clear", str(ROOT)) for name, text in variables.items()}
    for start in (["-m", "pretrain.clearly"], [ROOT / "pretrain" / "clearly.py"]):
        command = [sys.executable, *start, "--help"]
        run = subprocess.run(command, cwd=tmp_path, env=inside, capture_output=True, text=True)
        assert run.returncode == 0 and "usage: clearly COMMAND" in run.stdout, run.stderr


def test_the_base_is_pinned_to_a_python_that_is_tested():
    version = re.search(
        r"^FROM docker\.io/library/python:(\d+\.\d+)\.\d+-slim-\w+$", CONTAINERFILE, re.MULTILINE
    )
    assert version and f"Tested with CPython {version[1]}" in (ROOT / "README.md").read_text()


def test_the_image_has_all_that_an_installation_reads():
    copied = copied_by_definition()
    assert all((ROOT / name).exists() for name in copied)
    assert all(target == f"/opt/clear/{name}" for name, target in copied.items())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = {"setup.py", "pyproject.toml", project["readme"], *project["license-files"]}
    # of what setup.py and the Makefile's installation name, all that lies at the top
    rule = re.search(
        r"^\$\(INSTALLED\):.*?(?=\n\n)", (ROOT / "Makefile").read_text(), re.MULTILINE | re.DOTALL
    )[0]
    words = set(re.findall(r"[\w.]+", rule + (ROOT / "setup.py").read_text()))
    made = {line.strip("/") for line in (ROOT / ".gitignore").read_text().split()}  # by use: runs, data
    needed |= {path.name for path in ROOT.iterdir() if path.name in words - made}
    assert {"constraints.txt", "augment", "pretrain", "finetune", "configs"} <= needed
    assert needed <= copied.keys()
    ignored = set((ROOT / ".dockerignore").read_text().split("\n"))
    assert {".venv", "runs", "data"} <= ignored and not ignored & copied.keys()


def test_the_installation_is_the_makefiles_and_pinned():
    (target,) = re.findall(r"\bmake (\w+) VENV=/opt/venv$", INSTALL, re.MULTILINE)
    makefile = (ROOT / "Makefile").read_text()
    assert re.search(rf"^{target}: \$\(INSTALLED\)$", makefile, re.MULTILINE)
    installs = re.findall(r"pip install (.+)", makefile)
    assert installs and all(line.endswith("-c constraints.txt") for line in installs)
    pins = dict(re.findall(r"^([\w.-]+)==(.+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    torch = re.search(r"^TORCH \?= torch==(.+)$", makefile, re.MULTILINE)[1]
    assert pins["torch"] == torch
    assert all(f"torch {torch.rpartition('.')[0]}" in text for text in (CONTAINERFILE, DEFINITION))
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = re.findall(r'-e "\.\[([\w,]+)\]"', makefile)
    assert named and set(",".join(named).split(",")) <= extras.keys()


@pytest.mark.full
def test_the_compiled_parts_are_checked_by_lines_that_tell_them():
    checks = re.findall(r"^/opt/venv/bin/python -c '(.+)'$", INSTALL, re.MULTILINE)
    (check,) = checks
    module = re.search(r"from (\S+) import", check)[1]
    assert (ROOT / module.replace(".", "/")).with_suffix(".py").is_file()
    off = os.environ | {"CLEAR_KERNELS": "plain"}
    run = subprocess.run([sys.executable, "-c", check], cwd=ROOT, env=off, capture_output=True, text=True)
    assert run.returncode == 1 and "AssertionError" in run.stderr
    assert "augment pretrain -name '_native*.so' -delete" in INSTALL
    for extension in re.findall(r'Extension\(\s*"(\S+)"', (ROOT / "setup.py").read_text()):
        assert extension.endswith("._native") and extension.split(".")[0] in ("augment", "pretrain")


FLAGS = ["--config", "clear_base", "--train.steps", "7"]
SAVES = ["--run", "runs/test-7", "--resume", "auto"]


@pytest.mark.parametrize("gpus", [0, 1])
def test_ranks_run_in_the_image_that_is_named(submit, tmp_path, gpus):
    variables = {"SLURM_GPUS_ON_NODE": str(gpus)} if gpus else {}
    done, words = submit(*FLAGS, CLEAR_CONTAINER="clearly.sif", **variables)
    assert done.returncode == 0, done.stderr
    driver = ["--nv"] * gpus
    inside = ["python", "/opt/clear/pretrain/main.py"]
    assert words == ["apptainer", "exec", *driver, "clearly.sif", *inside, *FLAGS, *SAVES]
    assert (tmp_path / "rank").read_text().split() == ["0", "0", "1", "10.0.0.1"]


def test_without_an_image_ranks_run_the_projects_own_code(submit, tmp_path):
    done, words = submit(*FLAGS)
    assert done.returncode == 0, done.stderr
    assert words == ["python", str(tmp_path / "the project" / "pretrain" / "main.py"), *FLAGS, *SAVES]


def test_a_request_to_save_reaches_the_container_and_the_job_is_requeued(submit, tmp_path):
    done, _ = submit(CLEAR_CONTAINER="clearly.sif", STAYS="1")
    assert "the time limit is near (USR1)" in done.stdout
    assert "requeueing 7 (time-limit, exit status 75)" in done.stdout
    assert (tmp_path / "requeued").read_text() == "7\n"
    assert done.returncode == 75


@pytest.mark.parametrize("lacks", ["image", "apptainer"])
def test_a_missing_image_or_apptainer_is_said_before_any_rank_starts(submit, tmp_path, lacks):
    (tmp_path / {"image": "clearly.sif", "apptainer": "bin/apptainer"}[lacks]).unlink()
    done, words = submit(CLEAR_CONTAINER="clearly.sif")
    assert done.returncode == 2 and not words
    assert "CLEAR_CONTAINER=clearly.sif: no such image here, or no apptainer on the PATH" in done.stderr
