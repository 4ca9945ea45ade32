"""Discovers what an upstream supports: `probe` sends it short requests and examines the replies.

`client` accesses the upstream in a protocol that the upstream was found to support, `questions` contains functions that
take a client, and `findings` defines the types of their results. Each request passes through the same app, writer and
reader as every other request in this package. Whether the model obeys a taught format is tested with the middleware
itself, so the model reads the same tool prompt as in normal use. All text is fixed, and every request is limited in
tokens, time and bytes.
"""

from streamtool.probe.client import SECONDS
from streamtool.probe.findings import Findings, ProbeAnswer, ProbeTarget, ShownTemplate, Stream, Taught, ToolFindings
from streamtool.probe.questions import MARKERS, TAUGHT, probe

__all__ = [
    "MARKERS",
    "SECONDS",
    "TAUGHT",
    "Findings",
    "ProbeAnswer",
    "ProbeTarget",
    "ShownTemplate",
    "Stream",
    "Taught",
    "ToolFindings",
    "probe",
]
