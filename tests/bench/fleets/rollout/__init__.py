"""A version comes and goes under load, with a kill in the middle: is any request lost or mixed?"""
