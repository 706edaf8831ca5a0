//! Sixteen `f32` lanes, the unit in which every reduction outside the matrix product is written,
//! and the choice of instruction set that runs them.
//!
//! A kernel is written once over [`Lanes`]; [`Level::dispatch`] compiles it for AVX-512, for
//! AVX2 + FMA, for NEON and for plain Rust. Every operation is a single IEEE operation per lane (a
//! fused multiply-add rounds once, also where it is emulated), so all levels give the same bits.
//!
//! Files: one an instruction set.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;
#[cfg(test)]
mod test;

/// Lanes of a vector.
pub(crate) const LANES: usize = 16;

/// Operations on vectors of [`LANES`] floats. A value of this type is the proof that the
/// processor has the instructions: only [`Level::dispatch`] makes one.
pub(crate) trait Lanes: Copy {
    /// A vector.
    type F: Copy;
    /// Whether the registers hold 16 accumulators of a whole vector each, beside their operands.
    const MANY_REGISTERS: bool;

    fn splat(self, x: f32) -> Self::F;
    fn load(self, from: &[f32; LANES]) -> Self::F;
    fn store(self, v: Self::F, to: &mut [f32; LANES]);
    fn add(self, a: Self::F, b: Self::F) -> Self::F;
    fn sub(self, a: Self::F, b: Self::F) -> Self::F;
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    fn div(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a · b + c`, rounded once.
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// `a > b ? a : b`, so `b` when either is NaN.
    fn max(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a < b ? a : b`, so `b` when either is NaN.
    fn min(self, a: Self::F, b: Self::F) -> Self::F;
    /// Bit `i` is set when lane `i` of `a` is at least that of `b`; NaN is at least nothing.
    fn ge(self, a: Self::F, b: Self::F) -> u16;
    /// `v · 2ⁿ`, where `n` is the integer in the low mantissa bits of `n_bits` (a float of at
    /// least 2²³); the result must be a normal number.
    fn scale(self, v: Self::F, n_bits: Self::F) -> Self::F;
    /// `v`, but +0 where `x < limit`.
    fn zero_below(self, v: Self::F, x: Self::F, limit: Self::F) -> Self::F;

    /// The sum of the lanes, halves first: lane `i` with `i + 8`, then 4, 2, 1.
    #[inline(always)]
    fn sum(self, v: Self::F) -> f32 {
        let mut lanes = [0.0; LANES];
        self.store(v, &mut lanes);
        for half in [8, 4, 2, 1] {
            for i in 0..half {
                lanes[i] += lanes[i + half];
            }
        }
        lanes[0]
    }

    /// The largest lane; NaN lanes are passed over unless every lane is NaN.
    #[inline(always)]
    fn largest(self, v: Self::F) -> f32 {
        let mut lanes = [0.0; LANES];
        self.store(v, &mut lanes);
        for half in [8, 4, 2, 1] {
            for i in 0..half {
                lanes[i] = lanes[i].max(lanes[i + half]);
            }
        }
        lanes[0]
    }

    /// eˣ. Relative error below 3·10⁻⁷ on [-87, 88]; below that 0, above it e⁸⁸; NaN stays NaN.
    ///
    /// `x = n·ln 2 + r` with `|r| ≤ ln 2 / 2`; the Taylor polynomial of degree 7 of eʳ is within
    /// 6·10⁻⁹ there, the rest is rounding.
    #[inline(always)]
    fn exp(self, x: Self::F) -> Self::F {
        // Adding 1.5·2²³ rounds to an integer, which then sits in the low mantissa bits.
        const ROUND: f32 = 12_582_912.0;
        // ln 2 in two parts: n · LN2_HIGH is exact for |n| ≤ 127.
        const LN2_HIGH: f32 = 0.693_359_4;
        const LN2_LOW: f32 = -2.121_944_4e-4;
        let clamped = self.min(self.splat(88.0), x);
        let round = self.splat(ROUND);
        let n_bits = self.fma(clamped, self.splat(std::f32::consts::LOG2_E), round);
        let n = self.sub(n_bits, round);
        let r = self.fma(n, self.splat(-LN2_HIGH), clamped);
        let r = self.fma(n, self.splat(-LN2_LOW), r);
        let mut y = self.splat(1.0 / 5040.0);
        for c in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
            y = self.fma(y, r, self.splat(c));
        }
        self.zero_below(self.scale(y, n_bits), x, self.splat(-87.0))
    }
}

/// Asks for the cache line at `at`, where the processor can be asked; the address need not be valid.
#[inline(always)]
pub(crate) fn prefetch<T>(at: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every such processor has the instruction, and it touches nothing.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Code to be compiled for each instruction set. `run` must be `#[inline(always)]`, as must be
/// what it calls in its hot loops: only then is it compiled for the caller's instruction set.
pub(crate) trait Kernel {
    /// What the kernel returns.
    type Output;
    /// The kernel's body.
    fn run<L: Lanes>(self, lanes: L) -> Self::Output;
}

/// An instruction set that this processor has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Level(Set);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Set {
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "aarch64")]
    Neon,
    Portable,
}

impl Level {
    /// Every level of this processor, the fastest first.
    pub(crate) fn available() -> impl Iterator<Item = Level> {
        #[cfg(target_arch = "x86_64")]
        let vector = {
            let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
            let avx512 = avx2 && is_x86_feature_detected!("avx512f");
            avx512.then_some(Set::Avx512).into_iter().chain(avx2.then_some(Set::Avx2))
        };
        #[cfg(target_arch = "aarch64")]
        let vector =
            std::arch::is_aarch64_feature_detected!("neon").then_some(Set::Neon).into_iter();
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        let vector = std::iter::empty();
        vector.chain([Set::Portable]).map(Level)
    }

    /// The fastest level of this processor.
    pub(crate) fn best() -> Level {
        Level::available().next().expect("Portable is always available")
    }

    /// Runs `kernel` with this level's instructions.
    #[inline]
    pub(crate) fn dispatch<K: Kernel>(self, kernel: K) -> K::Output {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `available` makes this level only after detecting its features.
            Set::Avx512 => unsafe { run_avx512(kernel) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Set::Avx2 => unsafe { run_avx2(kernel) },
            #[cfg(target_arch = "aarch64")]
            // SAFETY: as above.
            Set::Neon => unsafe { run_neon(kernel) },
            Set::Portable => kernel.run(portable::Portable(())),
        }
    }
}

/// # Safety
/// The processor must have the features named.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx2,fma")]
unsafe fn run_avx512<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(avx512::Avx512(()))
}

/// # Safety
/// The processor must have the features named.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn run_avx2<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(avx2::Avx2(()))
}

/// # Safety
/// The processor must have the features named.
#[cfg(target_arch = "aarch64")]
#[target_feature(enable = "neon")]
unsafe fn run_neon<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(neon::Neon(()))
}
