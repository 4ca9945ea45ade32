"""Characters that occupy no space when text is displayed, or that look like a blank without being one.

A model ignores them, and a person does not see them. Text that differs only in them looks the same, although it
compares as different.

Source: the Unicode Character Database, version 16: the general categories Cc and Cf, and `Default_Ignorable_Code_Point`
in `DerivedCoreProperties.txt`. Three more have no glyph: U+2800 (the braille pattern without dots), U+16FE4 (the Khitan
filler) and U+1D159 (the musical null notehead).
"""

import re
from typing import Final

_BASIC: Final = (
    "\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\xad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u115f\u1160"
    "\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb"
)
_BEYOND: Final = (
    "\U000110bd\U000110cd\U00013430-\U0001343f\U00016fe4\U0001bca0-\U0001bca3\U0001d159\U0001d173-\U0001d17a"
    "\U000e0000-\U000e0fff"
)
CLASS: Final = _BASIC + _BEYOND
"""The characters, as the inside of a character class of a regular expression. Line breaks, tabs and blanks are not
among them.
"""
INVISIBLE: Final = re.compile(f"[{CLASS}]+")
"""Matches invisible characters."""
