//! GGUF files that are well formed, and models that are refused for what they are.

use crate::common::gguf::{Gguf, Q4_0, Tensor, llama, whole};
use crate::{refusal, says};
use kernels::format::Format;
use kernels::gemm::RowOrder;
use model::checkpoint::Checkpoint;
use model::checkpoint::gguf::{Array, Value};
use model::config::{AttentionBias, ModelConfig, Rope, RopeScaling};
use model::error::LoadError;
use std::path::Path;

fn open(file: &Gguf) -> Result<Checkpoint, LoadError> {
    Checkpoint::from_gguf(Path::new("tiny.gguf"), file.build())
}

fn write(folder: &Path, name: &str, file: &Gguf) -> std::path::PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, file.build()).unwrap();
    path
}

#[test]
fn a_llama_has_its_configuration() {
    let checkpoint = open(&whole("llama")).unwrap();
    assert_eq!(
        *checkpoint.config(),
        ModelConfig {
            architecture: "llama".into(),
            layers: 1,
            hidden: 8,
            intermediate: 16,
            heads: 2,
            kv_heads: 1,
            head_dim: 4,
            vocab: 4,
            context: 64,
            rms_eps: 1e-5,
            rope: Rope { theta: 10_000.0, scaling: RopeScaling::None },
            attention_bias: AttentionBias::None,
            mlp_bias: false,
            qk_norm: false,
            tied_embeddings: false,
            windows: vec![None],
        }
    );
    assert!(checkpoint.folder().is_none() && checkpoint.config_json().is_none());
    assert_eq!(checkpoint.path(), Path::new("tiny.gguf"));
    assert_eq!(checkpoint.file_bytes() as usize, whole("llama").build().len());
}

#[test]
fn tensors_go_by_hugging_face_names_and_are_counted() {
    let checkpoint = open(&whole("llama").tensor("blk.0.attn_rot_embd.weight", &[4])).unwrap();
    assert_eq!(checkpoint.unused().len(), 13);
    let down = checkpoint.tensor("model.layers.0.mlp.down_proj.weight", &[8, 16]).unwrap();
    assert_eq!((down.shape, down.format), (vec![8, 16], Format::F32));
    assert_eq!(down.data[..8], [0, 0, 0, 0, 0, 0, 128, 63]);
    for (name, shape) in [
        ("model.embed_tokens.weight", &[4, 8][..]),
        ("model.norm.weight", &[8]),
        ("lm_head.weight", &[4, 8]),
        ("model.layers.0.input_layernorm.weight", &[8]),
        ("model.layers.0.post_attention_layernorm.weight", &[8]),
        ("model.layers.0.self_attn.q_proj.weight", &[8, 8]),
        ("model.layers.0.self_attn.k_proj.weight", &[4, 8]),
        ("model.layers.0.self_attn.v_proj.weight", &[4, 8]),
        ("model.layers.0.self_attn.o_proj.weight", &[8, 8]),
        ("model.layers.0.mlp.gate_proj.weight", &[16, 8]),
        ("model.layers.0.mlp.up_proj.weight", &[16, 8]),
    ] {
        assert!(checkpoint.has(name));
        checkpoint.tensor(name, shape).unwrap();
    }
    assert_eq!(checkpoint.unused(), ["blk.0.attn_rot_embd.weight"]);
    assert_eq!(checkpoint.tensors().count(), 13);
    let missing = checkpoint.tensor("model.layers.1.input_layernorm.weight", &[8]).unwrap_err();
    says(&missing, &["tiny.gguf", "model.layers.1.input_layernorm.weight", "missing"]);
    let shape = checkpoint.tensor("model.norm.weight", &[16]).unwrap_err();
    says(&shape, &["model.norm.weight", "[8]", "[16]"]);
}

#[test]
fn rows_of_q_and_k_are_interleaved_in_llama_only() {
    let orders = |architecture: &str| {
        let file = whole(architecture)
            .tensor("blk.0.attn_q.bias", &[8])
            .tensor("blk.0.attn_k.bias", &[4])
            .tensor("blk.0.attn_v.bias", &[4]);
        let checkpoint = open(&file).unwrap();
        assert_eq!(checkpoint.config().attention_bias, AttentionBias::Qkv);
        let order = |name: &str, shape: &[usize]| {
            checkpoint.tensor(&format!("model.layers.0.self_attn.{name}"), shape).unwrap().order
        };
        [
            order("q_proj.weight", &[8, 8]),
            order("k_proj.weight", &[4, 8]),
            order("v_proj.weight", &[4, 8]),
            order("q_proj.bias", &[8]),
            order("k_proj.bias", &[4]),
        ]
    };
    let (two, one) = (RowOrder::Interleaved { heads: 2 }, RowOrder::Interleaved { heads: 1 });
    assert_eq!(orders("llama"), [two, one, RowOrder::Plain, two, one]);
    assert_eq!(orders("qwen2"), [RowOrder::Plain; 5]);
    assert_eq!(orders("qwen3"), [RowOrder::Plain; 5]);
}

