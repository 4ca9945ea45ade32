"""Treatment of request fields and function fields. A test compares the field names with the SDK's.

Members of `generationConfig` are named `generationConfig.member`. Fields that contain options are added from the option
table. Source: the request types of google-genai 3.4.
"""

from collections.abc import Mapping
from typing import Final

from streamtool.protocols.decisions import HONORED, NATIVE, PASSED, Field, RequestFields

REQUEST_FIELDS: Final = RequestFields(
    "gemini",
    {
        "model": HONORED.with_note("specified in the path"),
        "contents": HONORED,
        "systemInstruction": HONORED,
        "tools": HONORED,
        "toolConfig": HONORED.with_note("only `functionCallingConfig`"),
        "safetySettings": PASSED,
        "generationConfig": HONORED,
        "generationConfig.responseSchema": HONORED,
        "generationConfig.responseJsonSchema": HONORED,
        "generationConfig.responseFormat": PASSED,
        "generationConfig.responseLogprobs": PASSED,
        "generationConfig.logprobs": PASSED,
        "generationConfig.responseModalities": PASSED,
        "generationConfig.mediaResolution": PASSED,
        "generationConfig.speechConfig": PASSED,
        "generationConfig.imageConfig": PASSED,
        "generationConfig.audioTimestamp": PASSED,
        "generationConfig.audioTranscriptionConfig": PASSED,
        "generationConfig.translationConfig": PASSED,
        "generationConfig.enableAffectiveDialog": PASSED,
        "generationConfig.enableEnhancedCivicAnswers": PASSED,
        "generationConfig.modelSelectionConfig": PASSED,
        "generationConfig.routingConfig": PASSED,
        "cachedContent": PASSED,
        "continuationToken": PASSED,
        "labels": PASSED,
        "modelArmorConfig": PASSED,
        "serviceTier": PASSED,
        "store": PASSED,
    },
)
TOOL_FIELDS: Final[Mapping[str, Field]] = {
    "name": HONORED,
    "description": HONORED,
    "parameters": HONORED,
    "parametersJsonSchema": HONORED,
    "response": NATIVE,
    "responseJsonSchema": NATIVE,
    "behavior": NATIVE,
}
