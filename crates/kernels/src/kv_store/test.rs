//! Where a stored row ends up, and that nothing else moves.

use super::*;
use crate::random::Random;

/// Row of a slot, read back by the layout that [`KvLayer`] documents.
fn read(pool: &KvPool, layer: usize, slot: usize) -> (Vec<f32>, Vec<f32>) {
    let (page, offset) = (slot / pool.page_size, slot % pool.page_size);
    let (mut k, mut v) = (Vec::new(), Vec::new());
    for head in 0..pool.kv_heads {
        let block = page * pool.kv_heads + head;
        for d in 0..pool.head_dim {
            k.push(pool.layer(layer).k[(block * pool.head_dim + d) * pool.page_size + offset]);
            v.push(pool.layer(layer).v[(block * pool.page_size + offset) * pool.padded_dim() + d]);
        }
    }
    (k, v)
}

#[test]
fn rows_land_in_their_slots() {
    let mut random = Random::fresh();
    for (page_size, heads, dim, threads) in [(1, 1, 5, 1), (16, 3, 64, 2), (64, 2, 20, 3)] {
        let pages = 512 / page_size;
        let mut pool = KvPool::new(2, pages, page_size, heads, dim);
        let slots = random.permutation(pages * page_size);
        let width = heads * dim;
        let (k, v) = (random.floats(300 * width, 1.0), random.floats(300 * width, 1.0));
        pool.store(&Cpu::new(threads), 1, &slots[..300], &k, &v);
        for (r, &slot) in slots[..300].iter().enumerate() {
            let range = r * width..(r + 1) * width;
            let expected = (k[range.clone()].to_vec(), v[range].to_vec());
            assert_eq!(read(&pool, 1, slot as usize), expected);
        }
        for &slot in &slots[300..] {
            assert_eq!(read(&pool, 1, slot as usize), (vec![0.0; width], vec![0.0; width]));
        }
        assert!(pool.layer(0).k.iter().chain(&pool.layer(0).v).all(|&x| x == 0.0));
    }
}

#[test]
fn token_bytes_are_what_a_pool_holds() {
    for (layers, heads, dim) in [(30, 3, 64), (2, 1, 20)] {
        let pool = KvPool::new(layers, 4, 8, heads, dim);
        let floats: usize =
            (0..layers).map(|l| pool.layer(l).k.len() + pool.layer(l).v.len()).sum();
        assert_eq!(KvPool::token_bytes(layers, heads, dim) * 32, floats * size_of::<f32>());
    }
}

#[test]
#[should_panic(expected = "slot 32 in a pool of 2 pages of 16")]
fn a_slot_outside_the_pool_panics() {
    let mut pool = KvPool::new(1, 2, 16, 1, 4);
    pool.store(&Cpu::new(1), 0, &[32], &[0.0; 4], &[0.0; 4]);
}
