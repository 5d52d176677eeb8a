"""Models on disk and where they come from: the catalog, the demo model, downloads."""
