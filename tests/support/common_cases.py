"""Titles of the cases that every format has."""

COMMON = {
    "One call",
    "Several calls",
    "Text before, between and after",
    "No arguments",
    "Every JSON type",
    "Unicode and escapes",
    "A value with the format's own markers",
    "A value of 10 KB",
    "Cut inside of a value",
    "Malformed",
}
"""Titles of cases that every format must have."""
