//! Rows and words on a card brought to where the next kernels find them: rows of a matrix by their numbers,
//! words from and to the host's pinned memory, which a kernel reaches sooner than the engine that copies, and words that
//! stood for others while nobody knew them.
//! On the CPU these are slices.

pub mod cuda;
