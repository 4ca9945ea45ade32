"""What exchanges use beside their settings, opened once for each middleware or transport."""

from streamtool.exchange import Resources
from streamtool.http.phrases import open_phrases
from streamtool.http.templates import ChatTemplates
from streamtool.http.tokenizers import Tokenizers
from streamtool.settings import Settings
from streamtool.state.capabilities import CapabilityCache


def open_resources(settings: Settings, templates: ChatTemplates) -> Resources:
    """All but the memory, of which each client has a part. Raises SettingsError for a file that cannot be used."""
    return Resources(
        capabilities=CapabilityCache(),
        templates=templates,
        tokenizers=Tokenizers(settings),
        phrases=open_phrases(settings),
    )
