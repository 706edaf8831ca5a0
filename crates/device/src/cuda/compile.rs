//! CUDA C++ to machine code, by the run-time compiler, which needs no card. What was compiled once
//! is kept in a folder, under a name that follows from everything it was made of.

use super::error::CudaError;
use cudarc::nvrtc::result::{self, NvrtcError};
use cudarc::nvrtc::sys;
use sha2::{Digest, Sha256};
use std::ffi::CString;
use std::path::Path;

/// A file of CUDA C++.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    /// Its name in messages.
    pub name: &'static str,
    /// Its text.
    pub text: &'static str,
}

/// Machine code for one target.
pub struct Compiled {
    /// What the driver loads.
    pub image: Vec<u8>,
    /// What the compiler remarked; empty when it had nothing to say.
    pub log: String,
}

/// Bytes of the digest in front of a kept image.
const DIGEST: usize = 32;

/// The compiler's version, major and minor.
///
/// # Errors
/// No compiler.
fn version() -> Result<(i32, i32), CudaError> {
    // SAFETY: only opens the library, whose initialisers are the compiler's own.
    if !unsafe { sys::is_culib_present() } {
        return Err(CudaError::NoCompiler);
    }
    let (mut major, mut minor) = (0, 0);
    // SAFETY: the library is there; it writes two numbers.
    unsafe { sys::nvrtcVersion(&raw mut major, &raw mut minor) }
        .result()
        .map_err(failed("asking the compiler for its version"))?;
    Ok((major, minor))
}

/// The target for a card of a compute capability. From 9.0 on with the instructions that only this
/// very generation has.
pub(super) fn target((major, minor): (i32, i32)) -> String {
    let own = if major >= 9 { "a" } else { "" };
    format!("sm_{major}{minor}{own}")
}

fn options(target: &str) -> [String; 3] {
    [
        format!("--gpu-architecture={target}"),
        "--std=c++17".to_owned(),
        "--generate-line-info".to_owned(),
    ]
}

/// Compiles `source` for `target`, such as `sm_90a`.
///
/// # Errors
/// No compiler, one that does not know the target, or a source that it refuses.
pub fn compile(source: &Source, target: &str) -> Result<Compiled, CudaError> {
    let version = version()?;
    let digits: String = target.chars().filter(char::is_ascii_digit).collect();
    if !targets()?.iter().any(|known| known.to_string() == digits) {
        return Err(CudaError::OldCompiler { version, target: target.to_owned() });
    }
    let program = Program::new(source)?;
    match program.compile(&options(target)) {
        Err(NvrtcError(sys::nvrtcResult::NVRTC_ERROR_COMPILATION)) => Err(CudaError::Source {
            name: source.name,
            target: target.to_owned(),
            log: program.log()?,
        }),
        other => {
            other.map_err(failed("compiling"))?;
            Ok(Compiled { image: program.image()?, log: program.log()? })
        }
    }
}

/// The image of `source` for `target`: from the folder `cache` if it is there, compiled otherwise.
///
/// # Errors
/// As [`compile`].
pub(super) fn compiled(
    source: &Source,
    target: &str,
    cache: Option<&Path>,
) -> Result<Vec<u8>, CudaError> {
    let Some(folder) = cache else { return compile(source, target).map(|made| made.image) };
    let path = folder.join(name(source, target, version()?));
    if let Some(image) = std::fs::read(&path).ok().and_then(|kept| unseal(&kept)) {
        return Ok(image);
    }
    let image = compile(source, target)?.image;
    // A folder that cannot be written costs the next start its time, and nothing else.
    let _ = keep(folder, &path, &image);
    Ok(image)
}

/// The file's name: a digest of all that the image depends on.
fn name(source: &Source, target: &str, (major, minor): (i32, i32)) -> String {
    let mut digest = Sha256::new();
    digest.update(format!("nvrtc {major}.{minor}\0{}\0", options(target).join("\0")));
    digest.update(source.text);
    let hex: String = digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{hex}.cubin")
}

/// The image, with its digest in front.
fn seal(image: &[u8]) -> Vec<u8> {
    let mut sealed = Sha256::digest(image).to_vec();
    sealed.extend_from_slice(image);
    sealed
}

/// The image of a kept file, if it is whole.
fn unseal(kept: &[u8]) -> Option<Vec<u8>> {
    let (digest, image) = kept.split_at_checked(DIGEST)?;
    (Sha256::digest(image)[..] == *digest).then(|| image.to_vec())
}

