//! The Hugging Face hub: which files of a repository a model needs, whether they are in the hub's
//! cache already (the one that Python's `huggingface_hub` shares), and fetching them.
//!
//! hf-hub resumes a partial file but has no time-outs; the file list is therefore asked for first
//! by a client that has them, so that an unreachable hub fails within seconds.

use crate::progress::Progress;
use crate::verify;
use hf_hub::api::RepoInfo;
use hf_hub::api::sync::{ApiBuilder, ApiError, ApiRepo};
use hf_hub::{Cache, Repo, RepoType};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Longest wait for a connection to the hub.
const CONNECT: Duration = Duration::from_secs(3);
/// Longest wait for the hub's list of a repository's files.
const LIST: Duration = Duration::from_secs(10);
/// Tries of one file; each goes on where the last one stopped.
const TRIES: usize = 4;

/// Lists the shards of sharded safetensors.
const INDEX: &str = "model.safetensors.index.json";

/// Small files a model folder may have besides its weights.
const SIDE_FILES: &[&str] = &[
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "chat_template.jinja",
    INDEX,
];

/// Whether the network may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    /// It may.
    Online,
    /// Only what is cached (`HF_HUB_OFFLINE`).
    Offline,
}

/// How to reach the hub, and where its cache lies.
#[derive(Clone, Debug)]
pub struct Hub {
    /// `https://huggingface.co`, or `HF_ENDPOINT`.
    pub endpoint: String,
    /// The hub's cache: `HF_HUB_CACHE`, `HF_HOME/hub`, or `~/.cache/huggingface/hub`.
    pub cache: PathBuf,
    /// `HF_TOKEN`; otherwise the token that a login left beside the cache.
    pub token: Option<String>,
    /// Whether to ask it at all.
    pub network: Network,
}

/// A repository on the hub, and perhaps one file of it: `org/name[@revision][:file]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HubName {
    pub(crate) repo: String,
    pub(crate) revision: String,
    pub(crate) file: Option<String>,
}

impl HubName {
    /// Reads a name; `None` when it cannot be one.
    pub(crate) fn parse(name: &str) -> Option<HubName> {
        let (rest, file) = match name.split_once(':') {
            Some((rest, file)) => (rest, Some(file)),
            None => (name, None),
        };
        let (repo, revision) = rest.split_once('@').unwrap_or((rest, "main"));
        let (owner, model) = repo.split_once('/')?;
        let word = |text: &str| {
            !text.is_empty()
                && !text.starts_with('.')
                && text.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
        };
        let revision_ok = revision.split('/').all(word);
        let file_ok = file.is_none_or(|file| {
            file.split('/')
                .all(|part| !part.is_empty() && part != ".." && part != "." && !part.contains('\\'))
        });
        (word(owner) && word(model) && revision_ok && file_ok).then(|| HubName {
            repo: repo.to_owned(),
            revision: revision.to_owned(),
            file: file.map(str::to_owned),
        })
    }

    fn repo(&self) -> Repo {
        Repo::with_revision(self.repo.clone(), RepoType::Model, self.revision.clone())
    }
}

/// The files to fetch and what a loader then opens.
#[derive(Debug, PartialEq, Eq)]
enum Wanted {
    /// A folder of safetensors: side files first, so that weights mean the rest is there.
    Folder { side: Vec<String>, weights: Vec<String>, index: bool },
    /// A GGUF file, with its other parts if it is split; the first is opened.
    Gguf(Vec<String>),
}

impl Hub {
    /// The model in the hub's cache, when all of it is there.
    pub(crate) fn cached(&self, name: &HubName) -> Option<PathBuf> {
        let folder = self.snapshot(name)?;
        let whole = |file: &str| {
            let parts = split_parts(file).unwrap_or_else(|| vec![file.to_owned()]);
            parts.iter().all(|part| folder.join(part).exists()).then(|| folder.join(file))
        };
        if let Some(file) = &name.file {
            return whole(file);
        }
        if folder.join("config.json").exists() {
            if let Ok(text) = fs::read_to_string(folder.join(INDEX)) {
                let shards = shards(&text)?;
                return shards.iter().all(|shard| folder.join(shard).exists()).then_some(folder);
            }
            return (!named(&folder, ".safetensors").is_empty()).then_some(folder);
        }
        match &named(&folder, ".gguf").into_iter().filter(|f| is_first_part(f)).collect::<Vec<_>>()
            [..]
        {
            [only] => whole(only),
            _ => None,
        }
    }

