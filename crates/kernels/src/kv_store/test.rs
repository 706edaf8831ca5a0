//! Where a stored row ends up, what it has become, and that nothing else moves.

use super::*;
use crate::random::Random;

/// One stored key or value, element by element, and what its elements are multiplied by.
type Vector = (Vec<f64>, f64);

/// The elements of `format`, as numbers.
fn numbers(layer: &KvLayer) -> [Vec<f64>; 2] {
    let bf16 = |x: &Bf16| f64::from(element::widen(*x));
    match &layer.0 {
        Stored::F32(pages) => [&pages.k, &pages.v].map(|e| e.iter().map(|&x| x.into()).collect()),
        Stored::Bf16(pages) => [&pages.k, &pages.v].map(|e| e.iter().map(bf16).collect()),
        Stored::Int8(pages) => [&pages.k, &pages.v].map(|e| e.iter().map(|&x| x.into()).collect()),
    }
}

/// Key and value of each head of a slot, read back by the layout that [`Pages`] documents.
fn read(pool: &KvPool, layer: usize, slot: usize) -> Vec<[Vector; 2]> {
    let (page, offset) = (slot / pool.page_size, slot % pool.page_size);
    let layer = pool.layer(layer);
    let [k, v] = numbers(layer);
    let head = |head: usize| {
        let block = page * pool.kv_heads + head;
        let token = block * pool.page_size + offset;
        let key = (0..pool.head_dim)
            .map(|d| k[(block * pool.head_dim + d) * pool.page_size + offset])
            .collect();
        let value = v[token * padded(pool.head_dim)..][..pool.head_dim].to_vec();
        with_pages!(&layer.0, pages => {
            let scale = |scales: &[f32]| scales.get(token).map_or(1.0, |&scale| f64::from(scale));
            [(key, scale(&pages.k_scales)), (value, scale(&pages.v_scales))]
        })
    };
    (0..pool.kv_heads).map(head).collect()
}

/// Checks `stored` against the numbers that were to be stored.
fn check(format: KvFormat, (elements, scale): &Vector, x: &[f32]) {
    let largest = x.iter().fold(0.0, |m: f64, &x| m.max(f64::from(x).abs()));
    assert_eq!(elements.len(), x.len());
    for (element, &x) in elements.iter().zip(x) {
        let (found, x) = (element * scale, f64::from(x));
        let error = match format {
            KvFormat::F32 => 0.0,
            // Seven bits behind the first: half of one in 128.
            KvFormat::Bf16 => x.abs() / 256.0,
            // Half of a step, and the rounding of the scale.
            KvFormat::Int8 => largest / 254.0 * 1.0001,
        };
        assert!((found - x).abs() <= error, "{format:?}: {x} is stored as {found}");
    }
}

#[test]
fn rows_land_in_their_slots() {
    let mut random = Random::fresh();
    for format in KvFormat::ALL {
        for (page_size, heads, dim, threads) in [(1, 1, 5, 1), (16, 3, 64, 2), (64, 2, 20, 3)] {
            let pages = 512 / page_size;
            let mut pool = KvPool::new(format, 2, pages, page_size, heads, dim);
            let slots = random.permutation(pages * page_size);
            let width = heads * dim;
            let (k, v) = (random.floats(300 * width, 1.0), random.floats(300 * width, 1.0));
            pool.store(&Cpu::new(threads), 1, &slots[..300], &k, &v);
            for (r, &slot) in slots[..300].iter().enumerate() {
                for (h, [key, value]) in read(&pool, 1, slot as usize).iter().enumerate() {
                    let range = (r * heads + h) * dim..(r * heads + h + 1) * dim;
                    check(format, key, &k[range.clone()]);
                    check(format, value, &v[range]);
                }
            }
            for &slot in &slots[300..] {
                let stored = read(&pool, 1, slot as usize);
                let mut elements = stored.iter().flatten().flat_map(|(elements, _)| elements);
                assert!(elements.all(|&x| x == 0.0));
            }
            assert!(numbers(pool.layer(0)).iter().flatten().all(|&x| x == 0.0));
        }
    }
}

