from .fit import fit_all, left_out_rows

__all__ = ["fit_all", "left_out_rows"]
