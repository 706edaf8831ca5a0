//! The programs that are captured as graphs: passes, and their parts one by one.

mod gates;

use crate::buffers::{PAGE, Seen, WIDTH, Work};
use crate::crowd::Crowd;
use crate::parts::Part;
use crate::plan::{Kernels, Plan};
use crate::weights::{Layer, Weight};
use device::cuda::CudaSliceMut;
use kernels::accept::cuda::Accepted;
use kernels::attention::Sight;
use kernels::attention::cuda::{Attended, Out, Tail};
use kernels::choose::cuda::{Confidences, Draws, Room};
use kernels::cuda::Pieces;
use kernels::gemm::cuda::{Behind, Layout, Lines};
use kernels::gemm::short::{self, Around, Stream};
use kernels::norm::cuda::Kept;
use kernels::rope::cuda::{Embedded, Layers, Placed, Stored, Turns};
use std::ops::Range;
use std::sync::Arc;

const EPS: f32 = 1e-6;

/// What a program does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Cycle,
    Plain,
    Draft,
    Verify,
    /// Launches of one kernel, back to back.
    Part(Part),
}

/// What is captured.
pub(crate) struct Program {
    what: What,
    kernels: Kernels,
    plan: Arc<Plan>,
    crowd: Crowd,
}

/// How the layers of a pass are multiplied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// By products that do what stands around them too.
    Short,
    /// By products, norms and SwiGLU one after the other.
    Long,
}

/// Who does what stands behind a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    /// The product itself.
    Product,
    /// The kernel behind it.
    Kernel,
}

/// Which product a row of the pass multiplies.
#[derive(Clone, Copy)]
enum Input<'p> {
    Hidden,
    Features,
    /// With what is multiplied next.
    Attended(&'p Weight),
    Gated,
}

impl Program {
    fn new(kernels: &Kernels, plan: &Arc<Plan>, (what, crowd): (What, Crowd)) -> Program {
        Program { what, kernels: kernels.clone(), plan: plan.clone(), crowd }
    }

    /// A cycle, plain decoding, and the passes of a cycle.
    pub(crate) fn passes(kernels: &Kernels, plan: &Arc<Plan>, context: usize) -> Vec<Program> {
        let of = |(what, rows)| Program::new(kernels, plan, (what, Crowd::one(rows, context)));
        let whats = [What::Cycle, What::Plain, What::Draft, What::Verify];
        whats.into_iter().zip([WIDTH, 1, WIDTH, WIDTH]).map(of).collect()
    }

    /// The pass that verifies the rows of a crowd.
    pub(crate) fn verify_of(kernels: &Kernels, plan: &Arc<Plan>, crowd: Crowd) -> Program {
        Program::new(kernels, plan, (What::Verify, crowd))
    }

    /// Launches of one kernel for the rows of a crowd: [`Part::times`] of them.
    pub(crate) fn part(
        kernels: &Kernels,
        plan: &Arc<Plan>,
        (part, crowd): (Part, Crowd),
    ) -> Program {
        Program::new(kernels, plan, (What::Part(part), crowd))
    }

    pub(crate) fn name(&self) -> String {
        let rows = self.rows();
        match self.what {
            What::Cycle => format!("cycle, width {rows}"),
            What::Plain => "plain, 1 row".to_owned(),
            other => format!("{other:?}, {rows} rows").to_lowercase(),
        }
    }

    /// Gigabytes of weights and KV that the program reads.
    pub(crate) fn gigabytes(&self) -> f64 {
        let plan = &self.plan;
        let layer = |l: &Layer| l.qkv.bytes() + l.o.bytes() + l.gate_up.bytes() + l.down.bytes();
        let all = |layers: &[Layer]| layers.iter().map(layer).sum::<f64>();
        let kv = |layers: usize| (layers * self.crowd.tokens() * plan.model.kv() * 4) as f64;
        let verify = all(&plan.target) + plan.head.bytes() + kv(plan.target.len());
        let absorbed = plan.kv.bytes() + plan.fc.bytes();
        let draft = all(&plan.drafter) + plan.head.bytes() + kv(plan.drafter.len()) + absorbed;
        let bytes: f64 = match self.what {
            What::Cycle => draft + verify,
            What::Plain | What::Verify => verify,
            What::Draft => draft,
            What::Part(part) => part.times(plan) as f64 * part.bytes(plan, &self.crowd),
        };
        bytes / 1e9
    }