fn keep(folder: &Path, path: &Path, image: &[u8]) -> std::io::Result<()> {
    std::fs::create_dir_all(folder)?;
    // Under another name first: a reader sees nothing or all of it.
    let writing = path.with_extension(format!("{}.part", std::process::id()));
    std::fs::write(&writing, seal(image))?;
    std::fs::rename(&writing, path)
}

/// Targets that the compiler knows, as numbers: 90 is sm_90 and sm_90a.
fn targets() -> Result<Vec<i32>, CudaError> {
    let asking = failed("asking the compiler for its targets");
    let mut count = 0;
    // SAFETY: the library is there; it writes one number.
    unsafe { sys::nvrtcGetNumSupportedArchs(&raw mut count) }.result().map_err(&asking)?;
    let mut known = vec![0; usize::try_from(count).unwrap_or(0)];
    // SAFETY: it writes as many numbers as it has just said.
    unsafe { sys::nvrtcGetSupportedArchs(known.as_mut_ptr()) }.result().map_err(&asking)?;
    Ok(known)
}

/// A failure of `doing`, for people.
fn failed(doing: &'static str) -> impl Fn(NvrtcError) -> CudaError {
    move |error| CudaError::Driver { doing, said: error.to_string() }
}

/// A program of the compiler.
struct Program(sys::nvrtcProgram);

impl Program {
    fn new(source: &Source) -> Result<Program, CudaError> {
        let text = |text: &str| CString::new(text).expect("a source has no zero bytes");
        // The compiler copies both.
        result::create_program(&text(source.text), Some(&text(source.name)))
            .map(Program)
            .map_err(failed("handing over a source"))
    }

    fn compile(&self, options: &[String]) -> Result<(), NvrtcError> {
        // SAFETY: the program lives until `drop`.
        unsafe { result::compile_program(self.0, options) }
    }

    fn image(&self) -> Result<Vec<u8>, CudaError> {
        let taking = failed("taking the compiled image");
        let mut size = 0;
        // SAFETY: the program lives until `drop`; the compiler writes one number.
        unsafe { sys::nvrtcGetCUBINSize(self.0, &raw mut size) }.result().map_err(&taking)?;
        let mut image = vec![0u8; size];
        // SAFETY: the compiler writes as many bytes as it has just said.
        unsafe { sys::nvrtcGetCUBIN(self.0, image.as_mut_ptr().cast()) }
            .result()
            .map_err(&taking)?;
        Ok(image)
    }

    fn log(&self) -> Result<String, CudaError> {
        // SAFETY: the program lives until `drop`.
        let log = unsafe { result::get_program_log(self.0) };
        let bytes: Vec<u8> =
            log.map_err(failed("taking the compiler's log"))?.iter().map(|&c| c as u8).collect();
        Ok(String::from_utf8_lossy(&bytes).trim_end_matches(['\0', '\n']).to_owned())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: created in `new`, destroyed here only.
        let _ = unsafe { result::destroy_program(self.0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: Source = Source { name: "empty.cu", text: "// nothing" };

    #[test]
    fn a_card_gets_the_target_of_its_generation() {
        assert_eq!(target((8, 6)), "sm_86");
        assert_eq!(target((9, 0)), "sm_90a");
        assert_eq!(target((10, 3)), "sm_103a");
    }

    #[test]
    fn a_name_follows_from_all_that_an_image_is_made_of() {
        let first = name(&SOURCE, "sm_80", (13, 0));
        assert_eq!(first, name(&SOURCE, "sm_80", (13, 0)));
        let other = Source { text: "// other", ..SOURCE };
        for changed in [
            name(&SOURCE, "sm_90a", (13, 0)),
            name(&SOURCE, "sm_80", (13, 1)),
            name(&other, "sm_80", (13, 0)),
        ] {
            assert_ne!(first, changed);
        }
    }

    #[test]
    fn a_damaged_file_is_not_taken() {
        let sealed = seal(b"image");
        assert_eq!(unseal(&sealed), Some(b"image".to_vec()));
        for at in 0..sealed.len() {
            let mut damaged = sealed.clone();
            damaged[at] ^= 1;
            assert_eq!(unseal(&damaged), None);
            assert_eq!(unseal(&sealed[..at]), None);
        }
    }

    #[test]
    fn kept_images_are_found_again() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("kernels").join("a.cubin");
        keep(&folder.path().join("kernels"), &path, b"image").expect("a writable folder");
        let kept = std::fs::read(&path).expect("the file was kept");
        assert_eq!(unseal(&kept), Some(b"image".to_vec()));
    }
}
