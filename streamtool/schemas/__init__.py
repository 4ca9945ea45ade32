"""JSON Schema: how tools are shown to models, and how arguments are checked, repaired and explained."""
