"""The rows of a store file: what each kind of read asks of it. `store_rows.py` has all of them."""
