"""Who issues rights: the keys of an operator, accounts, users; what a server is told of them."""
