"""Many recorded replies at once: files of records in, one line for each record out.

sources ─▶ lists of records ─▶ processes, each with its parser ─▶ in order ─▶ JSONL or Parquet, and sums

sources   what a file is (JSONL, a JSON array, a recording; plain, gzip or zstd), and its records, a few MB at a time
reading   one record: its text, its tools, what the parser makes of it
workers   the processes, and the order of what they return
outputs   where the results go, and how far they have come
run       all of it together
"""
