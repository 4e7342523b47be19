"""One module for each contender; a module is imported only where its contender runs."""
