"""The checksums of an export's files, as `sha256sum -c SHA256SUMS` reads them."""

from pathlib import Path

from pretrain.common.files import sha256_of, write_durably

SUMS, CARD = "SHA256SUMS", "README.md"


def write_sums(folder: Path) -> None:
    """Write the checksums of the files of a folder that has not got its name yet.

    README.md has none: a card is people's own.
    """
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name not in (SUMS, CARD))
    lines = [f"{sha256_of(path)}  {path.relative_to(folder).as_posix()}\n" for path in files]
    write_durably(folder / SUMS, "".join(lines).encode())


def changed_files(folder: Path) -> list[str] | None:
    """Return the files of an export that are not as they were written, or are gone; None: it has no sums.

    Lines that cannot be read count as changes of the sums themselves.
    """
    if not (folder / SUMS).is_file():
        return None
    changed = []
    for line in (folder / SUMS).read_bytes().decode("utf-8", "replace").splitlines():
        digest, _, name = line.partition("  ")
        try:
            if name != CARD and sha256_of(folder / (name or SUMS)) != digest:
                changed.append(name or SUMS)
        except (OSError, ValueError):
            changed.append(name)
    return changed
