"""Pack what a GPU machine without a network needs to accept this tree: `bash FOLDER/run.sh` there.

    python tests/benchmarks/gpu_bundle.py [--out .gpu] [--python 3.12] [--torch 2.11]

The machine has Python, torch for CUDA, triton, transformers and pytest; a wheel of everything else that the
package imports is made of this environment's own files, or, where it has compiled parts, downloaded for that
Python. The tree is that of git's tracked files. `run.sh` unpacks both beside itself, builds the augmentations
where there is a compiler, and runs `gpu_accept.py`, which takes 4 minutes at most and prints each part as it
ends. Words given to it are gpu_accept's; OUT is where its JSON goes.
"""

import argparse
import csv
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from importlib.metadata import distribution
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PURE = """
    deepspeed hjson webdataset braceexpand fire termcolor datasets dill filelock pydantic annotated-types
    typing-inspection datatrove loguru num2words docopt
""".split()  # noqa: SIM905
COMPILED = ("pydantic-core", "zstandard", "multiprocess", "nanobind")
LEFT_OUT = (".pyc", "INSTALLER", "REQUESTED", "RECORD", "direct_url.json", ".tar.gz")
DEEPSPEED = "deepspeed/git_version_info_installed.py"
"""Where DeepSpeed keeps what it was installed for."""

RUN = r"""#!/bin/bash
# Accept this machine's GPU: bash run.sh [gpu_accept.py's options]. DEVICE=cpu tests the bundle itself.
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
work="${WORK:-$(mktemp -d)}"; python="${PYTHON:-python3}"; out="${OUT:-$here}"
"$python" - "$here" "$work" <<'END'
import sys, tarfile, zipfile
from pathlib import Path
here, work = map(Path, sys.argv[1:])
for wheel in sorted(here.glob("wheels/*.whl")):
    zipfile.ZipFile(wheel).extractall(work / "site")
tarfile.open(here / "tree.tgz").extractall(work)
END
cd "$work/tree" || exit 1
export PYTHONPATH="$work/tree:$work/site" PYTHONUNBUFFERED=1 TOKENIZERS_PARALLELISM=false
export HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 NCCL_SOCKET_IFNAME=lo GLOO_SOCKET_IFNAME=lo
command -v g++ > /dev/null && "$python" setup.py -q build_ext --inplace > "$work/build.txt" 2>&1
exec "$python" tests/benchmarks/gpu_accept.py --device "${DEVICE:-cuda}" --out "$out/accept.json" "$@"
"""


def pack(name: str, folder: Path, torch: str) -> None:
    """Make a wheel of an installed package without compiled parts."""
    found, site = distribution(name), Path(sysconfig.get_paths()["purelib"])
    info = next(Path(str(file)).parts[0] for file in found.files or () if ".dist-info" in str(file))
    names = [row[0] for row in csv.reader((site / info / "RECORD").read_text().splitlines())]
    names = [name for name in names if not name.startswith("..") and not name.endswith(LEFT_OUT)]
    assert not any(name.endswith(".so") for name in names), f"{name} has compiled parts"
    path = folder / f"{info.removesuffix('.dist-info')}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name in names:
            content = (site / name).read_bytes()
            wheel.writestr(name, of_a_gpu(content, torch) if name == DEEPSPEED else content)
        wheel.writestr(f"{info}/RECORD", "".join(f"{name},,\n" for name in names))


def of_a_gpu(content: bytes, torch: str) -> bytes:
    """Return DeepSpeed's notes of an installation as those of one with CUDA and this torch."""
    here = ".".join(distribution("torch").version.split(".")[:2])
    for old, new in (
        ("accelerator_name='cpu'", "accelerator_name='cuda'"),
        ("'bf16_support': False", "'bf16_support': True"),
        (f"'version': '{here}'", f"'version': '{torch}'"),
    ):
        content = content.replace(old.encode(), new.encode())
    return content


def download(name: str, folder: Path, python: str) -> None:
    """Download the wheel of an installed package's version for another Python."""
    platforms = [f"--platform=manylinux{kind}_x86_64" for kind in ("_2_28", "_2_27", "_2_17", "2014")]
    words = ["--no-deps", "--only-binary=:all:", "--implementation", "cp", "--python-version", python]
    pin = f"{name}=={distribution(name).version}"
    command = [sys.executable, "-m", "pip", "download", "-q", *words, *platforms, "-d", str(folder), pin]
    subprocess.run(command, check=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=ROOT / ".gpu")
    parser.add_argument("--python", default="3.12", help="of the GPU machine")
    parser.add_argument("--torch", default="2.11", help="of the GPU machine")
    options = parser.parse_args()
    wheels = options.out / "wheels"
    wheels.mkdir(parents=True, exist_ok=True)
    for name in PURE:
        pack(name, wheels, options.torch)
    for name in COMPILED:
        download(name, wheels, options.python)
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    with tarfile.open(options.out / "tree.tgz", "w:gz") as tree:
        for name in filter(None, listed.stdout.split("\n")):
            if (ROOT / name).is_file():
                tree.add(ROOT / name, f"tree/{name}")
    (options.out / "run.sh").write_text(RUN)
    size = sum(file.stat().st_size for file in options.out.rglob("*") if file.is_file())
    print(f"{options.out}: {size / 2**20:.1f} MiB; bash {options.out.name}/run.sh on the GPU machine")


if __name__ == "__main__":
    main()
