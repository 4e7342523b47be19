"""Cameras, streams, files and folders as sources of frames, of which the newest counts."""
