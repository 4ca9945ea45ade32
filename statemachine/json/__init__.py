"""Tolerant JSON in, strict JSON out, piece by piece.

text       the transducer: strict input passes unchanged, anything else is repaired in place
numbers    numbers, with their spelling preserved
nested     JSON inside a JSON string
literals   strings and words in the notation of other languages
quotes     whether a double quote ends its string
bare       strings without quotes
typed      values whose type contradicts the tool's schema
state      state of one JSON text while it is being read
values     values of complete JSON texts
"""
