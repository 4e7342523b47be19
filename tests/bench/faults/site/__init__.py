"""A site that is linked to a hub: two real servers, and a link that can be cut."""
