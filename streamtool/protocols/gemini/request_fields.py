"""What becomes of each field of a request, and of a function in it. A test compares the names with those of the SDK.

Fields of `generationConfig` bear its name. Source: the request types of google-genai 3.4.
"""

from collections.abc import Mapping
from typing import Final

from streamtool.protocols.fields import NATIVE, PASSED, SAME

REQUEST_FIELDS: Final[Mapping[str, str]] = {
    "model": "read; the path names it",
    "contents": "read",
    "systemInstruction": "read",
    "tools": "read",
    "toolConfig": "`functionCallingConfig` is read",
    "safetySettings": SAME,
    "generationConfig": "read",
    "generationConfig.candidateCount": "read",
    "generationConfig.stopSequences": "read; ends the visible text",
    "generationConfig.maxOutputTokens": "read",
    "generationConfig.temperature": "read",
    "generationConfig.topP": "read",
    "generationConfig.topK": "read",
    "generationConfig.seed": "read",
    "generationConfig.presencePenalty": "read",
    "generationConfig.frequencyPenalty": "read",
    "generationConfig.thinkingConfig": "read, as the effort of reasoning",
    "generationConfig.responseMimeType": "read",
    "generationConfig.responseSchema": "read",
    "generationConfig.responseJsonSchema": "read",
    "generationConfig.responseFormat": SAME,
    "generationConfig.responseLogprobs": SAME,
    "generationConfig.logprobs": SAME,
    "generationConfig.responseModalities": SAME,
    "generationConfig.mediaResolution": SAME,
    "generationConfig.speechConfig": SAME,
    "generationConfig.imageConfig": SAME,
    "generationConfig.audioTimestamp": SAME,
    "generationConfig.audioTranscriptionConfig": SAME,
    "generationConfig.translationConfig": SAME,
    "generationConfig.enableAffectiveDialog": SAME,
    "generationConfig.enableEnhancedCivicAnswers": SAME,
    "generationConfig.modelSelectionConfig": SAME,
    "generationConfig.routingConfig": SAME,
    "cachedContent": PASSED,
    "continuationToken": PASSED,
    "labels": PASSED,
    "modelArmorConfig": PASSED,
    "serviceTier": PASSED,
    "store": PASSED,
}
TOOL_FIELDS: Final[Mapping[str, str]] = {
    "name": "read",
    "description": "read",
    "parameters": "read",
    "parametersJsonSchema": "read",
    "response": NATIVE,
    "responseJsonSchema": NATIVE,
    "behavior": NATIVE,
}
