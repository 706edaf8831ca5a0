//! Sixteen `f32` lanes, the unit in which every reduction outside the matrix product is written,
//! and the choice of instruction set that runs them.
//!
//! A kernel is written once over [`Lanes`]; [`Level::dispatch`] compiles it for AVX-512, for
//! AVX2 + FMA and for plain Rust. Every operation is a single IEEE operation per lane (a fused
//! multiply-add rounds once, also where it is emulated), so all levels give the same bits.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

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
        lanes.into_iter().fold(f32::NAN, f32::max)
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

/// Plain Rust, for processors without a level of their own.
#[derive(Clone, Copy)]
pub(crate) struct Portable(());

/// Applies `f` to each lane. A macro, not a function over a closure: the arithmetic must end up
/// inside the function that enables the instruction set.
macro_rules! each {
    ($i:ident => $e:expr) => {{
        let mut out = [0.0; LANES];
        for $i in 0..LANES {
            out[$i] = $e;
        }
        out
    }};
}

impl Lanes for Portable {
    type F = [f32; LANES];
    const MANY_REGISTERS: bool = false;

    #[inline(always)]
    fn splat(self, x: f32) -> Self::F {
        [x; LANES]
    }
    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> Self::F {
        *from
    }
    #[inline(always)]
    fn store(self, v: Self::F, to: &mut [f32; LANES]) {
        *to = v;
    }
    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        each!(i => a[i] + b[i])
    }
    #[inline(always)]
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        each!(i => a[i] - b[i])
    }
    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        each!(i => a[i] * b[i])
    }
    #[inline(always)]
    fn div(self, a: Self::F, b: Self::F) -> Self::F {
        each!(i => a[i] / b[i])
    }
    #[inline(always)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        each!(i => a[i].mul_add(b[i], c[i]))
    }
    #[inline(always)]
    fn max(self, a: Self::F, b: Self::F) -> Self::F {
        each!(i => if a[i] > b[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    fn min(self, a: Self::F, b: Self::F) -> Self::F {
        each!(i => if a[i] < b[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    fn ge(self, a: Self::F, b: Self::F) -> u16 {
        let mut mask = 0;
        for i in 0..LANES {
            mask |= u16::from(a[i] >= b[i]) << i;
        }
        mask
    }
    #[inline(always)]
    fn scale(self, v: Self::F, n_bits: Self::F) -> Self::F {
        each!(i => f32::from_bits(v[i].to_bits().wrapping_add(n_bits[i].to_bits() << 23)))
    }
    #[inline(always)]
    fn zero_below(self, v: Self::F, x: Self::F, limit: Self::F) -> Self::F {
        each!(i => if x[i] < limit[i] { 0.0 } else { v[i] })
    }
}

/// AVX2 and FMA: a vector is two registers.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
pub(crate) struct Avx2(());

#[cfg(target_arch = "x86_64")]
impl Lanes for Avx2 {
    type F = [__m256; 2];
    const MANY_REGISTERS: bool = false;

    #[inline(always)]
    fn splat(self, x: f32) -> Self::F {
        // SAFETY: `self` proves AVX2 and FMA.
        unsafe { [_mm256_set1_ps(x); 2] }
    }
    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> Self::F {
        // SAFETY: `self` proves AVX2 and FMA; 16 floats can be read.
        unsafe { [_mm256_loadu_ps(from.as_ptr()), _mm256_loadu_ps(from.as_ptr().add(8))] }
    }
    #[inline(always)]
    fn store(self, v: Self::F, to: &mut [f32; LANES]) {
        // SAFETY: `self` proves AVX2 and FMA; 16 floats can be written.
        unsafe {
            _mm256_storeu_ps(to.as_mut_ptr(), v[0]);
            _mm256_storeu_ps(to.as_mut_ptr().add(8), v[1]);
        }
    }
    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: `self` proves AVX2 and FMA.
        unsafe { [_mm256_add_ps(a[0], b[0]), _mm256_add_ps(a[1], b[1])] }
    }
    #[inline(always)]
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: `self` proves AVX2 and FMA.
        unsafe { [_mm256_sub_ps(a[0], b[0]), _mm256_sub_ps(a[1], b[1])] }
    }
    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: `self` proves AVX2 and FMA.
        unsafe { [_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])] }
    }
    #[inline(always)]
    fn div(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: `self` proves AVX2 and FMA.
        unsafe { [_mm256_div_ps(a[0], b[0]), _mm256_div_ps(a[1], b[1])] }
    }
    #[inline(always)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        // SAFETY: `self` proves AVX2 and FMA.
        unsafe { [_mm256_fmadd_ps(a[0], b[0], c[0]), _mm256_fmadd_ps(a[1], b[1], c[1])] }
    }
    #[inline(always)]
    fn max(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: `self` proves AVX2 and FMA.
        unsafe { [_mm256_max_ps(a[0], b[0]), _mm256_max_ps(a[1], b[1])] }
    }
    #[inline(always)]
    fn min(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: `self` proves AVX2 and FMA.
        unsafe { [_mm256_min_ps(a[0], b[0]), _mm256_min_ps(a[1], b[1])] }
    }
    #[inline(always)]
    fn ge(self, a: Self::F, b: Self::F) -> u16 {
        // SAFETY: `self` proves AVX2 and FMA.
        unsafe {
            let low = _mm256_movemask_ps(_mm256_cmp_ps::<_CMP_GE_OQ>(a[0], b[0]));
            let high = _mm256_movemask_ps(_mm256_cmp_ps::<_CMP_GE_OQ>(a[1], b[1]));
            (low | high << 8) as u16
        }
    }
    #[inline(always)]
    fn scale(self, v: Self::F, n_bits: Self::F) -> Self::F {
        // SAFETY: `self` proves AVX2 and FMA.
        unsafe {
            let low = _mm256_slli_epi32::<23>(_mm256_castps_si256(n_bits[0]));
            let high = _mm256_slli_epi32::<23>(_mm256_castps_si256(n_bits[1]));
            [
                _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(v[0]), low)),
                _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(v[1]), high)),
            ]
        }
    }
    #[inline(always)]
    fn zero_below(self, v: Self::F, x: Self::F, limit: Self::F) -> Self::F {
        // SAFETY: `self` proves AVX2 and FMA.
        unsafe {
            [
                _mm256_andnot_ps(_mm256_cmp_ps::<_CMP_LT_OQ>(x[0], limit[0]), v[0]),
                _mm256_andnot_ps(_mm256_cmp_ps::<_CMP_LT_OQ>(x[1], limit[1]), v[1]),
            ]
        }
    }
}

