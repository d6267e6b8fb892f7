"""What tests of power cuts (`cuts`), of failing disks (`faults`) and of `kill -9` (`kills`) share: the loops."""
