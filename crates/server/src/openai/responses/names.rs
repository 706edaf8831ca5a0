//! What the fields of a conversation are called by chats, and what the client calls them.

/// Pairs of paths: what stands below one stands below the other.
#[derive(Debug, Default)]
pub(super) struct Names(Vec<(String, String)>);

impl Names {
    /// The field that chats call `chats` is the client's `own`.
    pub(super) fn note(&mut self, chats: impl Into<String>, own: impl Into<String>) {
        self.0.push((chats.into(), own.into()));
    }

    /// The client's name of a chat's field: by the longest path that leads to it.
    pub(super) fn own(&self, param: &str) -> String {
        let below = |(chats, own): &(String, String)| {
            let rest = param.strip_prefix(chats.as_str())?;
            let leads = rest.is_empty() || rest.starts_with(['.', '[']);
            leads.then(|| (chats.len(), format!("{own}{rest}")))
        };
        let found = self.0.iter().filter_map(below).max_by_key(|(length, _)| *length);
        found.map_or_else(|| param.to_owned(), |(_, own)| own)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_path_that_leads_to_a_field_names_it() {
        let mut names = Names::default();
        names.note("messages", "input");
        names.note("messages[1]", "input[4]");
        names.note("messages[1].tool_calls[0].id", "input[5].call_id");
        for (chats, own) in [
            ("messages", "input"),
            ("messages[1].content[2].type", "input[4].content[2].type"),
            ("messages[1].tool_calls[0].id", "input[5].call_id"),
            ("messages[12].content", "input[12].content"),
            ("messages2", "messages2"),
            ("temperature", "temperature"),
        ] {
            assert_eq!(names.own(chats), own);
        }
    }
}
