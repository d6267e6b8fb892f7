"""One file per verb of the command line. `program` imports a verb when it is used."""
