//! Acceptance: the longest prefix of drafts that equals the target's own choices.

#[cfg(feature = "cuda")]
pub mod cuda;
#[cfg(test)]
mod test;

/// `drafts[j]` was proposed for the position that `choices[j]` was chosen for. Returns how many
/// leading drafts equal the choices; `choices` has at least one entry more than `drafts` (the
/// bonus token).
///
/// # Panics
/// When there is no choice for the bonus token.
pub fn accept(drafts: &[u32], choices: &[u32]) -> usize {
    let (drafted, wanted) = (drafts.len(), drafts.len() + 1);
    assert!(
        choices.len() >= wanted,
        "{drafted} drafts want {wanted} choices, not {}",
        choices.len()
    );
    drafts.iter().zip(choices).take_while(|(d, c)| d == c).count()
}