    /// Enqueues it.
    pub(crate) fn run(&self, seen: Seen<'_>) {
        let work = &mut Work::new(seen);
        match self.what {
            What::Cycle => {
                self.begin(work);
                self.draft(work);
                self.verify(work);
                self.accept(work);
            }
            What::Plain | What::Verify => {
                self.begin(work);
                self.verify(work);
            }
            What::Draft => {
                self.begin(work);
                self.draft(work);
            }
            What::Part(part) => {
                (0..part.times(&self.plan)).for_each(|i| self.launch(work, part, i));
                // Accepting moves the length on.
                self.begin(work);
            }
        }
    }

    /// Launches the kernel of `part` for the `i`-th time.
    fn launch(&self, work: &mut Work<'_>, part: Part, i: usize) {
        let plan = &self.plan;
        let layer = &plan.target[i % plan.target.len()];
        let context = (plan.target.len(), Into::Context);
        match part {
            Part::Places => self.place(work, None),
            Part::Begin => self.place(work, Some(Choice::Target)),
            Part::Norm => self.norm(work, Some(&layer.down)),
            Part::Qkv => self.project(work, &layer.qkv, (i, Into::Pages)),
            Part::Store => self.store(work, &layer.qkv, (i, Into::Pages)),
            Part::Attend => self.attend(work, i, false),
            Part::O => self.multiply(work, &layer.o, Input::Attended(&layer.gate_up), None),
            Part::GateUp => match self.way() {
                Way::Short => self.gate(work, layer),
                Way::Long => self.gates_and_ups(work, layer),
            },
            Part::Swiglu => self.swiglu(work, layer),
            Part::Down => self.multiply(work, &layer.down, Input::Gated, None),
            Part::Fc => match self.way() {
                Way::Short => self.begin_stream(work),
                Way::Long => self.product(work, &plan.fc, Input::Features),
            },
            Part::ContextKv => self.project(work, &plan.kv, context),
            Part::ContextStore => self.store(work, &plan.kv, context),
            Part::Head => plan.slabs(self.rows()).for_each(|slab| self.head(work, &slab)),
            Part::Choose => {
                plan.slabs(self.rows()).for_each(|slab| self.choose(work, Choice::Target, &slab))
            }
            Part::ChooseDrafts => self.choose(work, Choice::Drafts, &(0..self.rows())),
            Part::Accept => self.accept(work),
        }
    }

    /// Rows of the pass.
    fn rows(&self) -> usize {
        self.crowd.rows()
    }

    /// How rows lie that a layer multiplies.
    fn layout(&self) -> Layout {
        Layout::of(self.rows())
    }

    /// What a product with all rows left.
    fn pieces<'w>(&self, at: &'w CudaSliceMut<'_, f32>, weight: &Weight) -> Pieces<'w> {
        Pieces { at: at.read(), shape: weight.shape, rows: self.rows() as u32 }
    }

    /// Every cycle begins with the same lengths.
    fn begin(&self, work: &mut Work<'_>) {
        let requests = work.step.requests();
        work.queue.copy(
            work.step.request.read().range(0..requests),
            work.step.published.range(0..requests),
        );
    }

    fn product(&self, work: &mut Work<'_>, weight: &Weight, input: Input<'_>) {
        let layout = self.layout();
        let (x, layout, behind) = match input {
            Input::Hidden => (work.hidden.read(), layout, Behind::Short),
            Input::Features => (work.features.read(), Layout::Rows, Behind::Short),
            Input::Attended(next) => {
                (work.attended.read(), layout, Behind::Attention(next.packed(work.weights)))
            }
            Input::Gated => (work.gated.read(), layout, Behind::Short),
        };
        let x = Lines { x, rows: self.rows(), layout };
        let (products, of) = (&self.kernels.products, (weight.packed(work.weights), behind));
        products.launch(work.queue, of, x, work.pieces.all());
    }

    /// The head's product with some rows, which lie one behind the other.
    fn head(&self, work: &mut Work<'_>, slab: &Range<usize>) {
        let (head, hidden) = (&self.plan.head, self.plan.model.hidden);
        let x = work.hidden.read().range(slab.start * hidden..slab.end * hidden);
        let x = Lines { x, rows: slab.len(), layout: Layout::Rows };
        let (products, of) = (&self.kernels.products, (head.packed(work.weights), Behind::Short));
        products.launch(work.queue, of, x, work.pieces.all());
    }

