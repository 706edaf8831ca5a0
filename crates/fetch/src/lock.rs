//! One process fetches a model at a time; the others wait and then find it in the cache.

use crate::error::FetchError;
use crate::progress::Progress;
use std::fs::{self, File, TryLockError};
use std::path::Path;

/// Held while a model is fetched. The system releases it when the process ends, however it ends.
pub(crate) struct Lock {
    _file: File,
}

/// What taking a lock took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waited {
    /// Nobody held it.
    No,
    /// Another process held it and may have fetched the model.
    Yes,
}

impl Lock {
    /// Takes the lock called `name` in `folder`, waiting for a process that holds it.
    pub(crate) fn take(
        folder: &Path,
        name: &str,
        progress: Progress,
    ) -> Result<(Lock, Waited), FetchError> {
        fs::create_dir_all(folder).map_err(FetchError::io(folder))?;
        let path = folder.join(format!("{}.lock", name.replace(['/', '\\', ':'], "--")));
        let file = File::create(&path).map_err(FetchError::io(&path))?;
        let waited = match file.try_lock() {
            Ok(()) => Waited::No,
            Err(TryLockError::WouldBlock) => {
                progress.note(&format!("{name}: another process is fetching it; waiting"));
                file.lock().map_err(FetchError::io(&path))?;
                Waited::Yes
            }
            Err(TryLockError::Error(error)) => return Err(FetchError::io(&path)(error)),
        };
        Ok((Lock { _file: file }, waited))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::time::Duration;

    #[test]
    fn the_second_waits_for_the_first() {
        let temp = tempfile::tempdir().unwrap();
        let folder = temp.path().to_owned();
        let (first, waited) = Lock::take(&folder, "org/name", Progress::Silent).unwrap();
        assert_eq!(waited, Waited::No);
        let (sender, receiver) = mpsc::channel();
        let second = std::thread::spawn(move || {
            let taken = Lock::take(&folder, "org/name", Progress::Silent).unwrap();
            sender.send(taken.1).unwrap();
        });
        let early = receiver.recv_timeout(Duration::from_millis(100));
        assert_eq!(early, Err(mpsc::RecvTimeoutError::Timeout), "taken while held");
        drop(first);
        assert_eq!(receiver.recv_timeout(Duration::from_secs(10)), Ok(Waited::Yes));
        second.join().unwrap();
    }
}
