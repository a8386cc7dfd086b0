//! Frames between endpoints (being laid).
