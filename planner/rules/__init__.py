"""Rules, a file for each subject: a function each, which rewrites a node, refuses it, or passes."""
