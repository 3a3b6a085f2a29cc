"""From "the newest value of each key" to a full changelog: the normalizer of FLIP-149 and the forms it runs in."""
