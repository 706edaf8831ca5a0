//! Which tensor is the output head of a Hugging Face checkpoint.

use super::store::Store;
use crate::config::ModelConfig;
use crate::error::LoadError;
use std::path::Path;

const EMBEDDING: &str = "model.embed_tokens.weight";
const HEAD: &str = "lm_head.weight";

/// Makes `config.tied_embeddings` agree with the tensors that are there.
///
/// Tied and no head: the embedding is the head. Tied and a head of other values: the flag is
/// wrong, so the head counts, as in transformers 5; a note says so. Tied and the same values: the
/// embedding serves as both.
///
/// # Errors
/// No embedding; untied and no head.
pub(super) fn settle(
    path: &Path,
    config: &mut ModelConfig,
    store: &Store,
    notes: &mut Vec<String>,
) -> Result<(), LoadError> {
    let Some(embedding) = store.get(EMBEDDING) else {
        return Err(LoadError::new(path, EMBEDDING, "is missing from the weights"));
    };
    let head = store.get(HEAD);
    match (config.tied_embeddings, head) {
        (true, None) | (false, Some(_)) => Ok(()),
        (false, None) => Err(LoadError::new(
            path,
            HEAD,
            "is missing from the weights, and tie_word_embeddings is not true; if the head is the \
             embedding, set it in config.json",
        )),
        (true, Some(head)) => {
            let (a, b) = (store.tensor(embedding), store.tensor(head));
            if a.shape == b.shape && a.format == b.format && a.data == b.data {
                head.mark_used();
                notes.push(format!("{HEAD} repeats the embedding, which serves as both"));
            } else {
                config.tied_embeddings = false;
                notes.push(format!(
                    "tie_word_embeddings is true, but {HEAD} differs from the embedding: the \
                     file's head is used; set tie_word_embeddings to false"
                ));
            }
            Ok(())
        }
    }
}
