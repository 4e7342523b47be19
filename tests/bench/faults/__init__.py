"""What faults cost those that ask meanwhile: one fault at a time, many, a site that is cut off."""
