//! The playground as a browser gets it. What it does there is tested in a browser, beside OpenAI's
//! clients.

use crate::site::{Script, Setup, Site};
use server::ApiKey;
use std::collections::BTreeSet;

/// A server that wants a key.
fn site() -> Site {
    let mut setup = Setup::default();
    setup.config.keys = vec![ApiKey::new("key").expect("a key")];
    Site::scripted(Script::letters(), setup)
}

/// Paths of the server that a part names in quotes.
fn named(text: &str) -> BTreeSet<String> {
    let quoted = text.split('"').skip(1).step_by(2);
    quoted.filter(|path| path.starts_with("/page/")).map(str::to_owned).collect()
}

/// Every part of the page with its type and text, as a browser finds them from `/` on.
fn parts(site: &Site) -> Vec<(String, String, String)> {
    let (mut todo, mut seen, mut parts) = (vec!["/".to_owned()], BTreeSet::new(), Vec::new());
    while let Some(path) = todo.pop() {
        if !seen.insert(path.clone()) {
            continue;
        }
        let answer = site.get(&path);
        assert_eq!(answer.status, 200, "{path} without a key");
        let kind = answer.header("content-type").expect("a type").to_owned();
        todo.extend(named(&answer.text));
        parts.push((path, kind, answer.text));
    }
    parts
}

#[test]
fn the_page_and_all_of_its_parts_come_without_a_key_under_a_strict_policy() {
    let site = site();
    let parts = parts(&site);
    let kinds: BTreeSet<&str> =
        parts.iter().map(|(_, kind, _)| kind.split(';').next().expect("a type")).collect();
    let all = ["image/svg+xml", "text/css", "text/html", "text/javascript"];
    assert_eq!(kinds, BTreeSet::from(all));
    for (path, ..) in &parts {
        let answer = site.get(path);
        let policy = answer.header("content-security-policy").expect("a policy");
        for rule in ["default-src 'none'", "script-src 'self'", "frame-ancestors 'none'"] {
            assert!(policy.split("; ").any(|own| own == rule), "{rule} in {policy}");
        }
        assert!(!policy.contains("unsafe"), "{policy}");
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
        assert_eq!(answer.header("referrer-policy"), Some("no-referrer"));
    }
    assert_eq!(site.get("/page/nothing.js").refusal(), (404, String::new(), "not_found".into()));
    assert_eq!(site.get("/server_info").refusal().0, 401, "what the page shows takes a key");
}

#[test]
fn the_page_names_no_other_server_and_writes_no_markup() {
    for (path, _, text) in parts(&site()) {
        let hosts = text.split("://").skip(1).map(|rest| rest.split(['/', '"']).next());
        // The name of a format, which nobody fetches.
        assert!(hosts.flatten().all(|host| host == "www.w3.org"), "{path} names a host");
        for way in
            ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "style="]
        {
            assert!(!text.contains(way), "{path} has {way}");
        }
    }
}

#[test]
fn every_field_of_the_page_has_a_label() {
    let site = site();
    let html = site.get("/").text;
    for tag in ["<input", "<textarea"] {
        for field in html.split(tag).skip(1) {
            let id = field.split("id=\"").nth(1).and_then(|rest| rest.split('"').next());
            let id = id.expect("every field has an id");
            let wrapped = html.split("<label").any(|label| {
                let inside = label.split("</label>").next().expect("a label ends");
                inside.contains(&format!("id=\"{id}\""))
            });
            assert!(wrapped || html.contains(&format!("for=\"{id}\"")), "{id} has no label");
        }
    }
}
