//! What the system is asked about CPUs: which this process may use, on which a thread stays, where it is now.
//! Elsewhere than on Linux nothing is known and nobody stays anywhere.

/// CPUs that sets of them have room for, more than any machine has.
pub(crate) const MOST: usize = 8192;

#[cfg(target_os = "linux")]
mod system {
    use super::MOST;

    /// A set of CPUs, a bit each, as the system takes it.
    type Mask = [u64; MOST / u64::BITS as usize];

    /// The CPUs that this thread may use; none where the system does not say.
    pub(crate) fn allowed() -> Vec<usize> {
        let mut mask: Mask = [0; _];
        // SAFETY: the system writes at most the size that it is told, which is the mask's. Its own type is a
        // shorter array of words.
        let answer = unsafe {
            libc::sched_getaffinity(0, size_of::<Mask>(), (&raw mut mask).cast::<libc::cpu_set_t>())
        };
        let has = |cpu: &usize| answer == 0 && mask[cpu / 64] >> (cpu % 64) & 1 == 1;
        (0..MOST).filter(has).collect()
    }

    /// Asks that this thread stays on `cpus`. It is advice: where the system refuses, it runs anywhere.
    pub(crate) fn stay_on(cpus: &[usize]) {
        let mut mask: Mask = [0; _];
        cpus.iter().filter(|&&cpu| cpu < MOST).for_each(|cpu| mask[cpu / 64] |= 1 << (cpu % 64));
        // SAFETY: the system reads the size that it is told, which is the mask's.
        unsafe {
            libc::sched_setaffinity(
                0,
                size_of::<Mask>(),
                (&raw const mask).cast::<libc::cpu_set_t>(),
            );
        }
    }

    /// The CPU that this thread is on; it may be on another one at once, unless it stays.
    pub(crate) fn current() -> Option<usize> {
        // SAFETY: the call takes nothing and only answers.
        usize::try_from(unsafe { libc::sched_getcpu() }).ok()
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    pub(crate) fn allowed() -> Vec<usize> {
        Vec::new()
    }

    pub(crate) fn stay_on(_: &[usize]) {}

    pub(crate) fn current() -> Option<usize> {
        None
    }
}

pub(crate) use system::{allowed, current, stay_on};

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_thread_stays_where_it_was_asked_to() {
        let all = allowed();
        let last = *all.last().expect("this thread runs somewhere");
        assert!(all.contains(&current().expect("and knows where")));
        let thread = std::thread::spawn(move || {
            stay_on(&[last, MOST]);
            (allowed(), current())
        });
        assert_eq!(thread.join().expect("it ends"), (vec![last], Some(last)));
        stay_on(&[]);
        assert_eq!(allowed(), all, "what the system refuses changes nothing");
    }
}