/// AVX-512F: a vector is one register.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
pub(crate) struct Avx512(());

#[cfg(target_arch = "x86_64")]
impl Lanes for Avx512 {
    type F = __m512;
    const MANY_REGISTERS: bool = true;

    #[inline(always)]
    fn splat(self, x: f32) -> Self::F {
        // SAFETY: `self` proves AVX-512F.
        unsafe { _mm512_set1_ps(x) }
    }
    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> Self::F {
        // SAFETY: `self` proves AVX-512F; 16 floats can be read.
        unsafe { _mm512_loadu_ps(from.as_ptr()) }
    }
    #[inline(always)]
    fn store(self, v: Self::F, to: &mut [f32; LANES]) {
        // SAFETY: `self` proves AVX-512F; 16 floats can be written.
        unsafe { _mm512_storeu_ps(to.as_mut_ptr(), v) }
    }
    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: `self` proves AVX-512F.
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: `self` proves AVX-512F.
        unsafe { _mm512_sub_ps(a, b) }
    }
    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: `self` proves AVX-512F.
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    fn div(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: `self` proves AVX-512F.
        unsafe { _mm512_div_ps(a, b) }
    }
    #[inline(always)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        // SAFETY: `self` proves AVX-512F.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    fn max(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: `self` proves AVX-512F.
        unsafe { _mm512_max_ps(a, b) }
    }
    #[inline(always)]
    fn min(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: `self` proves AVX-512F.
        unsafe { _mm512_min_ps(a, b) }
    }
    #[inline(always)]
    fn ge(self, a: Self::F, b: Self::F) -> u16 {
        // SAFETY: `self` proves AVX-512F.
        unsafe { _mm512_cmp_ps_mask::<_CMP_GE_OQ>(a, b) }
    }
    #[inline(always)]
    fn scale(self, v: Self::F, n_bits: Self::F) -> Self::F {
        // SAFETY: `self` proves AVX-512F.
        unsafe {
            let exponent = _mm512_slli_epi32::<23>(_mm512_castps_si512(n_bits));
            _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(v), exponent))
        }
    }
    #[inline(always)]
    fn zero_below(self, v: Self::F, x: Self::F, limit: Self::F) -> Self::F {
        // SAFETY: `self` proves AVX-512F.
        unsafe { _mm512_maskz_mov_ps(_mm512_cmp_ps_mask::<_CMP_NLT_UQ>(x, limit), v) }
    }
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
    Portable,
}

