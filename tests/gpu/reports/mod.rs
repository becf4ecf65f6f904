//! Public reports on the GPU; the numbers are those of tests/README.md. `content` compares with the host backend what they say
//! of ids, shapes and counts; `captures` is about calls that a capture sees (graphs themselves are in `crate::graphs`), `order`
//! is about streams and ranks that are late, `objects` about memory and contexts.

mod captures;
mod content;
mod objects;
mod order;
