"""Sessions of producers: what was written once is answered again, and never written twice."""