#[test]
fn qwen3_norms_its_heads_and_frees_their_size() {
    let file = whole("qwen3")
        .pair("qwen3.attention.key_length", Value::U32(16))
        .pair("qwen3.attention.value_length", Value::U32(16));
    let checkpoint = open(&file).unwrap();
    assert!(checkpoint.config().qk_norm);
    assert_eq!(checkpoint.config().head_dim, 16);
    let odd = file.with("qwen3.attention.value_length", Value::U32(8));
    says(&refusal(open(&odd)), &["qwen3.attention.value_length", "16"]);
}

#[test]
fn a_file_without_a_head_is_tied() {
    let checkpoint = open(&llama()).unwrap();
    assert!(checkpoint.config().tied_embeddings);
    assert!(checkpoint.notes()[0].contains("output.weight"));
}

#[test]
fn rope_keys_are_followed_or_refused() {
    let scaling = |file: &Gguf| open(file).map(|checkpoint| checkpoint.config().rope.clone());
    let base = llama().pair("llama.rope.freq_base", Value::F32(500_000.0));
    assert_eq!(
        scaling(&base.clone().tensor("rope_freqs.weight", &[2])).unwrap_err().field,
        "rope_freqs.weight",
        "the first factor that the builder counts is 0"
    );
    let mut freqs = base.clone().tensor("rope_freqs.weight", &[2]);
    freqs.tensors[1].data = [1f32, 8.0].iter().flat_map(|f| f.to_le_bytes()).collect();
    assert_eq!(
        scaling(&freqs).unwrap(),
        Rope { theta: 500_000.0, scaling: RopeScaling::Factors(vec![1.0, 8.0]) }
    );
    assert_eq!(open(&freqs).unwrap().unused(), ["model.embed_tokens.weight"]);
    let linear = base.pair("llama.rope.scaling.factor", Value::F32(4.0));
    let expected = Rope { theta: 500_000.0, scaling: RopeScaling::Linear { factor: 4.0 } };
    assert_eq!(scaling(&linear).unwrap(), expected);
    let kind =
        |name: &str| linear.clone().pair("llama.rope.scaling.type", Value::String(name.into()));
    assert_eq!(scaling(&kind("linear")).unwrap(), expected);
    assert_eq!(scaling(&kind("none")).unwrap().scaling, RopeScaling::None);
    let yarn = scaling(&kind("yarn")).unwrap_err();
    says(&yarn, &["llama.rope.scaling.type", "yarn", "linear"]);
}

#[test]
fn models_that_cannot_run_are_refused_by_name() {
    for (file, parts) in [
        (whole("gemma3"), &["general.architecture", "gemma3", "llama, qwen2, qwen3"][..]),
        (llama().without("general.architecture"), &["general.architecture", "missing"]),
        (llama().without("llama.block_count"), &["llama.block_count", "missing"]),
        (llama().with("llama.block_count", Value::F32(1.0)), &["llama.block_count", "FLOAT32"]),
        (llama().with("llama.block_count", Value::I32(-1)), &["llama.block_count", "-1"]),
        (llama().with("llama.block_count", Value::U32(u32::MAX)), &["num_hidden_layers"]),
        (llama().with("llama.attention.head_count", Value::U32(0)), &["head_count", "0"]),
        (llama().with("llama.attention.head_count", Value::U32(3)), &["head_count", "3", "8"]),
        (
            llama().with("llama.attention.head_count_kv", Value::Array(Array::I32(vec![1]))),
            &["llama.attention.head_count_kv", "ARRAY of INT32"],
        ),
        (llama().pair("llama.expert_count", Value::U32(8)), &["llama.expert_count"]),
        (llama().pair("llama.attention.causal", Value::Bool(false)), &["attention.causal"]),
        (llama().pair("llama.rope.dimension_count", Value::U32(2)), &["rope.dimension_count"]),
        (Gguf { tensors: vec![], ..llama() }, &["token_embd.weight", "missing"]),
        (llama().tensor("model.embed_tokens.weight", &[4, 8]), &["embed_tokens", "twice"]),
    ] {
        says(&refusal(open(&file)), parts);
    }
    for harmless in [
        llama().pair("llama.expert_count", Value::U32(0)),
        llama().pair("llama.attention.causal", Value::Bool(true)),
        llama().pair("llama.rope.dimension_count", Value::U32(4)),
    ] {
        open(&harmless).unwrap();
    }
}

