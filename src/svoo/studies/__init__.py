"""The paper's tables and figures, one study each, and the report that shows them."""
