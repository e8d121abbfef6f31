//! The whole volume against a plain model, on streams that fail in every way their contract allows.

mod cases;
mod fake;
mod life;
mod runs;
