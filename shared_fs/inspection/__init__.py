"""Reading data without owning it: inspection, verification."""
