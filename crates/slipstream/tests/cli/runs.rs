//! Answers: text, JSON lines, equality with and without drafts, standard input, conversations.

use super::{command, run, run_with_input, target};
use serde_json::Value;
use std::io::Read;
use std::process::Stdio;

/// The options of the default pair, fetched.
fn with_pair<'a>(arguments: &[&'a str]) -> Vec<&'a str> {
    target();
    arguments.to_vec()
}

fn json(arguments: &[&str]) -> Vec<Value> {
    let run = run(&with_pair(arguments)).ok();
    run.out.lines().map(|line| serde_json::from_str(line).expect("each line is JSON")).collect()
}

fn one(arguments: &[&str]) -> Value {
    let mut lines = json(arguments);
    assert_eq!(lines.len(), 1);
    lines.remove(0)
}

/// A question whose answer has no near ties, and drafts well.
const CODE: &str = "Write a Python function that returns the n-th Fibonacci number.";

#[test]
fn a_question_is_answered_and_the_line_of_figures_follows() {
    let run = run(&with_pair(&["chat", CODE, "--width", "5", "--max-tokens", "32"])).ok();
    assert!(run.out.starts_with("```python\ndef fibonacci(n):\n"), "{}", run.out);
    for part in [" tok/s · first token ", " · τ ", " passes · accepted 0:"] {
        assert!(run.err.contains(part), "no {part:?} in {}", run.err);
    }
}

#[test]
fn output_is_what_the_options_say() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("a file");
        path.to_str().expect("a path of text").to_owned()
    };
    let schema = file(
        "schema.json",
        r#"{"type": "array", "items": {"const": 1}, "minItems": 2,
        "maxItems": 2}"#,
    );
    let lark = file("sum.lark", "start: \"1+1=\" /[0-9]/\n");
    let ebnf = file("sum.gbnf", "root ::= \"2+2=\" [0-9]\n");
    let wrong = file("wrong.json", r#"{"not": {}}"#);
    let generate = |more: &[&str]| {
        let usual = ["generate", "--chat", "Answer.", "--json"];
        one(&usual.iter().chain(more).copied().collect::<Vec<_>>())
    };
    for (more, is_right) in [
        (
            &["--choice", "yes", "--choice", "no"][..],
            (|text| ["yes", "no"].contains(&text)) as fn(&str) -> bool,
        ),
        (&["--regex", "[a-c]{2}-[0-9]"], |text| text.len() == 4 && text.contains('-')),
        (&["--grammar", &lark], |text| text.starts_with("1+1=") && text.len() == 5),
        (&["--grammar", &ebnf], |text| text.starts_with("2+2=") && text.len() == 5),
        (&["--json-schema", &schema], |text| text.matches('1').count() == 2),
    ] {
        let line = generate(more);
        let text = line["text"].as_str().expect("text");
        assert!(is_right(text), "{more:?}: {text:?}");
        assert_eq!(line["finish_reason"], "stop", "{more:?}");
        let plain = generate(&[more, &["--plain"]].concat());
        assert_eq!(plain["ids"], line["ids"], "{more:?}");
    }
    let refused = run(&with_pair(&["generate", "x", "--json-schema", &wrong]));
    assert_eq!(refused.code, Some(2));
    assert!(refused.err.contains("--json-schema: cannot be used"), "{}", refused.err);
}

#[test]
fn comparing_reports_equality_and_the_speed_up() {
    let run = run(&with_pair(&["chat", CODE, "--compare", "--max-tokens", "64"])).ok();
    assert!(run.err.contains("ids equal · bytes equal"), "{}", run.err);
    assert!(run.err.contains("drafting: speed-up "), "{}", run.err);
    assert!(run.err.contains("plain: "), "{}", run.err);
}

#[test]
fn keys_and_values_in_fewer_bits_leave_drafted_and_plain_equal() {
    for kv in ["bf16", "int8"] {
        let arguments = ["chat", CODE, "--compare", "--kv-type", kv, "--max-tokens", "48"];
        let run = run(&with_pair(&arguments)).ok();
        assert!(run.err.contains("ids equal · bytes equal"), "{kv}: {}", run.err);
    }
    run(&["chat", CODE, "--kv-type", "f16"]).refused(&["--kv-type", "f32, bf16, int8"]);
    run(&["chat", CODE, "--device", "cuda", "--kv-type", "int8"])
        .refused(&["--kv-type", "--device cpu"]);
}

