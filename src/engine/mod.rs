//! Engine (skeleton).
