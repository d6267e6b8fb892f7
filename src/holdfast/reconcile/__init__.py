"""What is stored compared with what the manifest says, in the log's directory and on its store; and repairs."""
