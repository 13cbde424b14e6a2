"""Engines: generate tokens outside training, by an inference server, transformers in process or a script."""
