"""Values and codecs: what applications give, and what travels."""
