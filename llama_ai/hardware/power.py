"""Power source and chassis (``/sys/class/power_supply``, ``/sys/class/dmi``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llama_ai.hardware.facts import PowerFacts

if TYPE_CHECKING:
    from llama_ai.hardware.root import Root

SUPPLY = "sys/class/power_supply"
DMI = "sys/class/dmi/id"

DESKTOP_CHASSIS = frozenset({3, 4, 5, 6, 7, 13, 15, 16, 17, 23, 24, 35, 36})
"""SMBIOS types without a battery: desktop, tower, all-in-one, server, mini and stick PC."""

HANDHELD_CHASSIS = frozenset({11, 30, 31, 32})
"""SMBIOS types: handheld, tablet, convertible, detachable."""


def read_power(root: Root) -> PowerFacts:
    """Read the facts; ``on_ac`` stays ``None`` where nothing speaks for either answer."""
    chassis = root.read_int(DMI, "chassis_type")
    on_ac, battery = _supplies(root)
    if on_ac is None and battery is None and chassis in DESKTOP_CHASSIS:
        on_ac = True
    return PowerFacts(
        on_ac=on_ac,
        battery_percent=battery,
        chassis_type=chassis,
        vendor=root.read_word(DMI, "sys_vendor"),
        product=root.read_word(DMI, "product_name"),
    )


def _supplies(root: Root) -> tuple[bool | None, int | None]:
    """Whether external power is there, and the charge of the system's battery in percent."""
    names = root.listdir(SUPPLY)
    if not names:
        # The class exists and holds nothing: a desktop. No class at all: nobody knows.
        return (True if root.is_dir(SUPPLY) else None), None
    sources: list[int] = []
    states: list[str] = []
    unclear = False
    percent = None
    for name in names:
        kind = root.read_word(SUPPLY, name, "type") or ""
        if root.read_word(SUPPLY, name, "scope") == "Device":
            continue  # a mouse's or a pen's battery
        if kind == "Mains" or kind.startswith("USB"):
            online = root.read_int(SUPPLY, name, "online")
            if online is None:
                unclear = True
            else:
                sources.append(online)
        elif kind == "Battery":
            states.append((root.read_word(SUPPLY, name, "status") or "").lower())
            charge = root.read_int(SUPPLY, name, "capacity")
            if percent is None and charge is not None and charge <= 100:
                percent = charge
        else:
            unclear = True
    if any(sources):
        return True, percent
    if "discharging" in states:
        return False, percent
    if "charging" in states:
        return True, percent
    if sources and states:
        return False, percent
    # Otherwise: a full or idle battery and no charger shown, or chargers and no battery shown.
    # Only where nothing but peripherals is there, it is a desktop.
    return (None if sources or states or unclear else True), percent
