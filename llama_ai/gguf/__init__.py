"""What a GGUF file says: its header (:mod:`.header`) and the facts read from it (:mod:`.facts`)."""
