"""What `optimize` does over Spark Connect, where no plan has been analysed yet."""
