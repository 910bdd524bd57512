"""Class activation maps, their overlap with boxes beyond chance, and machine masks."""
