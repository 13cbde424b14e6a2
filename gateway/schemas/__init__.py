"""JSON Schemas of tools: bounding their cost, compiling them, hiding arguments, validating and coercing values."""
