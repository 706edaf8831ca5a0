//! The inner loops for AMX: one tile instruction multiplies a run of the panel's 16 outputs with every
//! row of a tile. The dot products are the exact integers of the loops for AVX-512, and what becomes of
//! them is computed as there, so both give the same bits, and the launch takes for each tile what is
//! faster.
//!
//! Tiles of the processor (Intel SDM, "Intel AMX"): the dot products are `[rows, 16]` integers, the
//! input `[rows, bytes of a group]`, and the codes a row for each quad of the group.

use super::avx512::{Factors, Far, halves, prefetch, store, unpack};
use super::cpu::Stored;
use super::input::Quantized;
use super::panel::{LANES, LINE};
use crate::format::{Coding, Min};
use std::arch::asm;
use std::arch::x86_64::*;
use std::mem::{MaybeUninit, offset_of};

/// Rows from which tiles are faster than AVX-512. Scales and mins are multiplied by AVX-512 here too, on half
/// of its units as long as tiles are in use, so a run has to save enough integer products.
pub(super) const fn fewest(coding: Coding) -> usize {
    match coding.min {
        Min::None if coding.groups == 1 => 8,
        _ => 12,
    }
}

/// Whether the processor has AMX for bytes and the system lets this process have its registers, for
/// which it is asked once.
pub(super) fn available() -> bool {
    #[cfg(target_os = "linux")]
    {
        static GRANTED: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
        *GRANTED.get_or_init(|| listed() && requested())
    }
    #[cfg(not(target_os = "linux"))]
    false
}

/// Whether Linux lists tiles of bytes among what the processor has and the system supports.
#[cfg(target_os = "linux")]
fn listed() -> bool {
    let processors = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let flags = processors.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
    ["amx_tile", "amx_int8"].iter().all(|flag| flags.split_whitespace().any(|f| f == *flag))
}

/// Asks Linux for the registers of tiles, which it gives a process that wants them.
#[cfg(target_os = "linux")]
fn requested() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
    const TILE_DATA: libc::c_long = 18;
    // SAFETY: the call takes two numbers and touches no memory of ours.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILE_DATA) == 0 }
}

