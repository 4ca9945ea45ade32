"""Small SVG elements for the pictures in the docs. They suit light and dark pages and need no scripts or embedded
fonts.
"""

from collections.abc import Iterable
from html import escape

STYLE = """
svg{color-scheme:light dark;--paper:#fbfbfa;--ink:#1b1e23;--faint:#5a6270;--line:#e7e9ec;--edge:#cfd4da;--text:#3d6fb6;
--call:#1f8a5b;--syntax:#8b929c;--hold:#f6e3a1;--head:#d12f6b;--quiet:#dcdfe3}
@media (prefers-color-scheme:dark){svg{--paper:#15181c;--ink:#e8eaed;--faint:#a3abb8;--line:#2a3038;--edge:#3b434e;
--text:#6ea3ea;--call:#4cc38a;--syntax:#7f8894;--hold:#574a16;--head:#ff6fa3;--quiet:#333b45}}
text{font:13px system-ui,sans-serif;fill:var(--ink)}.mono{font:13px ui-monospace,"DejaVu Sans Mono",monospace}
.faint{fill:var(--faint)}.small{font-size:12px}.title{font-size:15px;font-weight:600}
"""
WIDE = 7.8
"""Maximum width of a character in the monospaced font."""


def number(value: float) -> str:
    """Format a coordinate, identically on every machine."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def rect(x: float, y: float, width: float, height: float, fill: str, extra: str = "") -> str:  # noqa: PLR0917
    """Return a rectangle."""
    place = f'x="{number(x)}" y="{number(y)}" width="{number(width)}" height="{number(height)}"'
    return f'<rect {place} fill="var(--{fill})"{extra}/>'


def label(x: float, y: float, text: str, kind: str = "", extra: str = "") -> str:
    """Return a line of text."""
    name = f' class="{kind}"' if kind else ""
    return f'<text x="{number(x)}" y="{number(y)}"{name}{extra}>{escape(text)}</text>'


def mono(x: float, y: float, text: str, fill: str, wide: float = WIDE) -> str:
    """Return monospaced text whose width depends only on the number of characters, whatever the font."""
    width = number(wide * len(text))
    given = escape(text).replace(" ", "&#160;")
    place = f'x="{number(x)}" y="{number(y)}" textLength="{width}" lengthAdjust="spacingAndGlyphs"'
    return f'<text class="mono" {place} style="fill:var(--{fill})">{given}</text>'


def picture(  # noqa: PLR0917
    width: int, height: int, title: str, description: str, parts: Iterable[str], style: str = ""
) -> str:
    """Return the complete picture. `title` and `description` are for screen readers."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-labelledby="t d">\n<title id="t">{escape(title)}</title>\n'
        f'<desc id="d">{escape(description)}</desc>\n<style>{STYLE}{style}</style>\n'
        f"{rect(0, 0, width, height, 'paper')}\n" + "\n".join(parts) + "\n</svg>\n"
    )
