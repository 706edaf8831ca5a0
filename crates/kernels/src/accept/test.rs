//! How many drafts are accepted.

use super::accept;

#[test]
fn the_longest_equal_prefix_is_accepted() {
    assert_eq!(accept(&[], &[5]), 0);
    assert_eq!(accept(&[5, 6, 7], &[5, 6, 7, 8]), 3);
    assert_eq!(accept(&[5, 6, 7], &[5, 9, 7, 8]), 1);
    assert_eq!(accept(&[5, 6, 7], &[4, 6, 7, 8]), 0);
}

#[test]
#[should_panic(expected = "3 drafts want 4 choices, not 3")]
fn a_missing_bonus_token_panics() {
    accept(&[1, 2, 3], &[1, 2, 3]);
}
