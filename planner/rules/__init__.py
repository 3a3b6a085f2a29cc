"""One rule a module: a function of the module's name that rewrites a node, refuses it, or passes."""