    /// The norm behind what `delta` left, into `hidden`, as a layer multiplies it.
    fn norm(&self, work: &mut Work<'_>, delta: Option<&Weight>) {
        self.norm_and_keep(work, (delta, self.layout()), None);
    }

    /// The same in some layout, with a copy of the sum as some feature of the drafter.
    fn norm_and_keep(
        &self,
        work: &mut Work<'_>,
        (delta, layout): (Option<&Weight>, Layout),
        feature: Option<usize>,
    ) {
        let (rows, hidden) = (self.rows(), self.plan.model.hidden);
        let delta = delta.map(|weight| self.pieces(&work.pieces, weight));
        let (x, ones) = (work.x.range(0..rows * hidden), work.ones.read().range(0..hidden));
        let kept = feature.map(|feature| Kept {
            to: work.features.all(),
            first: feature * hidden,
            stride: self.plan.model.draft_layers * hidden,
        });
        let out = (work.hidden.all(), layout);
        self.kernels.norms.add_norm(work.queue, x, delta, (ones, EPS), out, kept);
    }

    /// Places, and with them the stream of what a pass begins for.
    fn place(&self, work: &mut Work<'_>, begins: Option<Choice>) {
        let (step, rotations) = (work.step.rows(self.rows()), &self.kernels.rotations);
        let to = Placed {
            positions: work.positions.all(),
            slots: work.slots.all(),
            angles: work.angles.all(),
        };
        let frequencies = (work.frequencies.read(), 1.0);
        let ids = match begins {
            None => return rotations.places(work.queue, step, frequencies, to),
            Some(Choice::Target) => work.tokens.read(),
            Some(Choice::Drafts) => work.masks.read(),
        };
        let embedded = Embedded {
            table: work.weights.range(self.plan.table.clone()),
            width: self.plan.model.hidden,
            ids: ids.range(0..self.rows()),
            x: work.x.all(),
        };
        rotations.begin(work.queue, step, frequencies, to, embedded);
    }

    /// How layers of so many rows are multiplied.
    pub(crate) fn way(&self) -> Way {
        let (plan, layer) = (&self.plan, &self.plan.target[0]);
        let heads = plan.model.heads;
        let projected =
            if plan.model.head_norms { Around::Normed } else { Around::Heads(heads.dim) };
        let all = [
            (&layer.qkv, projected),
            (&plan.kv, projected),
            (&layer.gate_up, Around::Gated),
            (&layer.o, Around::Added),
            (&layer.down, Around::Added),
            (&plan.fc, Around::Added),
        ];
        let fits = |(weight, around): (&Weight, _)| {
            self.kernels.shorts.fits(&weight.shape, around, self.rows())
        };
        if all.into_iter().all(fits) { Way::Short } else { Way::Long }
    }

