"""How a program runs: steps, their effects, replay."""
