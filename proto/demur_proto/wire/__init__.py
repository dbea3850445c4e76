"""Values as bytes: definitions, frames and words."""