    /// A weight as short products take it.
    fn on_card<'j>(work: &Work<'j>, weight: &Weight) -> short::Weight<'j> {
        short::Weight { packed: weight.packed(work.weights), bias: None }
    }

    /// The stream on its way through a norm.
    fn stream<'w>(
        &self,
        x: &'w CudaSliceMut<'_, f32>,
        ones: &'w CudaSliceMut<'_, f32>,
    ) -> Stream<'w> {
        let hidden = self.plan.model.hidden;
        let (rows, norm) = (x.read().range(0..self.rows() * hidden), ones.read().range(0..hidden));
        Stream { rows, norm, eps: EPS }
    }

    /// Who rotates and stores heads.
    pub(crate) fn storer(&self) -> By {
        let whole = self.plan.model.head_norms || self.way() == Way::Long;
        if whole { By::Kernel } else { By::Product }
    }

    /// The product with normed rows of the stream, which lie in `hidden` where a norm stands before it, and its heads
    /// where it stores them itself.
    fn project(&self, work: &mut Work<'_>, weight: &Weight, place: (usize, Into)) {
        match self.way() {
            Way::Short if self.storer() == By::Product => self.store(work, weight, place),
            Way::Short => {
                let on_card = Self::on_card(work, weight);
                let stream = self.stream(&work.x, &work.ones);
                self.kernels.shorts.of_normed(work.queue, on_card, stream, work.pieces.all());
            }
            Way::Long => self.product(work, weight, Input::Hidden),
        }
    }

    /// The product of heads, with the kernel behind it that stores them.
    fn make_heads(&self, work: &mut Work<'_>, weight: &Weight, place: (usize, Into)) {
        self.project(work, weight, place);
        if self.storer() == By::Kernel {
            self.store(work, weight, place);
        }
    }

    /// A product that goes into the stream, or is left in pieces for the norm behind it.
    fn multiply(
        &self,
        work: &mut Work<'_>,
        weight: &Weight,
        input: Input<'_>,
        feature: Option<usize>,
    ) {
        if self.way() == Way::Long {
            return self.product(work, weight, input);
        }
        let (model, on_card) = (&self.plan.model, Self::on_card(work, weight));
        let kept = |to| {
            let stride = model.draft_layers * model.hidden;
            feature.map(|feature| Kept { to, first: feature * model.hidden, stride })
        };
        let x = match input {
            Input::Hidden | Input::Features => panic!("only what layers make is added"),
            Input::Attended(_) => work.attended.read(),
            Input::Gated => work.gated.read(),
        };
        let kept = kept(work.features.all());
        let stream = work.x.range(0..self.rows() * model.hidden);
        self.kernels.shorts.added(work.queue, on_card, x, (stream, kept));
    }

    /// What features become, as the stream.
    fn begin_stream(&self, work: &mut Work<'_>) {
        let fc = Self::on_card(work, &self.plan.fc);
        let stream = work.x.range(0..self.rows() * self.plan.model.hidden);
        self.kernels.shorts.begun(work.queue, fc, work.features.read(), stream);
    }

    /// The layers of a pass, from the embedding to the normed rows of `hidden`.
    fn layers(&self, work: &mut Work<'_>, (layers, first): (&[Layer], usize), drafts: bool) {
        let way = self.way();
        if way == Way::Long {
            self.norm(work, None);
        }
        for (i, layer) in layers.iter().enumerate() {
            let place = (first + i, if drafts { Into::Block } else { Into::Pages });
            self.make_heads(work, &layer.qkv, place);
            self.attend(work, first + i, drafts);
            self.multiply(work, &layer.o, Input::Attended(&layer.gate_up), None);
            self.gate(work, layer);
            let kept = if drafts { None } else { self.plan.model.feature(i) };
            let kept = kept.filter(|_| self.what != What::Plain);
            self.multiply(work, &layer.down, Input::Gated, kept);
            if way == Way::Long {
                // The head takes rows one behind the other.
                let layout = if i + 1 < layers.len() { self.layout() } else { Layout::Rows };
                self.norm_and_keep(work, (Some(&layer.down), layout), kept);
            }
        }
        if way == Way::Short {
            self.norm(work, None);
        }
    }

    fn pool(&self, work: &Work<'_>, at: usize) -> Range<usize> {
        let each = work.step.pages.len() * PAGE * self.plan.model.kv();
        at * each..(at + 1) * each
    }

    fn store(&self, work: &mut Work<'_>, weight: &Weight, (at, into): (usize, Into)) {
        let (model, on_card) = (&self.plan.model, Self::on_card(work, weight));
        let pool = self.pool(work, at);
        let shape = match self.way() {
            Way::Short => weight.shape.whole(),
            Way::Long => weight.shape,
        };
        let projected = Pieces { at: work.pieces.read(), shape, rows: self.rows() as u32 };
        let norms = work.ones.read();
        let norms = norms.range(0..if model.head_norms { 2 * model.heads.dim } else { 0 });
        let (mut heads, mut layers) = (model.heads, Layers::ONE);
        let (slots, page_size, keys, values) = match into {
            Into::Block => {
                (work.step.offsets.read(), 1, work.block_keys.all(), work.block_values.all())
            }
            Into::Pages => {
                (work.slots.read(), PAGE, work.keys.range(pool.clone()), work.values.range(pool))
            }
            Into::Context => {
                let (count, pages_apart) = (model.draft_layers, pool.len());
                // All have the same norms here.
                layers = Layers { count, pages_apart, norms_apart: 0 };
                heads.q = 0;
                let pools = pool.start..pool.start + count * pages_apart;
                (work.slots.read(), PAGE, work.keys.range(pools.clone()), work.values.range(pools))
            }
        };
        let turns = Turns { norms, eps: EPS, angles: work.angles.read(), slots };
        let to = Stored { q: work.q.all(), keys, values, page_size, layers };
        match self.storer() {
            By::Kernel => {
                self.kernels.rotations.store(work.queue, (heads, projected), turns, to);
            }
            By::Product => {
                let stream = self.stream(&work.x, &work.ones);
                self.kernels.shorts.of_heads(work.queue, (on_card, heads), stream, (turns, to));
            }
        }
    }

    fn attend(&self, work: &mut Work<'_>, at: usize, drafts: bool) {
        let heads = self.plan.model.heads;
        let pool = self.pool(work, at);
        let tail = if drafts {
            let (keys, values) = (work.block_keys.read(), work.block_values.read());
            Tail::Block { keys, values, sight: Sight::BothWays }
        } else {
            Tail::Causal
        };
        let attended = Attended {
            keys: work.keys.read().range(pool.clone()),
            values: work.values.read().range(pool),
            tail,
            step: work.step.rows(self.rows()),
            tiles: if self.rows() == 1 { work.tile_of_one.read() } else { work.tiles.read() },
            tiling: self.crowd.tiling(heads),
            heads,
            splits: self.crowd.splits(),
            scale: 1.0 / (heads.dim as f32).sqrt(),
            window: None,
        };
        let (q, parts) = (work.q.read(), work.parts.all());
        let out = Out { to: work.attended.all(), first: 0, layout: self.layout() };
        self.kernels.attention.launch(work.queue, attended, q, parts, out);
    }

    /// The head's choices of a slab of rows: for all, or for those behind the anchor with how sure the drafter is.
    fn choose(&self, work: &mut Work<'_>, of: Choice, slab: &Range<usize>) {
        let (at, shape) = (work.pieces.read(), self.plan.head.shape);
        let logits = Pieces { at, shape, rows: slab.len() as u32 };
        let room = Room {
            largest: work.largest.all(),
            ids: work.best.all(),
            scores: work.scores.all(),
            drawn: work.drawn.all(),
        };
        let (first, shift) = match of {
            Choice::Target => (0, 1),
            Choice::Drafts => (1, 0),
        };
        let draws = Draws {
            temperatures: work.temperatures.read().range(slab.clone()),
            seeds: work.seeds.read().range(slab.clone()),
            positions: work.positions.read().range(slab.clone()),
            shift,
            sampled: self.crowd.sampled,
        };
        let rows = slab.start + first..slab.end;
        let out = match of {
            Choice::Target => (work.choices.range(rows), None),
            Choice::Drafts => {
                let out = work.confidences.range(rows.clone());
                let sure = Confidences { weights: work.chunks.all(), out };
                (work.tokens.range(rows), Some(sure))
            }
        };
        let allowed = (logits, self.plan.model.vocab);
        self.kernels.choices.launch(work.queue, allowed, first, draws, room, out);
    }

    /// Absorbs the features of the rows, and drafts.
    fn draft(&self, work: &mut Work<'_>) {
        let plan = &self.plan;
        self.place(work, None);
        match self.way() {
            Way::Short => self.begin_stream(work),
            Way::Long => {
                self.product(work, &plan.fc, Input::Features);
                work.queue.clear(work.x.all());
                self.norm(work, Some(&plan.fc));
            }
        }
        self.make_heads(work, &plan.kv, (plan.target.len(), Into::Context));
        self.place(work, Some(Choice::Drafts));
        self.layers(work, (&plan.drafter, plan.target.len()), true);
        let all = 0..self.rows();
        self.head(work, &all);
        self.choose(work, Choice::Drafts, &all);
    }

    /// Verifies the rows.
    fn verify(&self, work: &mut Work<'_>) {
        let plan = &self.plan;
        self.place(work, Some(Choice::Target));
        self.layers(work, (&plan.target, 0), false);
        for slab in plan.slabs(self.rows()) {
            self.head(work, &slab);
            self.choose(work, Choice::Target, &slab);
        }
    }

    fn accept(&self, work: &mut Work<'_>) {
        let (tokens, choices) = (work.tokens.read(), work.choices.read());
        let spans = work.step.spans.read().range(0..self.rows());
        let accepted =
            Accepted { refused: work.positions.range(0..1), anchors: work.masks.range(0..1) };
        self.kernels.acceptance.launch(work.queue, (tokens, spans), choices, accepted);
        work.queue.copy(work.masks.read().range(0..1), work.tokens.range(0..1));
    }
}

/// What is chosen.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Choice {
    /// What the target says behind each row.
    Target,
    /// What the drafter proposes for each mask.
    Drafts,
}

/// Where keys and values go.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Into {
    /// The pages of the rows' own positions.
    Pages,
    /// The same, of keys and values alone, of all of the drafter's layers.
    Context,
    /// The block that is forgotten after the pass.
    Block,
}
