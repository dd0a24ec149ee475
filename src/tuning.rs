//! Tuning (skeleton).
