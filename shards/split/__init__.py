"""Choosing the cuts of a model, and proving them. Runs where models are split, not on a device.

`split` is the way from a file to shards and a manifest. `plan` turns the caller's options into cut
positions; `profile` measures times, `balance` and `refine` choose by them; `check` compares the
shards with the whole model.
"""