/// What the processor is told of its tiles: palette 1, and of each register its rows and their bytes.
#[repr(C, align(64))]
struct Shapes {
    palette: u8,
    start: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

/// This thread's tile registers, shaped for tiles of one height and one format, until it is dropped.
pub(super) struct Shaped(());

impl Shaped {
    /// # Safety
    /// [`available`].
    pub(super) unsafe fn new(rows: usize, coding: Coding) -> Shaped {
        let group = quads(coding);
        let mut shapes =
            Shapes { palette: 1, start: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
        // Registers 0, 1 and 2: dot products, input, codes.
        for (register, (rows, bytes)) in
            [(rows, LINE), (rows, 4 * group), (group, LINE)].into_iter().enumerate()
        {
            (shapes.rows[register], shapes.row_bytes[register]) = (rows as u8, bytes as u16);
        }
        // SAFETY: the processor has tiles, as the caller promises, and these are shapes of palette 1.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &shapes, options(nostack, readonly)) };
        Shaped(())
    }
}

impl Drop for Shaped {
    /// Gives the registers back, so that the system need not keep them when threads change.
    fn drop(&mut self) {
        // SAFETY: whoever made it had tiles.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }
}

/// Quads of codes in a group.
const fn quads(coding: Coding) -> usize {
    8 / coding.groups
}

/// The input of a group is read row by row, an item a line.
const _: () = assert!(size_of::<Quantized>() == LINE && offset_of!(Quantized, q) == 0);

/// Cycles of the multiplying units that a run takes for one row.
const RUN_CYCLES: usize = 2;

/// Runs between a step of a run and its next one. Loads of tiles take nothing from stores on their way to
/// the cache, nor do loads of what a tile stored: both wait until the store has arrived, and everything
/// behind them waits too if it is near.
const LAG: usize = 3;
/// Runs whose codes, or dot products, are kept.
const KEPT: usize = LAG + 1;

/// What lies between the steps of a tile's runs.
#[repr(align(64))]
struct Between<const ROWS: usize> {
    /// Codes of a run, a line a quad.
    codes: [[__m512i; 8]; KEPT],
    /// Dot products of a run, by group.
    dots: [[[__m512i; ROWS]; 2]; KEPT],
}

/// Block formats. `x` is a tile of quantized input.
///
/// # Safety
/// The CPU has AVX-512 F, BW, VL and VNNI, and [`Shaped`] tiles of `ROWS` rows and this format.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
pub(super) fn blocks<T: Stored, const ROWS: usize>(
    panel: &[u8],
    x: &[Quantized],
    out: &mut [[f32; LANES]],
) {
    let coding = T::CODING;
    let runs = x.len() / ROWS;
    assert_eq!(x.len(), runs / coding.span * coding.span * ROWS, "whole blocks of a tile");
    assert!(
        panel.len() >= runs / coding.span * coding.unit_bytes(),
        "a panel as long as the input"
    );
    let mut between = MaybeUninit::<Between<ROWS>>::uninit();
    let between = between.as_mut_ptr();
    let x = x.as_ptr();
    let mut sums = [_mm512_setzero_ps(); ROWS];
    // SAFETY: the asserts above: there are so many runs in the panel and in the tile.
    let unpack = |run: usize| unsafe {
        let at = run_at(coding, panel, run);
        prefetch::<Far>(at, coding.run_bytes(), ROWS * RUN_CYCLES);
        spread_codes::<T>(at, &raw mut (*between).codes[run % KEPT]);
    };
    // SAFETY: as above, and the run's codes were written `LAG` steps before.
    let multiply = |run: usize| unsafe {
        let codes = (&raw const (*between).codes[run % KEPT]).cast();
        let dots = (&raw mut (*between).dots[run % KEPT]).cast();
        multiply(coding, x.add(run * ROWS), codes, dots, ROWS);
    };
    // SAFETY: as above, and the run's dot products were written `LAG` steps before.
    let add = |run: usize, sums: &mut [__m512; ROWS]| unsafe {
        let dots = &raw const (*between).dots[run % KEPT];
        add::<T, ROWS>(panel, run, dots, x.add(run * ROWS), sums);
    };
    for run in 0..runs.min(LAG) {
        unpack(run);
    }
    for run in 0..runs.min(LAG) {
        if run + LAG < runs {
            unpack(run + LAG);
        }
        multiply(run);
    }
    let whole = runs.saturating_sub(2 * LAG);
    for run in 0..whole {
        unpack(run + 2 * LAG);
        multiply(run + LAG);
        add(run, &mut sums);
    }
    for run in whole..runs {
        if run + LAG < runs {
            multiply(run + LAG);
        }
        add(run, &mut sums);
    }
    store(&sums, out);
}

/// Where run `run` of a panel begins.
#[inline]
fn run_at(coding: Coding, panel: &[u8], run: usize) -> *const u8 {
    let (unit, run) = (run / coding.span, run % coding.span);
    let at = unit * coding.unit_bytes() + coding.header_bytes() + run * coding.run_bytes();
    panel.as_ptr().wrapping_add(at)
}

/// Writes the codes of the run at `at` without their zero.
///
/// # Safety
/// `at` has a run's bytes, and `codes` can be written.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn spread_codes<T: Stored>(at: *const u8, codes: *mut [__m512i; 8]) {
    let zero = _mm512_set1_epi8(T::CODING.zero as i8);
    // SAFETY: as the caller promises.
    unsafe { codes.write(unpack::<T>(at).map(|quad| _mm512_sub_epi8(quad, zero))) };
}

/// Multiplies the input of a run, an item a row, with its codes.
///
/// # Safety
/// The tile registers are [`Shaped`] for `rows` and the format; `x` has an item for each row, `codes` a line
/// for each quad, and `dots` one for each row and group.
#[inline]
unsafe fn multiply(
    coding: Coding,
    x: *const Quantized,
    codes: *const u8,
    dots: *mut u8,
    rows: usize,
) {
    for g in 0..coding.groups {
        // SAFETY: as the caller promises; nothing else uses these registers.
        unsafe {
            asm!(
                "tileloadd tmm1, [{q} + {line}]",
                "tileloadd tmm2, [{codes} + {line}]",
                "tilezero tmm0",
                "tdpbssd tmm0, tmm1, tmm2",
                "tilestored [{dots} + {line}], tmm0",
                q = in(reg) x.cast::<u8>().add(4 * g * quads(coding)),
                codes = in(reg) codes.add(g * quads(coding) * LINE),
                dots = in(reg) dots.add(g * rows * LINE),
                line = in(reg) LINE,
                options(nostack, preserves_flags),
            );
        }
    }
}

/// Adds the products of run `run`, whose dot products are there.
///
/// # Safety
/// The panel has the run, `dots` are written for its groups, and `x` has `ROWS` items.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn add<T: Stored, const ROWS: usize>(
    panel: &[u8],
    run: usize,
    dots: *const [[__m512i; ROWS]; 2],
    x: *const Quantized,
    sums: &mut [__m512; ROWS],
) {
    let coding = T::CODING;
    // SAFETY: as the caller promises.
    unsafe {
        let unit = panel.as_ptr().add(run / coding.span * coding.unit_bytes());
        let header = [halves(unit), halves(unit.add(coding.header_bytes() - 2 * LANES))];
        let factors = Factors::read::<T>(run_at(coding, panel, run), header);
        for g in 0..coding.groups {
            for (r, sum) in sums.iter_mut().enumerate() {
                *sum = factors.add::<T>(g, (*dots)[g][r], &*x.add(r), *sum);
            }
        }
    }
}
