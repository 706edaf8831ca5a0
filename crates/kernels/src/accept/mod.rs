//! Acceptance: the longest prefix of drafts that equals the target's own choices.

/// `drafts[j]` was proposed for the position that `choices[j]` was chosen for. Returns how many
/// leading drafts equal the choices; `choices` has at least one entry more than `drafts` (the
/// bonus token).
pub fn accept(drafts: &[u32], choices: &[u32]) -> usize {
    drafts.iter().zip(choices).take_while(|(d, c)| d == c).count()
}
