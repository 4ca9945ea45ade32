"""Batch parsing of recorded replies: reads files of records and writes one line per record.

sources ─▶ batches of records ─▶ processes, each with its parser ─▶ results in order ─▶ JSONL or Parquet, and totals

sources   input files (JSONL, a JSON array or a recording; plain, gzip or zstd), read a few MB at a time
reading   one record: its text, its tools, and what the parser finds
workers   the processes, and the order of their results
outputs   where results are written, and the progress of a run
run       a complete run
"""
