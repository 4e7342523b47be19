"""Work that can wait: requests that a site stores while it is cut off, and their answers.

    submit ──► submitted ──read──► forwarder (at the hub) ──► the mesh
    results ◄── answers  ◄─store──────┘
               (both streams are the site's own, in its JetStream domain)

All that lasts is at the site: the hub keeps nothing, so there is nothing to agree about after a
cut. A request's number is its place in the stream `submitted`. Answers are stored in the order of
those numbers, each after the one before it (compare and set), so the last answer tells how far the
work has come: whoever forwards next begins behind it.
"""
