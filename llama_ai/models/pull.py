"""Fetch a model into the Hugging Face cache: what is missing, after a look at the free space."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from llama_ai.errors import LlamaAiError
from llama_ai.models.hub import HubError
from llama_ai.models.stores import huggingface_cache
from llama_ai.models.transfer import Source, fetch, have_bytes
from llama_ai.paths import write_atomic

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from llama_ai.models.hub import Hub, Listing, RemoteFile

SPARE_BYTES = 64 << 20
"""Left free beside what is fetched."""


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Where a download is: the file and its number, and bytes of it and of all."""

    name: str
    number: int
    count: int
    file_done_bytes: int
    file_bytes: int
    done_bytes: int
    total_bytes: int


def pull(
    hub: Hub,
    listing: Listing,
    files: Sequence[RemoteFile],
    environ: Mapping[str, str],
    on_progress: Callable[[Progress], None],
) -> tuple[Path, ...]:
    """Fetch ``files`` of ``listing``; gives their paths in the cache, in the same order.

    What an earlier attempt left is taken up. Raises what :func:`.transfer.fetch` raises, and
    :class:`~llama_ai.errors.LlamaAiError` when the disk is too small.
    """
    cache = huggingface_cache(environ)
    blobs = cache / f"models--{listing.repo.replace('/', '--')}" / "blobs"
    for file in files:
        if not file.etag or not _is_plain(file.etag) or file.size_bytes <= 0:
            raise HubError(f"the hub names no hash or no size for {file.name}", hint="try again")
    targets = [blobs / str(file.etag) for file in files]
    have = [have_bytes(target, file) for target, file in zip(targets, files, strict=True)]
    total = sum(file.size_bytes for file in files)
    check_space(cache, total - sum(have))
    before = 0
    with hub.client() as client:
        for number, (file, target) in enumerate(zip(files, targets, strict=True), start=1):

            def tell(
                done: int, file: RemoteFile = file, number: int = number, before: int = before
            ) -> None:
                on_progress(
                    Progress(
                        name=file.name,
                        number=number,
                        count=len(files),
                        file_done_bytes=done,
                        file_bytes=file.size_bytes,
                        done_bytes=before + done,
                        total_bytes=total,
                    )
                )

            url = hub.url(listing, file)
            fetch(Source(hub=hub, client=client, url=url, file=file), target, tell)
            before += file.size_bytes
    return tuple(_link(cache, listing, file) for file in files)


def check_space(directory: Path, needed_bytes: int) -> None:
    """Raise :class:`~llama_ai.errors.LlamaAiError` when ``needed_bytes`` are not free there."""
    where = directory
    while not where.exists() and where != where.parent:
        where = where.parent
    try:
        free = shutil.disk_usage(where).free
    except OSError:
        return  # not known: writing will tell
    if needed_bytes > 0 and needed_bytes + SPARE_BYTES > free:
        raise LlamaAiError(
            f"{needed_bytes / 1e9:.1f} GB are needed in {directory}, {free / 1e9:.1f} GB are free",
            hint="make space, take a smaller quantisation, or set HF_HUB_CACHE to another disk",
        )


def _link(cache: Path, listing: Listing, file: RemoteFile) -> Path:
    """Give a blob its name in the snapshot, as the hub's own client lays its cache out."""
    base = cache / f"models--{listing.repo.replace('/', '--')}"
    pointer = base / "snapshots" / listing.commit / file.name
    try:
        pointer.parent.mkdir(parents=True, exist_ok=True)
        depth = len(Path(file.name).parts) + 1
        link = Path(*[".."] * depth) / "blobs" / str(file.etag)
        if not (pointer.is_symlink() and pointer.readlink() == link):
            pointer.unlink(missing_ok=True)
            pointer.symlink_to(link)
        refs = base / "refs"
        refs.mkdir(exist_ok=True)
        write_atomic(refs / "main", listing.commit.encode(), mode=0o644)
    except OSError as error:
        raise LlamaAiError(
            f"cannot write {pointer}: {error.strerror}", hint="check the cache's permissions"
        ) from error
    return pointer


def _is_plain(etag: str) -> bool:
    """An etag becomes a file name."""
    return 8 <= len(etag) <= 128 and all(letter in "0123456789abcdef" for letter in etag)