    /// The folder of the revision's files in the hub's cache.
    fn snapshot(&self, name: &HubName) -> Option<PathBuf> {
        let repo = self.cache.join(name.repo().folder_name());
        let commit = fs::read_to_string(repo.join("refs").join(&name.revision));
        // A revision that is a commit has no reference file.
        let commit = commit.unwrap_or_else(|_| name.revision.clone());
        let folder = repo.join("snapshots").join(commit.trim());
        folder.is_dir().then_some(folder)
    }

    /// Fetches the model into the hub's cache; files already there are not fetched again.
    ///
    /// # Errors
    /// Why not, for people.
    pub(crate) fn fetch(&self, name: &HubName, progress: Progress) -> Result<PathBuf, String> {
        let files = self.list(name)?;
        let wanted = wanted(name, &files)?;
        let cache = Cache::new(self.cache.clone());
        let api = ApiBuilder::from_cache(cache)
            .with_endpoint(self.endpoint.clone())
            .with_token(self.token())
            .build()
            .map_err(|error| error.to_string())?
            .repo(name.repo());
        let get = |file: &str| self.file(&api, name, file, progress);
        match wanted {
            Wanted::Gguf(parts) => {
                let mut paths = Vec::with_capacity(parts.len());
                for part in &parts {
                    paths.push(get(part)?);
                }
                Ok(paths.swap_remove(0))
            }
            Wanted::Folder { side, mut weights, index } => {
                for file in &side {
                    let path = get(file)?;
                    if index && file == INDEX {
                        let text = fs::read_to_string(&path).map_err(|error| error.to_string())?;
                        weights = shards(&text)
                            .ok_or_else(|| format!("{INDEX}: no usable weight_map"))?;
                    }
                }
                let mut folder = PathBuf::new();
                for file in &weights {
                    let path = get(file)?;
                    folder = path.parent().expect("a file has a folder").to_owned();
                }
                Ok(folder)
            }
        }
    }

    fn token(&self) -> Option<String> {
        self.token.clone().or_else(|| Cache::new(self.cache.clone()).token())
    }

    /// The names of the repository's files.
    fn list(&self, name: &HubName) -> Result<Vec<String>, String> {
        if self.network == Network::Offline {
            return Err("not asked: HF_HUB_OFFLINE is set".to_owned());
        }
        let agent: ureq::Agent = ureq::Agent::config_builder()
            .timeout_connect(Some(CONNECT))
            .timeout_resolve(Some(CONNECT))
            .timeout_global(Some(LIST))
            .build()
            .into();
        let url = format!("{}/api/{}", self.endpoint, name.repo().api_url());
        let mut request = agent.get(&url);
        if let Some(token) = self.token() {
            request = request.header("Authorization", format!("Bearer {token}"));
        }
        let mut response = request.call().map_err(|error| match error {
            ureq::Error::StatusCode(401 | 403 | 404) => format!(
                "no repository {} with revision {} (or a private one: set HF_TOKEN)",
                name.repo, name.revision
            ),
            other => format!("{} is not reachable: {other}", self.endpoint),
        })?;
        let info: RepoInfo = response
            .body_mut()
            .read_json()
            .map_err(|error| format!("{url}: not a repository's description: {error}"))?;
        Ok(info.siblings.into_iter().map(|file| file.rfilename).collect())
    }

