"""Models: files, shapes, weights, and the decoder.  Torch begins here; nothing here knows of requests."""
