"""One segment file: written once, hashed while it is written, and proved before it is believed."""
