"""An edge's own choice of where to compute, beside every choice that it could have made."""
