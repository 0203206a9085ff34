"""The digits example: a small data set, encrypted, and distributed training programs that need its key."""
