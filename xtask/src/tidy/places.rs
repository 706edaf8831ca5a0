//! Words that are true on one machine only: absolute paths of somebody's disk, private addresses,
//! and package registries other than the public ones.

use crate::report::Finding;
use crate::tree::File;

/// Folders that mean something on one machine only.
const PATHS: &[&str] = &["/work/", "/tmp/", "/home/", "/root/"];

/// (file, path) that are meant: this file names them.
const ALLOWED: &[(&str, &str)] = &[
    ("xtask/src/tidy/places.rs", "/work/"),
    ("xtask/src/tidy/places.rs", "/tmp/"),
    ("xtask/src/tidy/places.rs", "/home/"),
    ("xtask/src/tidy/places.rs", "/root/"),
];

/// Parts of a host's name that make it a package registry.
const REGISTRY_WORDS: &[&str] =
    &["registry", "mirror", "proxy", "artifact", "nexus", "pypi", "crates", "npm", "index"];

/// Registries that everybody has.
const PUBLIC: &[&str] = &["crates.io", "pypi.org"];

/// Ends of host names that resolve in one network only.
const PRIVATE_ENDS: &[&str] = &[".internal", ".local", ".lan", ".corp", ".intranet"];

/// Every text file of the repository.
pub(crate) fn check(files: &[File]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in files {
        for (number, line) in file.lines() {
            for path in PATHS.iter().filter(|path| names_path(line, path)) {
                if !ALLOWED.contains(&(file.path.as_str(), path)) {
                    let what = format!("`{path}` is a path of one machine");
                    let remedy = "use a relative path, a temporary folder, or an argument";
                    findings.push(Finding::new(&file.path, number, what, remedy));
                }
            }
            if file.path == ALLOWED[0].0 {
                continue;
            }
            for host in hosts(line).filter(|host| !public(host)) {
                let what = format!("the host `{host}` is a private place");
                let remedy = "name the public one, or none";
                findings.push(Finding::new(&file.path, number, what, remedy));
            }
        }
    }
    findings
}

/// Whether `path` occurs as the beginning of an absolute path, not inside a longer one.
fn names_path(line: &str, path: &str) -> bool {
    line.match_indices(path).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || "._-~}])>*/".contains(c))
    })
}

/// Host names of the URLs in a line.
fn hosts(line: &str) -> impl Iterator<Item = &str> {
    line.match_indices("://").map(|(at, mark)| {
        let rest = &line[at + mark.len()..];
        let end = rest.find(|c: char| c == '/' || c.is_whitespace() || "\"'`<>()[]".contains(c));
        let authority = &rest[..end.unwrap_or(rest.len())];
        let host = authority.rsplit('@').next().unwrap_or(authority);
        host.split(':').next().unwrap_or(host)
    })
}

fn public(host: &str) -> bool {
    let within = |domain: &&str| host == *domain || host.ends_with(&format!(".{domain}"));
    if PUBLIC.iter().any(within) {
        return true;
    }
    let registry = REGISTRY_WORDS.iter().any(|word| host.contains(word));
    let private = PRIVATE_ENDS.iter().any(|end| host.ends_with(end));
    !registry && !private && !private_address(host)
}

/// RFC 1918 addresses. The loopback is everybody's.
fn private_address(host: &str) -> bool {
    host.parse::<std::net::Ipv4Addr>().is_ok_and(|address| address.is_private())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whats(path: &str, text: &str) -> Vec<String> {
        check(&[File::new(path, text)]).into_iter().map(|finding| finding.what).collect()
    }

    #[test]
    fn paths_of_one_machine_are_found() {
        let text = "open('/work/a.gguf')\nx=/tmp/b\n$A/home/me/\n/home/me/\n(/root/x)\n";
        let found = check(&[File::new("a.py", text)]);
        assert_eq!(found.iter().map(|f| f.line).collect::<Vec<_>>(), [1, 2, 4, 5]);
    }

    #[test]
    fn longer_paths_and_urls_are_not() {
        let text = "target/tmp/x ./tmp/ ${A}/tmp/ https://a.org/home/ ../work/ #!/usr/bin/env\n";
        assert!(whats("a.md", text).is_empty());
    }

    #[test]
    fn the_list_allows_itself_only() {
        assert!(whats("xtask/src/tidy/places.rs", "\"/work/\"").is_empty());
        assert_eq!(whats("xtask/src/tidy/words.rs", "\"/work/\"").len(), 1);
    }

    #[test]
    fn private_registries_and_addresses_are_found() {
        let private = "https://pypi.company.example/simple http://10.0.3.4:8080/ https://git.lan/";
        assert_eq!(whats("pip.conf", private).len(), 3);
        assert_eq!(whats("a.md", "(https://user:pass@nexus.example.org:81/x)").len(), 1);
    }

    #[test]
    fn public_hosts_are_not() {
        let text = "https://crates.io/crates/serde https://static.crates.io https://pypi.org/p \
            https://huggingface.co/docs http://127.0.0.1:8000 http://localhost:1/ \
            registry+https://github.com/rust-lang/crates.io-index\n";
        assert!(whats("Cargo.lock", text).is_empty());
    }
}
