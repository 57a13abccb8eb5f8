"""How much of everything a fleet needs: coefficients measured by `slodrift bench scale`, and what follows from them."""
