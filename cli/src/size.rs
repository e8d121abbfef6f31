//! Sizes on the command line: the one reader and the one writer of `api-types`.

pub(crate) use api_types::size::{parse, show};
