//! Plan (skeleton).
