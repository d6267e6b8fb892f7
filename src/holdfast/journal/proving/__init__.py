"""What is stored, proved before anybody relies on it: when a log is opened, read by others, or looked at."""
