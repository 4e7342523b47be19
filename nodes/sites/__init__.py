"""The feature `sites` of the programs."""
