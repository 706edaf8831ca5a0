//! How much a drafter's confidences tell: what it proposed, how sure it was, and what became of that.

use engine::draft::{Draft, DraftRow, Drafter, Features, Promise};
use std::fmt;
use std::mem;
use std::sync::{Arc, Mutex, PoisonError};

/// What a drafter proposed for one row.
struct Proposal {
    request: u64,
    /// The position of its first draft.
    first: usize,
    draft: Draft,
}

/// What a drafter proposed so far, block by block. Cloning shares it.
#[derive(Clone, Default)]
pub(super) struct Proposals(Arc<Mutex<Vec<Proposal>>>);

impl Proposals {
    /// Each of `rows`, as its request and where its first draft stands, with what was proposed for it.
    fn add(&self, rows: impl IntoIterator<Item = (u64, usize)>, drafts: &[Draft]) {
        let of = |((request, first), draft): ((u64, usize), &Draft)| Proposal {
            request,
            first,
            draft: draft.clone(),
        };
        let mut proposals = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        proposals.extend(rows.into_iter().zip(drafts).map(of));
    }

    /// What the confidences told of all that was proposed since this was asked last. `output` gives where the
    /// output of a request begins, and its tokens; none of a request that does not count. A draft is right when it is
    /// the token of its position. Drafts past the output's end are left out, and so are those behind a wrong one,
    /// whose confidences are of a text that did not come about.
    pub(super) fn told<'o>(&self, output: impl Fn(u64) -> Option<(usize, &'o [u32])>) -> Told {
        let mut proposals = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut told = Told::default();
        for Proposal { request, first, draft } in mem::take(&mut *proposals) {
            let Some((begin, tokens)) = output(request) else { continue };
            let tokens = tokens.get(first - begin..).unwrap_or_default();
            for ((&token, draft), confidence) in
                tokens.iter().zip(draft.tokens).zip(draft.confidences)
            {
                let right = token == draft;
                told.add(f64::from(confidence), f64::from(u8::from(right)));
                if !right {
                    break;
                }
            }
        }
        told
    }
}

/// A row as [`Proposals`] keep it.
fn place(row: &DraftRow<'_>) -> (u64, usize) {
    (row.request, row.len + 1)
}

/// Proposes what `inner` does, and keeps it.
pub(super) struct Kept {
    inner: Box<dyn Drafter>,
    proposals: Proposals,
}

impl Kept {
    /// `inner`, of which `proposals` keep everything.
    pub(super) fn new(inner: Box<dyn Drafter>, proposals: &Proposals) -> Kept {
        Kept { inner, proposals: proposals.clone() }
    }
}

/// What it follows are tokens whatever `inner` follows: behind a block of which nobody knows how much is kept, nobody
/// knows where drafts stand either.
impl Drafter for Kept {
    fn block(&self) -> usize {
        self.inner.block()
    }

    fn blocks(&self) -> Vec<usize> {
        self.inner.blocks()
    }

    fn taps(&self) -> &[usize] {
        self.inner.taps()
    }

