"""Export a trained encoder as a folder that transformers and sentence-transformers load as it is.

    python -m pretrain.export RUN [--step latest|best|N] [--out FOLDER]

Reads a checkpoint's safetensors: no GPU, no DeepSpeed, no process group. The folder holds

    config.json, model.safetensors    transformers' own format, masked-language head included
    tokenizer.json ...                the tokenizer of the run's data
    modules.json, 1_*, 2_* ...        pooling as trained, and the head behind it where one is kept
    heads.safetensors                 all that was trained on top (projection head); not needed to embed
    clear.json                        pooling, head, step, scores and recipe, for programs
    training_config.yaml              the recipe, every key written out
    README.md                         the model card, filled from the run
"""

from __future__ import annotations

from pretrain.common import cli


def main(run: str, *, step: str = "latest", out: str | None = None) -> int:
    """Write a trained encoder as a folder that transformers and sentence-transformers load.

    Args:
        run: run folder.
        step: checkpoint: latest, best, or the number of its step.
        out: folder to write; default: RUN/export, or RUN/best for the best.
    """
    from pretrain.export.folder import export, read_policy

    folder = export(run, out, step)
    policy = read_policy(folder)
    assert policy is not None  # of the export just written
    kept = f", through the head in {policy['kept_head']['folder']}" if policy.get("kept_head") else ""
    print(f"exported step {policy['step']:,} of {run} to {folder} (pooling {policy['pooling']}{kept})")
    print(f"  AutoModel.from_pretrained({str(folder)!r})\n  SentenceTransformer({str(folder)!r})")
    return 0


if __name__ == "__main__":
    cli.run(main)
