//! When a loop is worth the threads.

use device::Cpu;

/// Elements of elementwise work that take about as long as handing them to a thread that looks for
/// work, which within a pass it does.
const MIN_ELEMENTS: usize = 4 * 1024;

/// Runs `body(0) … body(parts - 1)`: over the threads when there are `elements` enough to pay
/// for it, else here.
pub(crate) fn spread(cpu: &Cpu, parts: usize, elements: usize, body: &(dyn Fn(usize) + Sync)) {
    if parts > 1 && cpu.threads() > 1 && elements >= MIN_ELEMENTS {
        cpu.parallel(parts, body);
    } else {
        (0..parts).for_each(body);
    }
}
