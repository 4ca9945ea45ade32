"""What exchanges use beside their settings, opened once for each middleware or transport."""

from streamtool.exchange import Services
from streamtool.http.phrases import open_phrases
from streamtool.http.templates import ChatTemplates
from streamtool.http.tokenizers import TokenizerFiles
from streamtool.settings import Settings
from streamtool.state.capabilities import CapabilityCache
from streamtool.state.replies import Store


def open_services(settings: Settings, templates: ChatTemplates, store: Store) -> Services:
    """All but the memory, of which each client has a part. Raises SettingsError for a file that cannot be used."""
    shared = frozenset(name for name, upstream in settings.upstreams.items() if not settings.shows_clients(upstream))
    return Services(
        capabilities=CapabilityCache(shared=shared, store=store if store.blocks else None),
        templates=templates,
        tokenizers=TokenizerFiles(settings),
        phrases=open_phrases(settings),
    )
