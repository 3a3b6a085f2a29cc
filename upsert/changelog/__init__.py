"""The normalizer of FLIP-149: from "the newest value of each key" to a full changelog, in two forms."""
