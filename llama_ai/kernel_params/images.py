"""Look into the initramfs images of the running machine: is ttm in there at all?"""

from __future__ import annotations

import os
import re
import subprocess

IMAGE_LISTERS = {
    "update-initramfs": ("lsinitramfs", re.compile(r"initrd\.img-[A-Za-z0-9._+~-]+")),
    "dracut": ("lsinitrd", re.compile(r"(?:initramfs|initrd)-[A-Za-z0-9._+~-]+(?:\.img)?")),
}
"""For a rebuild command: what lists an image, and how the images in ``/boot`` are called."""

_TTM = re.compile(r"/(?:amd)?ttm\.ko(?:\.(?:xz|zst|gz))?(?:\s|$)", re.MULTILINE)
_FEWEST_FILES = 20
"""A listing with less than this is no listing of an initramfs."""


def images_hold_ttm(rebuild: str, *, path: str, boot: str = "/boot") -> bool | None:
    """Whether any image holds the module; ``None`` when not every image could be listed.

    ``rebuild`` is the program that would build them again, ``path`` where programs are looked for.
    """
    if rebuild not in IMAGE_LISTERS:
        return None
    lister, pattern = IMAGE_LISTERS[rebuild]
    try:
        names = sorted(name for name in os.listdir(boot) if pattern.fullmatch(name))  # noqa: PTH208
    except OSError:
        return None
    held = False
    for name in names:
        try:
            listed = subprocess.run(
                [lister, f"{boot}/{name}"],
                env={"PATH": path, "LANG": "C.UTF-8"},
                capture_output=True,
                timeout=120,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        text = listed.stdout.decode("utf-8", "replace")
        if listed.returncode != 0 or text.count("\n") < _FEWEST_FILES:
            return None
        held = held or bool(_TTM.search(text))
    return held if names else None
