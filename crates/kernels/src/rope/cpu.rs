//! The rotation on the CPU. Plain loops: no sum is reduced, so any compilation gives the same
//! bits, and the baseline instruction set is fast enough for work this small.

use super::Angles;
use crate::spread::spread;
use device::{Cpu, Disjoint};

/// Rows of a part.
const PART: usize = 2;

pub(super) fn rope(cpu: &Cpu, x: &mut [f32], heads: usize, head_dim: usize, angles: &Angles) {
    if x.is_empty() {
        return;
    }
    let width = heads * head_dim;
    assert!(width > 0 && x.len().is_multiple_of(width), "{} are not rows of {width}", x.len());
    let rows = x.len() / width;
    let half = angles.cos.len() / rows;
    assert!(
        angles.cos.len() == rows * half && angles.sin.len() == rows * half && 2 * half <= head_dim,
        "the angles are not those of {rows} rows of heads of {head_dim}"
    );
    let elements = x.len();
    let shared = Disjoint::new(x);
    spread(cpu, rows.div_ceil(PART), elements, &|part| {
        for row in part * PART..((part + 1) * PART).min(rows) {
            // SAFETY: a row belongs to one part.
            let x = unsafe { shared.slice(row * width..(row + 1) * width) };
            let angles_of_row = row * half..(row + 1) * half;
            let (cos, sin) = (&angles.cos[angles_of_row.clone()], &angles.sin[angles_of_row]);
            for head in x.chunks_exact_mut(head_dim) {
                rotate(head, cos, sin);
            }
        }
    });
}

/// Rotates the pairs `(i, i + cos.len())` of one head.
fn rotate(head: &mut [f32], cos: &[f32], sin: &[f32]) {
    let (first, rest) = head.split_at_mut(cos.len());
    for (((a, b), cos), sin) in first.iter_mut().zip(rest).zip(cos).zip(sin) {
        (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
    }
}
