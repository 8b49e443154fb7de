"""Pages in a real browser: what people see and press. One headless Chromium serves all tests."""
