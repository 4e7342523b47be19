"""What nodes tell of the guards of their models."""
