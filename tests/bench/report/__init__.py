"""How every benchmark states its result: figures, tables, charts, documents to compare.

Nothing in here knows what is measured.
"""
