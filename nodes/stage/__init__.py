"""The work of one stage of one model version: accept, gather, compute, pass on."""