    /// Fetches one file, going on after interruptions, and checks it where the hub names its
    /// SHA-256 (large files are stored under it).
    fn file(
        &self,
        api: &ApiRepo,
        name: &HubName,
        file: &str,
        progress: Progress,
    ) -> Result<PathBuf, String> {
        if let Some(path) =
            self.snapshot(name).map(|folder| folder.join(file)).filter(|p| p.exists())
        {
            return Ok(path);
        }
        let mut problem = String::new();
        for attempt in 0..TRIES {
            if attempt > 0 {
                progress.note(&format!("{file}: {problem}; going on"));
                std::thread::sleep(Duration::from_millis(250 << attempt));
            }
            match api.download_with_progress(file, progress.meter(file, 0)) {
                Ok(path) => match check_blob(&path) {
                    Ok(()) => return Ok(path),
                    Err(damage) => problem = damage,
                },
                Err(error) => {
                    if cannot_resume(&error) {
                        self.drop_partial(name);
                    }
                    problem = error.to_string();
                }
            }
        }
        Err(format!("{file}: {problem}"))
    }

    /// Removes partial files that the hub refuses to continue.
    fn drop_partial(&self, name: &HubName) {
        let blobs = self.cache.join(name.repo().folder_name()).join("blobs");
        for entry in fs::read_dir(blobs).into_iter().flatten().flatten() {
            if entry.path().extension().is_some_and(|extension| extension == "part") {
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

fn cannot_resume(error: &ApiError) -> bool {
    match error {
        ApiError::InvalidResume => true,
        ApiError::RequestError(error) => matches!(**error, ureq::Error::StatusCode(416)),
        _ => false,
    }
}

/// Checks a file against the SHA-256 it is stored under, and removes it when they differ.
fn check_blob(path: &Path) -> Result<(), String> {
    let blob = path.canonicalize().map_err(|error| error.to_string())?;
    let stored = blob.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    if stored.len() != 64 || !stored.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Ok(());
    }
    let found = verify::sha256(&blob).map_err(|error| error.to_string())?;
    if found == stored {
        return Ok(());
    }
    discard(path);
    Err(format!("arrived damaged: sha256 {found} instead of {stored}"))
}

/// Removes a cached file and what its link points to.
pub(crate) fn discard(path: &Path) {
    // What cannot be removed is found damaged again.
    if let Ok(blob) = path.canonicalize() {
        let _ = fs::remove_file(blob);
    }
    let _ = fs::remove_file(path);
}

/// Which of a repository's files make the model.
fn wanted(name: &HubName, files: &[String]) -> Result<Wanted, String> {
    let has = |file: &str| files.iter().any(|name| name == file);
    if let Some(file) = &name.file {
        let parts = split_parts(file).unwrap_or_else(|| vec![file.clone()]);
        return match parts.iter().find(|part| !has(part)) {
            None => Ok(Wanted::Gguf(parts)),
            Some(missing) => Err(format!("{} has no file {missing}", name.repo)),
        };
    }
    let top = |extension: &str| {
        let ours = |file: &&String| file.ends_with(extension) && !file.contains('/');
        files.iter().filter(ours).cloned().collect::<Vec<_>>()
    };
    let index = has(INDEX);
    let mut weights = top(".safetensors");
    if has("model.safetensors") {
        weights = vec!["model.safetensors".to_owned()];
    }
    if has("config.json") && (index || !weights.is_empty()) {
        let side = SIDE_FILES.iter().filter(|file| has(file)).map(|file| file.to_string());
        return Ok(Wanted::Folder { side: side.collect(), weights, index });
    }
    let ggufs = top(".gguf");
    let firsts: Vec<&String> = ggufs.iter().filter(|file| is_first_part(file)).collect();
    match firsts[..] {
        [] => Err(format!("{} holds no config.json with safetensors and no GGUF file", name.repo)),
        [only] => Ok(Wanted::Gguf(split_parts(only).unwrap_or_else(|| vec![only.clone()]))),
        _ => Err(format!(
            "{} holds several GGUF files; name one as {}:FILE: {}",
            name.repo,
            name.repo,
            firsts.iter().map(|file| file.as_str()).collect::<Vec<_>>().join(", ")
        )),
    }
}

/// `name-00001-of-00003.gguf` as (`name`, 1, 3).
fn split_suffix(file: &str) -> Option<(&str, usize, usize)> {
    let stem = file.strip_suffix(".gguf")?;
    let (rest, total) = stem.rsplit_once("-of-")?;
    let (base, part) = rest.rsplit_once('-')?;
    let number = |text: &str| (text.len() == 5).then(|| text.parse::<usize>().ok()).flatten();
    Some((base, number(part)?, number(total)?))
}

/// Every part of the split GGUF that `file` is the first part of.
fn split_parts(file: &str) -> Option<Vec<String>> {
    let (base, _, total) = split_suffix(file)?;
    Some((1..=total).map(|part| format!("{base}-{part:05}-of-{total:05}.gguf")).collect())
}

fn is_first_part(file: &str) -> bool {
    split_suffix(file).is_none_or(|(_, part, _)| part == 1)
}

/// The shard names of an index, sorted; `None` when it names none or one that leaves its folder.
fn shards(index: &str) -> Option<Vec<String>> {
    let index: serde_json::Value = serde_json::from_str(index).ok()?;
    let names = index.get("weight_map")?.as_object()?.values().map(|value| value.as_str());
    let mut names = names.collect::<Option<Vec<&str>>>()?;
    names.sort_unstable();
    names.dedup();
    let safe = |name: &&str| !name.is_empty() && !name.contains(['/', '\\']);
    (!names.is_empty() && names.iter().all(safe))
        .then(|| names.into_iter().map(str::to_owned).collect())
}

/// The names in `folder` with this ending.
fn named(folder: &Path, ending: &str) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| name.ends_with(ending)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(repo: &str, revision: &str, file: Option<&str>) -> HubName {
        HubName { repo: repo.into(), revision: revision.into(), file: file.map(str::to_owned) }
    }

    #[test]
    fn names() {
        for (text, expected) in [
            ("org/model", Some(name("org/model", "main", None))),
            ("org/model@v1.0", Some(name("org/model", "v1.0", None))),
            ("org/model@refs/pr/1", Some(name("org/model", "refs/pr/1", None))),
            ("org/model:a.gguf", Some(name("org/model", "main", Some("a.gguf")))),
            ("org/model@abc:sub/a.gguf", Some(name("org/model", "abc", Some("sub/a.gguf")))),
            ("model", None),
            ("./model", None),
            ("../model", None),
            ("/org/model", None),
            ("a/b/c", None),
            ("org/", None),
            ("org/model:", None),
            ("org/model:../x", None),
            ("org/model@", None),
            ("C:\\models\\x", None),
        ] {
            assert_eq!(HubName::parse(text), expected, "{text}");
        }
    }

    #[test]
    fn the_files_of_a_model() {
        let strings = |files: &[&str]| files.iter().map(|f| f.to_string()).collect::<Vec<_>>();
        let any = name("o/m", "main", None);
        let folder = strings(&[
            "README.md",
            "config.json",
            "tokenizer.json",
            "model.safetensors",
            "consolidated.safetensors",
            "onnx/model.onnx",
        ]);
        assert_eq!(
            wanted(&any, &folder),
            Ok(Wanted::Folder {
                side: strings(&["config.json", "tokenizer.json"]),
                weights: strings(&["model.safetensors"]),
                index: false,
            })
        );
        assert_eq!(
            wanted(&any, &strings(&["README.md", "m.Q4_K_M.gguf"])),
            Ok(Wanted::Gguf(strings(&["m.Q4_K_M.gguf"])))
        );
        let split = ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"];
        assert_eq!(wanted(&any, &strings(&split)), Ok(Wanted::Gguf(strings(&split))));
        let several = wanted(&any, &strings(&["a.gguf", "b.gguf"])).unwrap_err();
        assert_eq!(several, "o/m holds several GGUF files; name one as o/m:FILE: a.gguf, b.gguf");
        assert!(wanted(&any, &strings(&["README.md"])).is_err());
        let missing = wanted(&name("o/m", "main", Some("c.gguf")), &strings(&["a.gguf"]));
        assert_eq!(missing, Err("o/m has no file c.gguf".into()));
    }

    #[test]
    fn an_index_cannot_leave_its_folder() {
        let index = |shard: &str| format!(r#"{{"weight_map": {{"a": "s1", "b": "{shard}"}}}}"#);
        assert_eq!(shards(&index("s0")), Some(vec!["s0".into(), "s1".into()]));
        assert_eq!(shards(&index("../s0")), None);
        assert_eq!(shards("{}"), None);
    }
}
