"""Knowledge about models: families by name, chat templates, and how a template ends the prompt."""