#[test]
fn drafts_are_coloured_on_request_and_the_text_stays_the_same() {
    let arguments =
        with_pair(&["chat", CODE, "--show-drafts", "--width", "5", "--max-tokens", "32"]);
    let plain = run(&arguments).ok();
    assert!(!plain.out.contains('\x1b'), "no colours in a pipe");
    assert!(plain.err.contains("drafts are not coloured"), "{}", plain.err);
    let coloured = command(&arguments).env("CLICOLOR_FORCE", "1").output().unwrap();
    let coloured = super::Run::from(coloured).ok();
    assert!(coloured.out.contains("\x1b[32m") && coloured.out.contains("\x1b[33m"));
    let bare = ["\x1b[32m", "\x1b[33m", "\x1b[0m"];
    let text = bare.iter().fold(coloured.out.clone(), |text, code| text.replace(code, ""));
    assert_eq!(text, plain.out);
}

#[test]
fn drafted_and_plain_give_the_same_ids_and_text() {
    for options in [
        vec!["--seed", "10"],
        vec!["--temperature", "0.7", "--seed", "11"],
        vec!["--temperature", "1", "--top-p", "0.9", "--top-k", "40", "--seed", "12"],
        vec![
            "--frequency-penalty",
            "0.5",
            "--repetition-penalty",
            "1.1",
            "--logit-bias",
            "2=9",
            "--min-tokens",
            "30",
            "--seed",
            "13",
        ],
    ] {
        let mut base = vec!["generate", "--chat", CODE, "--json", "--max-tokens", "48"];
        base.extend(&options);
        let with = |more: &[&'static str]| one(&[&base[..], more].concat());
        let plain = with(&["--plain"]);
        assert_eq!(plain["drafted"], 0);
        if options.contains(&"--min-tokens") {
            assert!(plain["ids"].as_array().expect("ids").len() >= 30, "{plain}");
        }
        for width in ["2", "4", "8", "16"] {
            let drafted = with(&["--width", width]);
            assert!(drafted["drafted"].as_u64() > Some(0));
            for field in ["ids", "text", "finish_reason", "seed", "prompt_tokens"] {
                assert_eq!(drafted[field], plain[field], "{field} at width {width}, {options:?}");
            }
        }
    }
}

#[test]
fn a_json_line_is_consistent_in_itself() {
    let line =
        one(&["generate", "--chat", CODE, "--json", "--max-tokens", "40", "--logprobs", "3"]);
    let ids = line["ids"].as_array().unwrap();
    assert!(!ids.is_empty() && ids.len() <= 40);
    let accepted: Vec<u64> =
        line["accepted"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).collect();
    assert_eq!(accepted.iter().sum::<u64>(), line["steps"].as_u64().unwrap());
    assert!(line["tau"].as_f64().unwrap() >= 1.0, "{line}");
    for timing in ["first_token_ms", "total_ms", "tokens_per_second"] {
        assert!(line["timings"][timing].as_f64().unwrap() > 0.0, "{timing}");
    }
    let logprobs = line["logprobs"].as_array().unwrap();
    assert_eq!(logprobs.len(), ids.len());
    for (entry, id) in logprobs.iter().zip(ids) {
        assert_eq!(&entry["id"], id);
        let top = entry["top"].as_array().unwrap();
        assert_eq!(top.len(), 3);
        // Greedy: the chosen token is the likeliest.
        assert_eq!(top[0]["id"], *id);
        assert_eq!(top[0]["logprob"], entry["logprob"]);
        assert!(top[0]["logprob"].as_f64() >= top[1]["logprob"].as_f64());
    }
    let bytes: Vec<u8> = logprobs
        .iter()
        .flat_map(|entry| entry["bytes"].as_array().unwrap())
        .map(|byte| byte.as_u64().unwrap() as u8)
        .collect();
    assert_eq!(String::from_utf8_lossy(&bytes), line["text"].as_str().unwrap());
}

#[test]
fn every_way_in_gives_the_same_output() {
    let options = ["--json", "--max-tokens", "8"];
    let prompt = "The capital of France is";
    let expected = one(&[&["generate", prompt][..], &options].concat());
    let temp = tempfile::tempdir().unwrap();
    let file = temp.path().join("prompt.txt");
    std::fs::write(&file, prompt).unwrap();
    let from_file = one(&[&["generate", "--file", file.to_str().unwrap()][..], &options].concat());
    assert_eq!(from_file["ids"], expected["ids"]);
    for dash in [&["-"][..], &[]] {
        let arguments = [&["generate"][..], dash, &options].concat();
        let piped = run_with_input(&arguments, prompt).ok();
        let piped: Value = serde_json::from_str(piped.out.trim()).unwrap();
        assert_eq!(piped["ids"], expected["ids"]);
    }

    // The output, fed back as ids, goes on where it stopped; a batch answers line by line.
    let ids: Vec<String> =
        expected["ids"].as_array().unwrap().iter().map(|id| id.to_string()).collect();
    let from_ids = one(&[&["generate", "--ids", &ids.join(",")][..], &options].concat());
    assert_eq!(from_ids["prompt_tokens"].as_u64(), Some(ids.len() as u64));
    let batch = temp.path().join("batch.jsonl");
    let lines = format!("{{\"prompt\": \"{prompt}\"}}\n{{\"ids\": [{}]}}\n", ids.join(","));
    std::fs::write(&batch, lines).unwrap();
    let both = json(&[&["generate", "--batch", batch.to_str().unwrap()][..], &options].concat());
    assert_eq!(both.len(), 2);
    assert_eq!((&both[0]["ids"], &both[0]["index"]), (&expected["ids"], &0.into()));
    assert_eq!((&both[1]["ids"], &both[1]["index"]), (&from_ids["ids"], &1.into()));
}

#[test]
fn text_output_is_exact_and_stops_where_it_is_told() {
    let options = ["--chat", CODE, "--max-tokens", "40"];
    let whole = one(&[&["generate", "--json"][..], &options].concat());
    let whole = whole["text"].as_str().unwrap();
    let text = run(&with_pair(&[&["generate"][..], &options].concat())).ok();
    assert_eq!(text.out, whole);
    assert!(whole.contains("return"), "{whole}");
    let stopped = one(&[&["generate", "--json", "--stop", "return"][..], &options].concat());
    assert_eq!(stopped["finish_reason"], "stop");
    assert_eq!(stopped["text"].as_str().unwrap(), &whole[..whole.find("return").unwrap()]);
}

/// A deadline that is over at once: what there is by then comes out, and the run is no failure.
#[test]
fn a_deadline_ends_the_output_with_what_there_is() {
    let options = ["--chat", CODE, "--max-tokens", "40"];
    let whole = one(&[&["generate", "--json"][..], &options].concat());
    let cut = one(&[&["generate", "--json", "--timeout", "1e-9"][..], &options].concat());
    assert_eq!(cut["finish_reason"], "timeout");
    let whole = whole["text"].as_str().unwrap();
    let cut = cut["text"].as_str().unwrap();
    assert!(cut.len() < whole.len() && whole.starts_with(cut), "{cut:?} of {whole:?}");
    let chat = run(&with_pair(&["chat", CODE, "--timeout", "1e-9", "--compare"])).ok();
    assert!(chat.err.contains("time was up (--timeout)"), "{}", chat.err);
    assert!(!chat.err.contains("speed-up"), "nothing to compare: {}", chat.err);
}

/// The second prompt of a batch that is the first finds all but its last tokens in the cache.
#[test]
fn a_repeated_prompt_is_cached() {
    let temp = tempfile::tempdir().unwrap();
    let batch = temp.path().join("batch.jsonl");
    let prompt = serde_json::json!({ "prompt": CODE.repeat(3) }).to_string();
    std::fs::write(&batch, format!("{prompt}\n{prompt}\n")).unwrap();
    let path = batch.to_str().unwrap();
    let both = json(&["generate", "--json", "--batch", path, "--max-tokens", "4"]);
    assert_eq!((&both[0]["cached_tokens"], &both[0]["ids"]), (&0.into(), &both[1]["ids"]));
    let [cached, prompt] =
        ["cached_tokens", "prompt_tokens"].map(|field| both[1][field].as_u64().unwrap());
    assert!(cached > 0 && cached < prompt && cached + 16 >= prompt, "{cached} of {prompt}");
}

#[test]
fn a_fresh_seed_is_reported_and_repeats_the_output() {
    let options = ["--json", "--max-tokens", "24", "--temperature", "1"];
    let first = one(&[&["generate", "Once upon a time"][..], &options].concat());
    let seed = first["seed"].as_u64().unwrap().to_string();
    let again = one(&[&["generate", "Once upon a time", "--seed", &seed][..], &options].concat());
    assert_eq!(first["ids"], again["ids"]);
    let text = run(&with_pair(&[
        "generate",
        "Once upon a time",
        "--max-tokens",
        "24",
        "--temperature",
        "1",
        "--seed",
        &seed,
    ]))
    .ok();
    assert_eq!(text.out, first["text"].as_str().unwrap());
    assert!(text.err.contains(&format!("seed {seed}")), "{}", text.err);
}

#[test]
fn end_of_text_can_be_ignored() {
    let arguments = ["generate", "--chat", "Say yes.", "--json", "--max-tokens", "200"];
    let ended = one(&arguments);
    assert_eq!(ended["finish_reason"], "stop");
    let on = one(&[&arguments[..], &["--ignore-eos"]].concat());
    assert_eq!(on["finish_reason"], "length");
    assert_eq!(on["ids"].as_array().unwrap().len(), 200);
}

#[test]
fn a_conversation_remembers_and_forgets() {
    let script = "My name is Ada. \\\nRemember it.\nWhat is my name?\n/stats\n/reset\n/nonsense\n\
                  What is my name?\n/quit\nnot read\n";
    target();
    let options = ["chat", "--max-tokens", "40"];
    let talk = run_with_input(&options, script).ok();
    assert!(talk.err.contains("2 answers · "), "{}", talk.err);
    assert!(talk.err.contains("/nonsense: no such command"), "{}", talk.err);
    assert_eq!(talk.err.matches("first token").count(), 3, "three answers: {}", talk.err);
    // After /reset the question stands alone.
    let alone = run(&["chat", "What is my name?", "--max-tokens", "40"]).ok();
    assert!(talk.out.ends_with(&alone.out), "{:?} does not end with {:?}", talk.out, alone.out);
    let remembered =
        run_with_input(&options, "My name is Ada. \\\nRemember it.\nWhat is my name?\n");
    assert!(talk.out.starts_with(&remembered.ok().out));
}

#[test]
fn a_reader_that_leaves_ends_the_program_in_silence() {
    target();
    let mut child = command(&["generate", "Once upon a time", "--max-tokens", "400"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut byte = [0];
    stdout.read_exact(&mut byte).unwrap();
    drop(stdout);
    let run = super::Run::from(child.wait_with_output().unwrap()).ok();
    assert_eq!(run.err, "");
}

#[cfg(unix)]
#[test]
fn ctrl_c_stops_the_answer_and_reports_it() {
    target();
    let mut child =
        command(&["generate", "Once upon a time", "--ignore-eos", "--max-tokens", "4000"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut byte = [0];
    stdout.read_exact(&mut byte).unwrap();
    let kill = std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    assert!(kill.unwrap().success());
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).unwrap();
    let run = super::Run::from(child.wait_with_output().unwrap());
    assert_eq!(run.code, Some(130), "{}", run.err);
    assert!(run.err.contains("· stopped"), "{}", run.err);
}

#[test]
fn inspecting_the_pair_shows_both() {
    let target = target();
    let text = run(&["inspect", target.to_str().unwrap()]).ok().out;
    for part in
        ["GGUF", "llama", "Q4_1", "Q8_0", "<|im_end|> 2", "gpt2/smollm", "messages", "49152"]
    {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
    assert!(!text.contains("every tensor"));
    let drafter = super::drafter();
    let path = drafter.to_str().unwrap();
    let report = run(&["inspect", path, "--json"]).ok().out;
    let report: Value = serde_json::from_str(&report).unwrap();
    assert_eq!(report["drafter"]["block_size"], 16);
    assert_eq!(report["drafter"]["target_layer_ids"].as_array().unwrap().len(), 5);
    assert_eq!(report["drafter"]["proposed_ids"], 15_395);
    assert_eq!(report["tensors"].as_array().unwrap().len(), 36);
    assert!(run(&["inspect", path, "--tensors"]).ok().out.contains("layers.2.mlp.up_proj.weight"));
}

#[test]
fn a_trace_is_a_timeline_without_unordered_accesses() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("trace.json");
    let path = path.to_str().expect("a plain path");
    let arguments = ["trace", CODE, "--max-tokens", "12", "--out", path];
    let run = run(&with_pair(&arguments)).ok();
    assert!(run.err.contains("0 unordered accesses"), "{}", run.err);
    let text = std::fs::read(path).expect("the timeline was written");
    let timeline: Value = serde_json::from_slice(&text).expect("JSON");
    let events = timeline["traceEvents"].as_array().expect("a list of events");
    for name in ["write pages", "snapshot pages", "step", "results", "plan and launch", "land"] {
        assert!(events.iter().any(|event| event["name"] == name), "no {name} in the timeline");
    }
}

/// Virtual time has no noise: two runs say the same to the last digit, and that the host waits at
/// a fence only where the fence is its own.
#[test]
fn fences_in_virtual_time_are_exact() {
    let arguments = ["bench", "fences", "--count", "2", "--running", "2", "--max-tokens", "8"];
    let first = run(&with_pair(&arguments)).ok();
    assert_eq!(run(&arguments).ok().out, first.out);
    assert!(first.out.starts_with("VIRTUAL TIME"), "{}", first.out);
    for (fence, waits) in [("self", true), ("coarse", false), ("fine", false)] {
        let line = first.out.lines().find(|line| line.starts_with(fence)).expect("a line a fence");
        assert_eq!(!line.contains(" + 0.000)"), waits, "{line}");
    }
}

/// The number in front of `word`.
fn number_before(line: &str, word: &str) -> f64 {
    let number = line.split(word).next().and_then(|before| before.split_whitespace().last());
    let number = number.unwrap_or_else(|| panic!("no {word:?} in {line}"));
    number.trim_start_matches('(').parse().unwrap_or_else(|e| panic!("{line}: {e}"))
}

#[test]
fn acceptance_comes_with_how_much_confidences_tell() {
    let load = ["bench", "acceptance", "--count", "6", "--max-tokens", "40"];
    let runs = ["--widths", "1,4,16", "--temperatures", "0,0.7"];
    let out = run(&with_pair(&[&load[..], &runs].concat())).ok().out;
    let runs: Vec<&str> = out.split("\n\n").skip(1).collect();
    assert_eq!(runs.len(), 6, "{out}");
    for run in runs {
        let line = run.lines().find(|line| line.starts_with("  confidences: ")).expect("a line");
        if run.contains("verify width 1:") {
            assert!(line.contains("no r over 0 drafts"), "{line}");
            continue;
        }
        let r = number_before(line, " with acceptance");
        assert!(r > 0.2 && r < 1.0, "sure of what is accepted, not of all of it: {line}");
        // A pass has its accepted drafts and, unless all were, a wrong one, in whose place the bonus token is.
        let tokens = number_before(run, " tokens in ");
        let passes = number_before(run, " passes)");
        let drafts = number_before(line, " drafts");
        assert!(drafts >= tokens - passes && drafts <= tokens, "{run}");
    }
}

#[test]
fn passes_stand_beside_the_limits_of_the_machine() {
    let out = run(&with_pair(&["bench", "ceilings", "--rows", "1,3", "--context", "8"])).ok().out;
    let (limits, passes) = out.split_once("\n\n").expect("limits, then passes");
    for limit in ["memory", "integers", "floats"] {
        let line = limits.lines().find(|line| line.starts_with(limit)).expect(limit);
        let value: f64 = line.split_whitespace().nth(1).expect("a value").parse().expect(line);
        assert!(value > 0.0, "{line}");
    }
    let passes: Vec<&str> = passes.lines().skip(1).collect();
    let of = |name: &str| -> Vec<f64> {
        let line = passes.iter().find(|line| line.starts_with(name)).expect(name);
        let numbers = line[name.len()..].split_whitespace().filter_map(|word| word.parse().ok());
        numbers.collect()
    };
    let (one, three, head) = (of("target 1 rows"), of("target 3 rows"), of("  its head on 1"));
    // MB, GOP, the two limits, the time, its share: the file's weights, each read once a pass and
    // multiplied once a row.
    assert_eq!((one[0], three[0]), (66.4, 66.4));
    assert_eq!((one[1], three[1]), (0.21, 0.64));
    assert_eq!((head[0], head[1]), (30.1, 0.06));
    for line in [one, three, head, of("drafter, one block")] {
        let [_, _, read, multiply, took, share] = line[..] else { panic!("{line:?}") };
        let limit = f64::max(read, multiply);
        // What is printed is rounded.
        let (least, most) = ((limit - 0.005) / (took + 0.005), (limit + 0.005) / (took - 0.005));
        assert!(share >= 100.0 * least - 0.5 && share <= 100.0 * most + 0.5, "{line:?}");
    }
    run(&with_pair(&["bench", "ceilings", "--context", "8192"])).refused(&["--context 8192"]);
}
