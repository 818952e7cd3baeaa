"""Options that any objective can have, each of which derives its class anew; and objectives of a person's own, made."""
