"""Tables, one module each, and the forms in which all are printed."""
