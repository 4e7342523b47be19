"""What people watch."""