#[test]
fn a_tensor_type_without_kernels_is_named() {
    for (kind, name) in [(20, "IQ4_NL"), (39, "MXFP4"), (9, "Q8_1"), (4, "number 4")] {
        let (dimensions, data) = (vec![32], vec![0; 64]);
        let tensor = Tensor { name: "odd".into(), dimensions, kind, data, offset: None };
        says(&refusal(open(&llama().raw(tensor))), &["odd", name]);
    }
    let rows = Tensor {
        name: "odd".into(),
        dimensions: vec![16, 2],
        kind: Q4_0,
        data: vec![0; 18],
        offset: None,
    };
    says(&refusal(open(&llama().raw(rows))), &["odd", "16", "Q4_0", "32"]);
}

#[test]
fn a_sliding_window_is_for_every_layer() {
    let file = llama().pair("llama.attention.sliding_window", Value::U32(32));
    assert_eq!(open(&file).unwrap().config().windows, [Some(32)]);
}

/// [`whole`] in two parts: the metadata and embedding, and the rest.
fn halves() -> [Gguf; 2] {
    let mut first = whole("qwen2");
    let mut second = Gguf::new();
    second.tensors = first.tensors.split_off(1);
    let place = |file: Gguf, index: u16| {
        file.pair("split.no", Value::U16(index))
            .pair("split.count", Value::U16(2))
            .pair("split.tensors.count", Value::I32(12))
    };
    [place(first, 0), place(second, 1)]
}

#[test]
fn a_split_model_opens_from_any_part() {
    let dir = tempfile::tempdir().unwrap();
    let [first, second] = halves();
    let a = write(dir.path(), "m-00001-of-00002.gguf", &first);
    let b = write(dir.path(), "m-00002-of-00002.gguf", &second);
    for path in [a.as_path(), b.as_path(), dir.path()] {
        let checkpoint = Checkpoint::open(path).unwrap();
        assert_eq!(checkpoint.config().architecture, "qwen2");
        assert_eq!(checkpoint.tensors().count(), 12);
        let norm = checkpoint.tensor("model.norm.weight", &[8]).unwrap();
        let bytes = norm.data.to_vec();
        checkpoint.release(&norm);
        assert_eq!(checkpoint.tensor("model.norm.weight", &[8]).unwrap().data, bytes);
    }
}

#[test]
fn a_split_model_with_a_bad_part_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let [first, second] = halves();
    let a = write(dir.path(), "m-00001-of-00002.gguf", &first);
    says(&refusal(Checkpoint::open(&a)), &["m-00002-of-00002.gguf", "missing"]);
    let renamed = write(dir.path(), "renamed.gguf", &first);
    says(&refusal(Checkpoint::open(&renamed)), &["renamed.gguf", "-00001-of-00002.gguf"]);
    write(dir.path(), "m-00002-of-00002.gguf", &first);
    says(&refusal(Checkpoint::open(&a)), &["m-00002-of-00002.gguf", "split.no"]);
    let short = Gguf { tensors: second.tensors[1..].to_vec(), ..second.clone() };
    write(dir.path(), "m-00002-of-00002.gguf", &short);
    says(&refusal(Checkpoint::open(&a)), &["split.tensors.count", "12", "11"]);
    let mut twice = second.clone();
    twice.tensors[0] = first.tensors[0].clone();
    write(dir.path(), "m-00002-of-00002.gguf", &twice);
    says(&refusal(Checkpoint::open(&a)), &["embed_tokens", "twice", "m-00001-of-00002"]);
    says(&refusal(open(&first)), &["split.count"]);
}

#[test]
fn a_folder_with_one_model_opens_and_others_say_what_is_wrong() {
    let dir = tempfile::tempdir().unwrap();
    says(&refusal(Checkpoint::open(dir.path())), &["holds no model"]);
    write(dir.path(), "a.gguf", &llama());
    assert_eq!(Checkpoint::open(dir.path()).unwrap().config().layers, 1);
    // Repositories of GGUF files often carry the original's configuration.
    std::fs::write(dir.path().join("config.json"), "{}").unwrap();
    assert!(Checkpoint::open(dir.path()).unwrap().gguf().is_some());
    write(dir.path(), "b.gguf", &llama());
    says(&refusal(Checkpoint::open(dir.path())), &["2 GGUF models"]);
    says(&refusal(Checkpoint::open(&dir.path().join("c.gguf"))), &["c.gguf"]);
    std::fs::write(dir.path().join("x.safetensors"), b"").unwrap();
    says(&refusal(Checkpoint::open(&dir.path().join("x.safetensors"))), &["give the folder"]);
}
