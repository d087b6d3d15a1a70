"""Generation engines behind one protocol: tokens in, tokens out."""
