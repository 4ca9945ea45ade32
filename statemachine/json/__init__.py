"""Tolerant JSON in, strict JSON out, piece by piece.

text       the transducer: what is strict passes as it stands, the rest is mended where it stands
numbers    numbers, their spelling kept
nested     JSON that stands inside of a JSON string
literals   strings and words as other languages write them
typed      values whose type contradicts the tool's schema
state      what is known of one JSON text while it is read
"""
