"""The inspector: exchanges on a page, as they happen or out of recordings. `app` serves it, `ring` keeps them."""
