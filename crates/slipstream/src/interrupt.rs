//! Ctrl-C: the first stops the answer, the second, before the answer has ended, the program.

use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether Ctrl-C was pressed since it was last asked.
#[derive(Clone)]
pub(crate) struct Interrupt {
    pressed: Arc<AtomicBool>,
}

impl Interrupt {
    /// Catches Ctrl-C from now on. Called once, when the models are loaded: fetching and loading
    /// end at the first.
    pub(crate) fn install() -> Interrupt {
        let interrupt = Interrupt { pressed: Arc::default() };
        let pressed = Arc::clone(&interrupt.pressed);
        let installed = ctrlc::set_handler(move || {
            if pressed.swap(true, Ordering::Relaxed) {
                process::exit(130);
            }
        });
        if let Err(error) = installed {
            eprintln!("warning: Ctrl-C will end the program, not the answer: {error}");
        }
        interrupt
    }

    /// Forgets an earlier press: an answer starts.
    pub(crate) fn reset(&self) {
        self.pressed.store(false, Ordering::Relaxed);
    }

    /// Whether it was pressed since the answer started.
    pub(crate) fn pressed(&self) -> bool {
        self.pressed.load(Ordering::Relaxed)
    }
}