    fn propose(&mut self, rows: &[DraftRow<'_>], out: &mut [Draft]) {
        self.inner.propose(rows, out);
        self.proposals.add(rows.iter().map(place), out);
    }

    fn start(&mut self, rows: &[DraftRow<'_>]) {
        self.inner.start(rows);
    }

    fn promise(&mut self, rows: &[DraftRow<'_>]) -> Option<Promise> {
        let inner = self.inner.promise(rows)?;
        let places: Vec<_> = rows.iter().map(place).collect();
        let proposals = self.proposals.clone();
        Some(Promise::new(inner.stand_ins.clone(), move || {
            let drafts = inner.redeem();
            proposals.add(places, &drafts);
            drafts
        }))
    }

    fn absorb(&mut self, features: Features<'_>, positions: &[u32], slots: &[u32]) {
        self.inner.absorb(features, positions, slots);
    }

    fn settle(&mut self) {
        self.inner.settle();
    }
}

/// How confidences and acceptance go together: means and squares about them, by the recurrence of Welford (1962),
/// which finds no variance at all among equal values.
#[derive(Debug, Default)]
pub(super) struct Told {
    drafts: usize,
    means: [f64; 2],
    /// Sums of squares about the means: of confidences, and of acceptance.
    squares: [f64; 2],
    /// Sum of the products of both about their means.
    products: f64,
}

impl Told {
    /// One more draft: how sure the drafter was of it, and 1 when it was accepted, 0 when it was not.
    fn add(&mut self, confidence: f64, accepted: f64) {
        self.drafts += 1;
        let values = [confidence, accepted];
        let before = [0, 1].map(|i| values[i] - self.means[i]);
        for i in [0, 1] {
            self.means[i] += before[i] / self.drafts as f64;
            self.squares[i] += before[i] * (values[i] - self.means[i]);
        }
        self.products += before[0] * (accepted - self.means[1]);
    }

    /// Pearson's correlation coefficient of confidence and acceptance, from -1 to 1; none where all confidences are
    /// equal, or all drafts had one fate.
    fn correlation(&self) -> Option<f64> {
        let [confidence, acceptance] = self.squares;
        let spread = confidence.sqrt() * acceptance.sqrt();
        (spread > 0.0).then(|| self.products / spread)
    }
}

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let drafts = self.drafts;
        match self.correlation() {
            Some(r) => write!(f, "r {r:.2} with acceptance over {drafts} drafts"),
            None => write!(
                f,
                "no r over {drafts} drafts, which are all of one confidence or all of one fate"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::draft::{Follows, Judge};
    use kernels::choose::Draw;

    /// A row of `request` behind `len` tokens.
    fn row(request: u64, len: usize) -> DraftRow<'static> {
        let position = len as u32 + 1;
        DraftRow {
            request,
            anchor: 0,
            len,
            behind: None,
            width: 4,
            judge: Judge::LENIENT,
            likely: 3,
            pages: &[],
            draw: Draw { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 0, position },
            shaper: None,
            allowed: None,
        }
    }

    /// What was asked of a drafter, in order.
    type Calls = Arc<Mutex<Vec<&'static str>>>;

    /// Proposes 7 8 9 for every row, ever less sure; says so at once, or promises it.
    struct Fixed(Calls);

    impl Fixed {
        fn draft() -> Draft {
            Draft { tokens: vec![7, 8, 9], confidences: vec![0.75, 0.5, 0.25] }
        }

        fn called(&self, what: &'static str) {
            self.0.lock().expect("no test failed here").push(what);
        }
    }

    impl Drafter for Fixed {
        fn block(&self) -> usize {
            8
        }

        fn blocks(&self) -> Vec<usize> {
            vec![4, 8]
        }

        fn taps(&self) -> &[usize] {
            &[2, 5]
        }

        fn follows(&self) -> Follows {
            Follows::Blocks
        }

        fn propose(&mut self, _: &[DraftRow<'_>], out: &mut [Draft]) {
            self.called("propose");
            out.fill(Fixed::draft());
        }

        fn start(&mut self, _: &[DraftRow<'_>]) {
            self.called("start");
        }

        fn promise(&mut self, rows: &[DraftRow<'_>]) -> Option<Promise> {
            self.called("promise");
            let (calls, count) = (Fixed(self.0.clone()), rows.len());
            Some(Promise::new(vec![vec![1000; 3]; count], move || {
                calls.called("redeem");
                vec![Fixed::draft(); count]
            }))
        }

        fn absorb(&mut self, _: Features<'_>, _: &[u32], _: &[u32]) {
            self.called("absorb");
        }

        fn settle(&mut self) {
            self.called("settle");
        }
    }

    #[test]
    fn a_kept_drafter_is_asked_all_that_the_engine_asks() {
        let (calls, proposals) = (Calls::default(), Proposals::default());
        let mut kept = Kept::new(Box::new(Fixed(calls.clone())), &proposals);
        assert_eq!((kept.block(), kept.blocks()), (8, vec![4, 8]));
        assert_eq!((kept.taps(), kept.positions(4)), (&[2, 5][..], 8));
        assert_eq!(kept.follows(), Follows::Tokens, "positions are known");
        kept.absorb(Features::none(), &[], &[]);
        kept.settle();
        kept.start(&[row(0, 4)]);
        let mut out = vec![Draft::default(); 2];
        kept.propose(&[row(0, 4), row(1, 9)], &mut out);
        assert_eq!(out, [Fixed::draft(), Fixed::draft()]);
        let promise = kept.promise(&[row(0, 6)]).expect("a promise");
        assert_eq!(promise.stand_ins, [[1000; 3]]);
        assert_eq!(promise.redeem(), [Fixed::draft()]);
        let asked = ["absorb", "settle", "start", "propose", "promise", "redeem"];
        assert_eq!(*calls.lock().expect("no test failed here"), asked);
    }

    #[test]
    fn drafts_count_up_to_the_first_wrong_one_and_the_end_of_the_output() {
        let proposals = Proposals::default();
        let mut kept = Kept::new(Box::new(Fixed(Calls::default())), &proposals);
        // Prompts of 3 tokens. Of request 0 all drafts are right at position 5, one is at 8, and one stands before
        // the end at 10. Request 1 ended before its drafts, and request 2 does not count.
        let texts: [&[u32]; 2] = [&[1, 2, 7, 8, 9, 7, 1, 7], &[4]];
        let rows = [row(0, 4), row(0, 7), row(1, 4), row(2, 4)];
        kept.propose(&rows, &mut vec![Draft::default(); rows.len()]);
        let _ = kept.promise(&[row(0, 9)]).expect("a promise").redeem();
        let told = proposals.told(|request| texts.get(request as usize).map(|&text| (3, text)));
        assert_eq!(told.drafts, 3 + 2 + 1);
        // 0.75 three times and right, 0.5 once right and once wrong, 0.25 right.
        let (confidence, acceptance) = (3.5 / 6.0, 5.0 / 6.0);
        assert!((told.means[0] - confidence).abs() < 1e-12, "{told:?}");
        assert!((told.means[1] - acceptance).abs() < 1e-12, "{told:?}");
        assert_eq!(proposals.told(|_| Some((0, &[]))).drafts, 0, "each is asked for once");
    }

    /// What is told of drafts of these confidences and fates.
    fn told(drafts: &[(f64, f64)]) -> Told {
        let mut told = Told::default();
        drafts.iter().for_each(|&(confidence, accepted)| told.add(confidence, accepted));
        told
    }

    #[test]
    fn the_correlation_is_that_of_known_figures() {
        // By hand: products about the means 0.4, squares 0.2 and 1.
        let found = told(&[(0.9, 1.0), (0.7, 1.0), (0.5, 0.0), (0.3, 0.0)]);
        let wanted = 0.4 / f64::sqrt(0.2);
        let r = found.correlation().expect("both vary");
        assert!((r - wanted).abs() < 1e-12, "{r}, by hand {wanted}");
        assert_eq!(found.to_string(), "r 0.89 with acceptance over 4 drafts");
        let sure = told(&[(1.0, 1.0), (0.0, 0.0), (0.0, 0.0)]).correlation();
        let never = told(&[(1.0, 0.0), (0.0, 1.0), (0.0, 1.0)]).correlation();
        assert!((sure.expect("both vary") - 1.0).abs() < 1e-12);
        assert!((never.expect("both vary") + 1.0).abs() < 1e-12);
    }

    #[test]
    fn nothing_is_said_where_nothing_varies() {
        let alike = told(&[(0.1, 1.0), (0.1, 0.0), (0.1, 1.0)]);
        let accepted = told(&[(0.1, 1.0), (0.2, 1.0), (0.7, 1.0)]);
        for (found, drafts) in [(alike, 3), (accepted, 3), (Told::default(), 0)] {
            assert_eq!(found.correlation(), None, "{found:?}");
            let said = found.to_string();
            assert!(said.starts_with(&format!("no r over {drafts} drafts")), "{said}");
        }
    }
}
