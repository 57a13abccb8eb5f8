"""Pure numerics: arrays in, arrays out. No I/O, no clock, no Faust, no logging. Depends on `schemas` only."""