#[test]
fn bf16_rounds_to_nearest_and_keeps_what_is_not_finite() {
    let stored = |x: f32| element::widen(Bf16::encode(x, 1.0));
    let mut random = Random::fresh();
    for x in random.floats(2000, 1e3) {
        // The two neighbours in bf16, and the nearer of them.
        let below = f32::from_bits(x.to_bits() & 0xffff_0000);
        let above = f32::from_bits((x.to_bits() & 0xffff_0000) + 0x1_0000);
        let nearer = if (x - below).abs() < (above - x).abs() { below } else { above };
        let tie = (x - below).abs() == (above - x).abs();
        assert!(stored(x) == nearer || tie, "{x} became {}", stored(x));
    }
    // Ties go to the even neighbour.
    assert_eq!(stored(f32::from_bits(0x3f80_8000)), f32::from_bits(0x3f80_0000));
    assert_eq!(stored(f32::from_bits(0x3f81_8000)), f32::from_bits(0x3f82_0000));
    assert_eq!(stored(f32::INFINITY), f32::INFINITY);
    assert_eq!(stored(f32::MIN), f32::NEG_INFINITY);
    assert!(stored(f32::NAN).is_nan() && stored(f32::from_bits(0x7f80_0001)).is_nan());
    assert_eq!(stored(-0.0).to_bits(), (-0.0f32).to_bits());
}

#[test]
fn bytes_use_their_whole_range_and_tell_what_is_not_finite() {
    let mut random = Random::fresh();
    let mut pool = KvPool::new(KvFormat::Int8, 1, 1, 16, 1, 7);
    let mut x = random.floats(7, 1.0);
    x[3] = -2.5;
    let mut store = |slot, k: &[f32]| {
        pool.store(&Cpu::new(1), 0, &[slot], k, &[0.0; 7]);
        read(&pool, 0, slot as usize).remove(0)
    };
    let [(key, scale), (value, _)] = store(4, &x);
    assert_eq!((key[3], scale as f32), (-127.0, 2.5 / 127.0));
    assert!(value.iter().all(|&x| x == 0.0));
    // As good as zero: the smallest normal number is not reached by a step.
    let [(key, _), _] = store(5, &[1e-38; 7]);
    assert!(key.iter().all(|&x| x == 0.0));
    for wrong in [f32::NAN, f32::INFINITY] {
        x[2] = wrong;
        let [(key, scale), _] = store(6, &x);
        assert!(key.iter().any(|element| !(element * scale).is_finite()), "{wrong}");
    }
}

#[test]
fn token_bytes_are_what_a_pool_holds() {
    for format in KvFormat::ALL {
        for (layers, heads, dim) in [(30, 3, 64), (2, 1, 20)] {
            let pool = KvPool::new(format, layers, 4, 8, heads, dim);
            let bytes = |l: usize| {
                with_pages!(&pool.layer(l).0, pages => {
                    size_of_val(&pages.k[..])
                        + size_of_val(&pages.v[..])
                        + size_of_val(&pages.k_scales[..])
                        + size_of_val(&pages.v_scales[..])
                })
            };
            let held: usize = (0..layers).map(bytes).sum();
            assert_eq!(KvPool::token_bytes(format, layers, heads, dim) * 32, held);
        }
    }
}

#[test]
fn formats_are_read_by_their_names() {
    for format in KvFormat::ALL {
        assert_eq!(format.name().parse(), Ok(format));
    }
    assert_eq!("f16".parse::<KvFormat>(), Err("give f32, bf16, int8".into()));
}

#[test]
#[should_panic(expected = "slot 32 in a pool of 2 pages of 16")]
fn a_slot_outside_the_pool_panics() {
    let mut pool = KvPool::new(KvFormat::F32, 1, 2, 16, 1, 4);
    pool.store(&Cpu::new(1), 0, &[32], &[0.0; 4], &[0.0; 4]);
}
