"""Prints the objects of a rendered chart as JSON: `helm_chart.py FOLDER VALUES`. Needs the package helm-python-sdk."""

import json
import sys

import helm_python  # type: ignore[import-not-found]

folder, values = sys.argv[1], json.loads(sys.argv[2])
with helm_python.Chart.load(folder) as chart:
    print(json.dumps(chart.render(values=values, name="streamtool", namespace="default")))
print(json.dumps(helm_python.chart.lint(folder)))
