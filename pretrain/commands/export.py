"""Export a trained encoder as a folder that transformers and sentence-transformers load as it is.

    clearly export RUN [--step latest|best|N] [--out FOLDER]
    clearly export RUN --push OWNER/NAME [--dry-run]
    clearly export EXPORT --push OWNER/NAME [--dry-run]
    clearly export MODEL --out FOLDER [--pooling sif|idf] [--whiten N | --remove N] --text FILES
    clearly export MODEL --out FOLDER --static encoded --text FILES

The last two make something else of any model, fitted on text (`finetune/derived.py`): a run stands for its
best/. The first reads a checkpoint's safetensors: no GPU, no DeepSpeed, no process group. Its folder holds

    config.json, model.safetensors    transformers' own format, masked-language head included
    tokenizer.json ...                the tokenizer of the run's data
    modules.json, 1_*, 2_* ...        pooling as trained, and the head behind it if one is kept
    heads.safetensors                 all that was trained on top (projection head); not needed to embed
    clear.json                        pooling, head, step, scores and recipe, for programs
    training_config.yaml              the recipe, every key written out
    README.md                         the model card, filled from the run

With --push the export is also uploaded to the Hugging Face hub, where it is private unless --public is given.
Its card there has the evaluations in RUN/report (of an export: report beside it) that are of these weights.
--dry-run shows all that would go, and writes nothing. A folder that is an export already is uploaded as it
is.
"""

import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from finetune.flags import AS_IT_IS, Derivation
from pretrain.common import cli
from pretrain.common.errors import UserError
from pretrain.common.run_folder import describe_export, require_folder


def main(
    run: str,
    *,
    step: str = "latest",
    out: str | None = None,
    push: str | None = None,
    public: bool = False,
    dry_run: bool = False,
    fit: Derivation = AS_IT_IS,
) -> int:
    """Write a trained encoder as a folder that transformers and sentence-transformers load.

    Args:
        run: run folder; for --push also the folder of an export, which is uploaded as it is; for what is
            fitted on --text any model.
        step: checkpoint: latest, best, or the number of its step.
        out: folder to write; default: RUN/export, or RUN/best for the best.
        push: also upload it to the Hugging Face hub, as the model OWNER/NAME.
        public: a model that the push makes is public; the default is private.
        dry_run: of the push show the card and the files; write and send nothing.
    """
    if fit.pooling or fit.whiten is not None or fit.remove or fit.static:
        from finetune.derived import derive

        if step != "latest" or push is not None or public or dry_run or out is None:
            raise UserError("what is fitted on --text takes --out FOLDER, and no --step, --push or --dry-run")
        print(*derive(run, out, fit), f"  SentenceTransformer({out!r})", sep="\n")
        return 0
    if fit.text or fit.sentences or fit.power:
        flag = "--text" if fit.text else "--sentences" if fit.sentences else "--power"
        raise UserError(f"{flag} goes with --pooling sif, --whiten, --remove or --static: give one")
    if push is None and (public or dry_run):
        raise UserError(f"--{'public' if public else 'dry-run'} says how to --push: name OWNER/NAME with it")
    if push is None:
        require_folder(Path(run))  # before torch is loaded, which takes seconds
    from pretrain.export.folder import export, is_export, read_policy

    if push is not None:
        from pretrain.export.push import require_repository

        require_repository(push)
        if is_export(Path(run)):
            if step != "latest" or out is not None:
                raise UserError(f"{run} is an export: --step and --out go with a run")
            _push(Path(run), push, Path(run).resolve().parent, public, dry_run)
            return 0
    with tempfile.TemporaryDirectory(prefix="export-") as place:
        folder = export(run, out, step, Path(place) if dry_run else None)
        policy = read_policy(folder)
        assert policy is not None  # of the export just written
        head = f", through the head in {policy['kept_head']['folder']}" if policy.get("kept_head") else ""
        did = "would export" if dry_run else "exported"
        print(f"{did} step {policy['step']:,} of {run} (pooling {policy['pooling']}{head})")
        best, judged = Path(run) / "best", Path(run) / "report" / "judge.json"  # of clearly adapt
        with suppress(UserError):  # of a damaged best/: what uses it says so
            kept = read_policy(best) if step != "best" and best.is_dir() and judged.is_file() else {}
            if kept is None or kept.get("average", {}).get("alpha", 1) < 1:
                # None: the start has modules of its own, and was copied
                what = describe_export(kept) or "the start, kept by clearly adapt"
                send = "" if kept is None else f"; to send that: clearly export {best} --push OWNER/NAME"
                said = f"step {policy['step']:,}, as it was trained; {best} is {what}{send}"
                print(f"note: this is {said}", file=sys.stderr)
        if not dry_run:
            print(f"  AutoModel.from_pretrained({str(folder)!r})\n  SentenceTransformer({str(folder)!r})")
        if push is not None:
            _push(folder, push, Path(run), public, dry_run)
    return 0


def _push(folder: Path, repo: str, run: Path, public: bool, dry_run: bool) -> None:
    from pretrain.export.push import Upload

    upload = Upload(folder, repo, run / "report")
    if upload.other_evaluations:
        print(f"  not in the card, because of other weights: {', '.join(upload.other_evaluations)}")
    if not upload.evaluations:
        print(f"  the card has no evaluations: {run / 'report'} has none of these weights")
    if dry_run:
        print(upload.card, *upload.files, "nothing was written or sent (--dry-run)", sep="\n")
    else:
        print(f"  sent: {upload.send(public)}")


if __name__ == "__main__":
    cli.run(main)
