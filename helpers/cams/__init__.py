"""Where a network looks: class activation maps, their overlap with boxes beyond chance, and masks made by a machine."""
