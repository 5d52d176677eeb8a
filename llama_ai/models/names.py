"""What a model file's name says: its shard number, its quantisation, and whom it serves."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal

Kind = Literal["model", "projector", "draft", "adapter"]
DraftKind = Literal["dspark", "mtp", "dflash", "simple"]

MAX_SHARDS: Final = 1024

ENGINE_TYPES: Final[dict[DraftKind, str]] = {
    "dspark": "draft-dspark",
    "mtp": "draft-mtp",
    "dflash": "draft-dflash",
    "simple": "draft-simple",
}
"""The engine's words for the kinds of drafts (``--spec-type``)."""

_SHARD: Final = re.compile(r"^(?P<stem>.+)-(?P<number>\d{5})-of-(?P<total>\d{5})$", re.DOTALL)
_QUANT: Final = re.compile(
    r"(?:^|[-_. ])((?:UD-)?(?:I?Q\d+_[0-9A-Z]+(?:_[A-Z]+)*|T?Q\d+_\d+|MXFP4(?:_MOE)?|NVFP4"
    r"|BF16|F16|F32|FP16|FP32|Q8))(?=$|[-_. ])",
    re.IGNORECASE,
)
# A sidecar with MTP layers is named by a prefix; a whole model may have MTP anywhere in its name.
_MTP_PREFIX: Final = re.compile(r"^mtp[-_.]", re.IGNORECASE)
_PROJECTOR: Final = re.compile(r"(^|[-_.])mmproj([-_.]|$)", re.IGNORECASE)
_DRAFT: Final = re.compile(r"(^|[-_.])(dspark|dflash|draft)([-_.]|$)", re.IGNORECASE)
_ADAPTER: Final = re.compile(r"(^|[-_.])(lora|adapter|imatrix)([-_.]|$)", re.IGNORECASE)
_MARKS: Final = re.compile(
    r"(?:^|[-_.])(?:mmproj|dspark|dflash|draft|lora|adapter|imatrix|model)(?=[-_.]|$)|^mtp(?=[-_.])",
    re.IGNORECASE,
)


@dataclass(frozen=True, kw_only=True)
class ShardName:
    """The parts of ``NAME-00002-of-00003``; ``number`` counts from 1."""

    stem: str
    number: int
    total: int


def shard_of(stem: str) -> ShardName | None:
    """What a stem says of its shard; ``None`` for a file that is not one of several."""
    found = _SHARD.match(stem)
    if found is None:
        return None
    number, total = int(found["number"]), int(found["total"])
    if not 1 <= number <= total <= MAX_SHARDS:
        return None
    return ShardName(stem=found["stem"], number=number, total=total)


def quant_of(stem: str) -> str | None:
    """The last quantisation that the name mentions, as it is written there."""
    found = _QUANT.findall(stem)
    return found[-1] if found else None


def kind_of(stem: str) -> Kind:
    """Whether a file is a model or serves one, by its name."""
    if _PROJECTOR.search(stem):
        return "projector"
    if _DRAFT.search(stem) or _MTP_PREFIX.match(stem):
        return "draft"
    if _ADAPTER.search(stem):
        return "adapter"
    return "model"


def draft_kind_of(stem: str) -> DraftKind:
    """How a draft file drafts, by the words that publishers put into its name."""
    lowered = stem.lower()
    if re.search(r"(^|[-_.])dspark([-_.]|$)", lowered):
        return "dspark"
    if re.search(r"(^|[-_.])dflash([-_.]|$)", lowered):
        return "dflash"
    if _MTP_PREFIX.match(stem):
        return "mtp"
    return "simple"


def base_of(stem: str) -> str:
    """A name without its quantisation and without the words of a companion, in lower case."""
    bare = _QUANT.sub("", stem)
    return _MARKS.sub("", bare).strip("-_. ").lower()


def belongs(companion: str, model: str) -> bool | None:
    """Whether a companion's name fits a model's; ``None`` when it names no model at all."""
    wanted = base_of(companion)
    if not wanted:
        return None
    base = base_of(model)
    short, long = sorted((wanted, base), key=len)
    if not long.startswith(short):
        return False
    # Whole words: "qwen3-8b" is not a part of "qwen3-80b", nor is "gemma" one of "gemmation".
    return len(short) == len(long) or long[len(short)] in "-_. "
