"""JSON Schemas of tools: compiled and bounded, narrowed, and values checked or mended by them."""
