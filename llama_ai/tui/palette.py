"""The themes: what each style name looks like.

The colours are those of Okabe and Ito's set for all kinds of colour vision (blue, orange, sky,
vermilion, bluish green), lightened or darkened for contrast. No meaning rests on colour alone: each
state has a symbol, each part of a bar a pattern, each log level a letter.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from rich.style import Style
from textual.theme import BUILTIN_THEMES, Theme

NAMES = (
    "text", "faint", "label", "title", "value", "stale", "good", "busy", "warn", "bad",
    "mark", "vram", "gtt", "ram", "kv", "disk", "prompt", "gen", "match", "key",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Palette:
    """One theme."""

    name: str
    background: str
    foreground: str
    styles: dict[str, Style]
    ansi: bool = False

    def theme(self) -> Theme:
        """For Textual's own parts: borders, the input line."""
        if self.ansi:
            # Textual's own theme of terminal colours, with every colour set to the default one.
            base = BUILTIN_THEMES["ansi-dark"]
            return replace(
                base,
                name=self.name,
                primary="ansi_default",
                secondary="ansi_default",
                accent="ansi_default",
                warning="ansi_default",
                error="ansi_default",
                success="ansi_default",
                variables={
                    **{
                        key: "ansi_default" if value.startswith("ansi_") else value
                        for key, value in base.variables.items()
                    },
                    "rule": "ansi_default",
                },
            )
        rule = self.styles["faint"].color
        return Theme(
            name=self.name,
            dark=self.name != "light",
            primary=self.foreground,
            foreground=self.foreground,
            background=self.background,
            surface=self.background,
            panel=self.background,
            boost=self.background,
            variables={"rule": rule.name if rule is not None else self.foreground},
        )


def _coloured(name: str, background: str, foreground: str, **colours: str) -> Palette:
    bold = {"title", "value", "bad", "warn", "good", "mark", "key"}
    styles = {}
    for style in NAMES:
        if style == "match":
            styles[style] = Style(color=background, bgcolor=colours["warn"], bold=True)
            continue
        colour = colours.get(style, foreground)
        styles[style] = Style(
            color=colour,
            bgcolor=background,
            bold=style in bold or None,
            italic=(style == "stale") or None,
        )
    return Palette(name=name, background=background, foreground=foreground, styles=styles)


DARK = _coloured(
    "dark",
    "#10141a",
    "#d7dce2",
    faint="#7d8794",
    label="#9fb4c7",
    title="#56b4e9",
    value="#ffffff",
    stale="#8a94a0",
    good="#2fc6a0",
    busy="#56b4e9",
    warn="#f0b429",
    bad="#ff8a5c",
    mark="#ffffff",
    vram="#56b4e9",
    gtt="#4f93e0",
    ram="#2fc6a0",
    kv="#f0b429",
    disk="#d99ac0",
    prompt="#56b4e9",
    gen="#f0b429",
    key="#f0b429",
)
LIGHT = _coloured(
    "light",
    "#fbfbf8",
    "#20262c",
    faint="#6b747d",
    label="#3c5468",
    title="#005a96",
    value="#000000",
    stale="#6b747d",
    good="#00694d",
    busy="#005a96",
    warn="#8a5200",
    bad="#a83a00",
    mark="#000000",
    vram="#0072b2",
    gtt="#3b6fb0",
    ram="#00795a",
    kv="#9c6100",
    disk="#8c4a74",
    prompt="#0072b2",
    gen="#9c6100",
    key="#8a5200",
)
CONTRAST = _coloured(
    "contrast",
    "#000000",
    "#ffffff",
    faint="#b8b8b8",
    stale="#b8b8b8",
    title="#7fd0ff",
    good="#66ffcc",
    busy="#7fd0ff",
    warn="#ffd24d",
    bad="#ffb38a",
    vram="#7fd0ff",
    gtt="#a8c8ff",
    ram="#66ffcc",
    kv="#ffd24d",
    disk="#ffb0dd",
    prompt="#7fd0ff",
    gen="#ffd24d",
    key="#ffd24d",
)


def _plain() -> Palette:
    shapes = {
        "faint": Style(dim=True),
        "stale": Style(dim=True, italic=True),
        "match": Style(reverse=True),
        **dict.fromkeys(("title", "value", "warn", "mark", "key"), Style(bold=True)),
        "bad": Style(bold=True, underline=True),
    }
    return Palette(
        name="plain",
        background="default",
        foreground="default",
        styles={name: shapes.get(name, Style()) for name in NAMES},
        ansi=True,
    )


PLAIN = _plain()
"""No colour at all (``NO_COLOR``): bold, dim, italic, reverse."""

THEMES = {palette.name: palette for palette in (DARK, LIGHT, CONTRAST)}
