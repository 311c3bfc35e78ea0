"""Publishing to one stream in the way that the stream allows."""
