"""Folders of models: identity, download from a hub, chat templates."""
