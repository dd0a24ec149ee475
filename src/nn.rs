//! Drop-ins with candle_nn's names and signatures (skeleton).
