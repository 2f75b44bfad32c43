"""Server strategies, one file a method."""
