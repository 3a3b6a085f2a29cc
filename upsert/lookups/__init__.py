"""Tables whose rows are looked up by key where they lie: what CREATE TABLE says of them."""
