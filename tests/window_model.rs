//! The rules of windows and signals, explored exhaustively. `model` says what is explored and how to read
//! what it prints; run with `--nocapture` to see every claim and the shortest counterexamples.

mod model;
