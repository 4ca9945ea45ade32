"""The inspector: a web page that shows exchanges, live or from recordings. `app` serves the page and its data."""
