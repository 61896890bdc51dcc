"""zofc: class-incremental learning on a frozen vision transformer, first-order or zeroth-order by choice."""

__version__ = "0.1.0"