impl Level {
    /// The fastest level of this processor.
    pub(crate) fn best() -> Level {
        #[cfg(target_arch = "x86_64")]
        {
            let fma = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
            if fma && is_x86_feature_detected!("avx512f") {
                return Level(Set::Avx512);
            }
            if fma {
                return Level(Set::Avx2);
            }
        }
        Level(Set::Portable)
    }

    /// Every level of this processor, the fastest first.
    #[cfg(test)]
    pub(crate) fn all() -> Vec<Level> {
        #[cfg(target_arch = "x86_64")]
        match Level::best().0 {
            Set::Avx512 => return [Set::Avx512, Set::Avx2, Set::Portable].map(Level).to_vec(),
            Set::Avx2 => return [Set::Avx2, Set::Portable].map(Level).to_vec(),
            Set::Portable => {}
        }
        vec![Level(Set::Portable)]
    }

    /// Runs `kernel` with this level's instructions.
    #[inline]
    pub(crate) fn dispatch<K: Kernel>(self, kernel: K) -> K::Output {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `best` and `all` make this level only after detecting its features.
            Set::Avx512 => unsafe { run_avx512(kernel) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Set::Avx2 => unsafe { run_avx2(kernel) },
            Set::Portable => kernel.run(Portable(())),
        }
    }
}

/// # Safety
/// The processor must have the features named.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx2,fma")]
unsafe fn run_avx512<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Avx512(()))
}

/// # Safety
/// The processor must have the features named.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn run_avx2<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Avx2(()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    struct Exp<'a>(&'a [f32], &'a mut [f32]);

    impl Kernel for Exp<'_> {
        type Output = ();
        #[inline(always)]
        fn run<L: Lanes>(self, lanes: L) {
            let (from, _) = self.0.as_chunks();
            let (to, _) = self.1.as_chunks_mut();
            for (from, to) in from.iter().zip(to) {
                lanes.store(lanes.exp(lanes.load(from)), to);
            }
        }
    }

    fn exp(level: Level, x: &[f32]) -> Vec<f32> {
        let mut y = vec![0.0; x.len()];
        level.dispatch(Exp(x, &mut y));
        y
    }

    #[test]
    fn exp_is_within_its_stated_error() {
        let mut random = Random::fresh();
        let x: Vec<f32> = (0..160_000).map(|_| random.uniform(-87.0, 88.0)).collect();
        for (x, y) in x.iter().zip(exp(Level::best(), &x)) {
            let exact = (*x as f64).exp();
            assert!((y as f64 / exact - 1.0).abs() < 3e-7, "exp({x}) gave {y}, not {exact}");
        }
    }

    #[test]
    fn exp_at_the_edges() {
        let mut x = [0.0; LANES];
        x[..9].copy_from_slice(&[
            0.0,
            -0.0,
            -87.0,
            -87.00001,
            -1e30,
            f32::NEG_INFINITY,
            88.0,
            f32::INFINITY,
            f32::NAN,
        ]);
        for level in Level::all() {
            let y = exp(level, &x);
            assert_eq!(y[..2], [1.0, 1.0]);
            assert!(y[2] > 1.6e-38 && y[2] < 1.7e-38);
            assert_eq!(y[3..6], [0.0; 3]);
            assert_eq!(y[6], y[7]);
            assert!(y[8].is_nan());
        }
    }

    #[test]
    fn every_level_and_lane_gives_the_same_bits() {
        let mut random = Random::fresh();
        let x: Vec<f32> = (0..4096).map(|_| random.uniform(-90.0, 90.0)).collect();
        let expected = exp(Level::best(), &x);
        for level in Level::all() {
            let bits = |y: &[f32]| y.iter().map(|y| y.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&exp(level, &x)), bits(&expected), "{level:?}");
            for shift in 1..LANES {
                let moved = exp(level, &x[shift..shift + 4080]);
                assert_eq!(bits(&moved), bits(&expected[shift..shift + 4080]), "{level:?}");
            }
        }
    }

    struct Sums<'a>(&'a [f32; LANES]);

    impl Kernel for Sums<'_> {
        type Output = (f32, f32);
        #[inline(always)]
        fn run<L: Lanes>(self, lanes: L) -> (f32, f32) {
            let v = lanes.load(self.0);
            (lanes.sum(v), lanes.largest(v))
        }
    }

    #[test]
    fn sum_and_largest() {
        let mut x: [f32; LANES] = std::array::from_fn(|i| i as f32);
        for level in Level::all() {
            x[15] = 15.0;
            assert_eq!(level.dispatch(Sums(&x)), (120.0, 15.0));
            x[15] = f32::NAN;
            assert_eq!(level.dispatch(Sums(&x)).1, 14.0);
        }
    }
}
