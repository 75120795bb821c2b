"""Settings for all tests: silent broadcasting and silent casts are errors."""

import jax

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
