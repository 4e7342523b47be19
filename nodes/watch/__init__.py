"""What people see of a fleet: the dashboard, the terminal, metrics, profiles."""
