"""Role `auto`: a node measures stages, fills a slot of the plan in force, proposes plans."""
