"""What people see of a gateway: its models, with lines to paste, and a document of its paths."""
