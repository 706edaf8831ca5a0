//! Names of tool calls, by which a client's next request says which call a result answers.

/// Makes the ids of one answer's calls.
///
/// They are a function of the request's own id and not of its seed: two turns of a conversation may
/// share a seed, and their calls meet in one list of messages.
#[derive(Clone, Debug)]
pub struct CallIds {
    key: u64,
}

/// Letters and digits, which every template takes.
const ALPHABET: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// Characters behind `call_`, as many as clients are used to.
const LENGTH: usize = 24;

impl CallIds {
    /// For answer number `choice` (`n` answers may belong to one request) of the request that the
    /// server calls `request`, a text that no other request has.
    pub fn new(request: &str, choice: usize) -> CallIds {
        CallIds { key: mix(hash(request) ^ mix(choice as u64)) }
    }

    /// The id of call number `index` of the answer: `call_` and 24 letters and digits.
    pub fn id(&self, index: usize) -> String {
        let key = mix(self.key.wrapping_add(mix(index as u64)));
        format!("call_{}", letters(key, LENGTH))
    }
}

/// Nine letters and digits that stand for `id` in templates that take no other kind: `id` itself
/// where it is of that kind.
pub(super) fn nine(id: &str) -> String {
    if id.len() == 9 && id.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return id.to_owned();
    }
    letters(hash(id), 9)
}

fn letters(key: u64, count: usize) -> String {
    let (mut state, mut left) = (key, 0);
    let mut word = 0;
    let characters = (0..count).map(|_| {
        // A word is good for ten characters: 62^10 is below 2^64.
        if left == 0 {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            (word, left) = (mix(state), 10);
        }
        let character = ALPHABET[(word % 62) as usize];
        (word, left) = (word / 62, left - 1);
        char::from(character)
    });
    characters.collect()
}

/// FNV-1a (Fowler, Noll, Vo), 64 bits.
fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// The finalizer of SplitMix64 (Steele et al. 2014): a bijection that spreads every bit.
fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn ids_are_a_function_of_request_choice_and_index() {
        let id = |request: &str, choice, index| CallIds::new(request, choice).id(index);
        assert_eq!(id("chatcmpl-1", 0, 0), id("chatcmpl-1", 0, 0));
        let mut seen = HashSet::new();
        for request in 0..200 {
            for choice in 0..4 {
                for index in 0..8 {
                    let id = id(&format!("chatcmpl-{request}"), choice, index);
                    let letters = id.strip_prefix("call_").expect("the prefix");
                    assert_eq!(letters.len(), LENGTH);
                    assert!(letters.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{id}");
                    assert!(seen.insert(id));
                }
            }
        }
    }

    #[test]
    fn nine_letters_stand_for_any_id() {
        assert_eq!(nine("call00001"), "call00001");
        for id in ["", "call_abc", "call_0001", "é£é£x", "0123456789"] {
            let short = nine(id);
            assert!(short.len() == 9 && short.bytes().all(|b| b.is_ascii_alphanumeric()));
            assert_eq!(short, nine(id));
        }
        assert_ne!(nine("call_a"), nine("call_b"));
    }
}
