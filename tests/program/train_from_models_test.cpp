// trireme train that begins with what is there: data that gives the vocabulary, published models that are tuned,
// exported and grown.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/program/train_command.h"

namespace trireme::cli {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

/// Sizes that are not given follow from the others and from the data; the log says which.
TEST_F(TrainCommand, TheVocabularyIsThatOfTheData) {
  std::ofstream(folder_ / "text.txt") << std::string(4000, 'a') + std::string(4000, 'b');
  const std::string recipe =
      "[model]\nfamily = \"llama\"\nhidden_size = 32\nnum_heads = 2\nnum_layers = 1\n"
      "[data]\nseq_len = 32\ntokenizer = \"bytes\"\n[[data.sources]]\npath = \"text.txt\"\n"
      "[batch]\nglobal_batch_tokens = 128\n[train]\nsteps = 2\nthreads = 1\n";
  std::ofstream(folder_ / "bytes.toml") << recipe;
  const Outcome outcome = run({"train", path("bytes.toml"), "--out", path("run")});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const std::string log = read_all(folder_ / "run/log.txt");
  EXPECT_THAT(log, HasSubstr("model: llama, 1 layer, hidden_size 32, 2 heads of 16, ffn_size 112, vocab_size 256"));
  EXPECT_THAT(read_all(folder_ / "run/recipe.toml"), HasSubstr("vocab_size = 256\n"));
  // Memory is counted for that many, too, and not for the family's 128,256.
  const Outcome large =
      run({"train", path("bytes.toml"), "--out", path("large"), "--set", "batch.global_batch_tokens=64G"});
  EXPECT_THAT(large.err, AllOf(HasSubstr("and this machine has"), HasSubstr(": 31.3k parameters")));
  const Outcome small = run({"train", path("bytes.toml"), "--out", path("small"), "--set", "model.vocab_size=200"});
  EXPECT_EQ(small.code, 2);
  EXPECT_THAT(small.err, AllOf(HasSubstr("256 tokens, but model.vocab_size = 200"),
                               HasSubstr("set model.vocab_size = 256, or leave it out")));
  EXPECT_FALSE(fs::exists(folder_ / "small"));
}

TEST_F(TrainCommand, FineTunesAPublishedModel) {
  ASSERT_EQ(train("run", {"--set", "train.steps=20"}).code, 0);
  ASSERT_EQ(run({"--quiet", "convert", path("run"), path("hf")}).code, 0);
  std::ofstream(folder_ / "tune.toml")
      << "[model]\ninit_from = \"" << path("hf")
      << "\"\ndropout = 0.1\n[run]\nseed = 1\n[data]\nseq_len = 64\nsynthetic.kind = \"markov\"\n"
         "synthetic.vocab_size = 32\n[batch]\nglobal_batch_tokens = 512\n[train]\nsteps = 3\nthreads = 1\n"
         "freeze = [\"embedding.*\"]\n";
  const Outcome outcome = run({"--quiet", "train", path("tune.toml"), "--out", path("tuned")});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  // It begins where the other run ended, far below the loss of a model that knows nothing.
  EXPECT_LT(lines_of(folder_ / "tuned/metrics.jsonl")[0]["loss"].get<double>(), 3.0);
  fs::remove_all(folder_ / "hf");  // not needed to go on
  ASSERT_EQ(
      run({"--quiet", "train", path("tuned/recipe.toml"), "--out", path("tuned"), "--resume", "--set", "train.steps=5"})
          .code,
      0);
}

/// In and out of a Hugging Face folder, every field stays that nobody changed on purpose; through a run, too.
TEST_F(TrainCommand, AnExportKeepsWhatTheModelCameWith) {
  fs::copy(fs::path(TRIREME_FIXTURES) / "models/llama", folder_ / "hf");
  auto config = nlohmann::ordered_json::parse(read_all(folder_ / "hf/config.json"));
  config["bos_token_id"] = 7;
  config["eos_token_id"] = {8, 9};
  config["pad_token_id"] = 10;
  config["a_key_of_theirs"] = {{"nested", "value"}};
  write_all(folder_ / "hf/config.json", config.dump(2));
  write_all(folder_ / "hf/generation_config.json", R"({"eos_token_id": [8, 9], "temperature": 0.6})");
  write_all(folder_ / "hf/chat_template.jinja", "{{ messages }}");
  write_all(folder_ / "hf/special_tokens_map.json", "{}");
  std::ofstream(folder_ / "tune.toml")
      << "[model]\ninit_from = \"hf\"\n[data]\nseq_len = 32\nsynthetic.kind = \"markov\"\nsynthetic.vocab_size = 32\n"
         "[batch]\nglobal_batch_tokens = 128\n[train]\nsteps = 1\nthreads = 1\n";
  const Outcome tuned = run({"--quiet", "train", path("tune.toml"), "--out", path("tuned")});
  ASSERT_EQ(tuned.code, 0) << tuned.err;
  ASSERT_EQ(run({"--quiet", "convert", path("hf"), path("stored"), "--to", "checkpoint"}).code, 0);
  fs::rename(folder_ / "hf", folder_ / "moved");  // what is needed was kept
  for (const char* from : {"tuned", "tuned/checkpoints/step-00000001", "stored", "moved"}) {
    const fs::path out = folder_ / "out";
    const Outcome outcome = run({"--quiet", "convert", path(from), out.string(), "--dtype", "BF16"});
    ASSERT_EQ(outcome.code, 0) << from << outcome.err;
    auto written = nlohmann::ordered_json::parse(read_all(out / "config.json"));
    EXPECT_EQ(written["dtype"], "bfloat16") << from;
    EXPECT_FALSE(written.contains("torch_dtype")) << from;
    written["dtype"] = config["dtype"];
    EXPECT_EQ(written, config) << from;
    for (const char* file : {"generation_config.json", "chat_template.jinja", "special_tokens_map.json"}) {
      ASSERT_TRUE(fs::exists(out / file)) << from << " " << file;
      EXPECT_EQ(read_all(out / file), read_all(folder_ / "moved" / file)) << from;
    }
    fs::remove_all(out);
  }
}

TEST_F(TrainCommand, AnExportOfOurOwnKnowsWhereATextEnds) {
  std::string text;
  for (int i = 0; i < 400; ++i) text += "the theory of the other thing " + std::to_string(i) + "\n";
  write_all(folder_ / "text.txt", text);
  ASSERT_EQ(
      run({"-q", "tokenize", "train", path("text.txt"), "--vocab-size", "300", "-o", path("tokenizer.json")}).code, 0);
  ASSERT_EQ(
      run({"-q", "tokenize", path("text.txt"), "--tokenizer", path("tokenizer.json"), "--out", path("shards")}).code,
      0);
  const Outcome recipe = run({"recipe", "new", "--params", "200k", "--data", path("shards"), "-o", path("new.toml")});
  ASSERT_EQ(recipe.code, 0) << recipe.err;
  EXPECT_THAT(read_all(folder_ / "new.toml"), HasSubstr("tokenizer = \"tokenizer.json\""));
  const Outcome trained = run({"train", path("new.toml"), "--out", path("run"), "--set", "train.steps=2", "--set",
                               "train.threads=1", "--set", "eval.every=0", "--set", "lr_schedule.warmup=1"});
  ASSERT_EQ(trained.code, 0) << trained.err;
  EXPECT_THAT(read_all(folder_ / "run/recipe.toml"), HasSubstr("vocab_size = 320\n"));
  ASSERT_EQ(run({"-q", "convert", path("run"), path("hf")}).code, 0);
  const auto config = nlohmann::json::parse(read_all(folder_ / "hf/config.json")),
             generation = nlohmann::json::parse(read_all(folder_ / "hf/generation_config.json")),
             about = nlohmann::json::parse(read_all(folder_ / "hf/tokenizer_config.json"));
  EXPECT_TRUE(config["eos_token_id"].is_number_integer());
  EXPECT_EQ(generation["eos_token_id"], config["eos_token_id"]);
  EXPECT_EQ(about["eos_token"], "<|endoftext|>");
  EXPECT_EQ(about["tokenizer_class"], "PreTrainedTokenizerFast");
  EXPECT_EQ(about["model_input_names"], nlohmann::json::parse(R"(["input_ids", "attention_mask"])"));
  EXPECT_TRUE(fs::exists(folder_ / "hf/tokenizer.json"));
}

/// Keys that change weights are refused; asked for, what fits is loaded, and the log says what.
TEST_F(TrainCommand, InitFromWithOtherSizesAsksFirst) {
  ASSERT_EQ(train("run", {"--set", "train.steps=20"}).code, 0);
  const auto tune = [&](const std::string& out, const std::vector<std::string>& sets) {
    std::vector<std::string> all{"train", path("tune.toml"), "--out", path(out)};
    for (const std::string& set : sets) all.insert(all.end(), {"--set", set});
    return run(all);
  };
  std::ofstream(folder_ / "tune.toml")
      << "[model]\ninit_from = \"run\"\n[data]\nseq_len = 64\nsynthetic.kind = \"markov\"\n"
         "synthetic.vocab_size = 32\n[batch]\nglobal_batch_tokens = 512\n[train]\nsteps = 2\nthreads = 1\n";
  ASSERT_EQ(tune("same", {}).code, 0);
  EXPECT_THAT(read_all(folder_ / "same/log.txt"), HasSubstr("weights: "));
  EXPECT_THAT(read_all(folder_ / "same/log.txt"), HasSubstr("step 20 of "));
  for (const char* key : {"model.num_layers=2", "model.num_heads=2", "model.ffn_size=64", "model.vocab_size=48"}) {
    const Outcome refused = tune("refused", {key});
    EXPECT_EQ(refused.code, 2) << key;
    EXPECT_THAT(refused.err, AllOf(HasSubstr(std::string(key).substr(0, std::string(key).find('='))),
                                   HasSubstr("does not fit the weights in")));
  }
  ASSERT_EQ(tune("fewer", {"model.num_layers=2", "model.init_partial=true"}).code, 0);
  ASSERT_EQ(tune("deeper", {"model.num_layers=5", "model.init_partial=true"}).code, 0);
  EXPECT_THAT(read_all(folder_ / "deeper/log.txt"), HasSubstr("initialised from run.seed: layers.4."));
  const Outcome larger = tune("larger", {"model.vocab_size=48", "model.init_resize_vocab=true"});
  ASSERT_EQ(larger.code, 0) << larger.err;
  EXPECT_THAT(read_all(folder_ / "larger/log.txt"), HasSubstr("resized: embedding.tokens.weight"));
  const double same = lines_of(folder_ / "same/metrics.jsonl")[0]["loss"],
               grown = lines_of(folder_ / "larger/metrics.jsonl")[0]["loss"];
  EXPECT_NEAR(same, grown, 1.0) << "sixteen rows of noise cost little beside what was learnt";
  EXPECT_EQ(tune("long", {"data.seq_len=128"}).code, 2) << "beyond model.max_seq_len";
  const Outcome longer = tune("long", {"data.seq_len=128", "model.max_seq_len=128", "comm.ranks=2"});
  EXPECT_EQ(longer.code, 0) << longer.err;
  const std::string warning = "model.max_seq_len = 128 is beyond the 64 that", log = read_all(folder_ / "long/log.txt");
  EXPECT_NE(log.find(warning), std::string::npos) << log;
  EXPECT_EQ(log.find(warning), log.rfind(warning)) << "once, whatever the ranks: " << log;
}

/// A mixture of experts, a dense student of it, killed after half of its steps: what it resumes to is what it would
/// have been. Check opens the teacher, too.
TEST_F(TrainCommand, ADenseModelIsDistilledFromOneWithExperts) {
  const std::vector<std::string> experts{"--set", "model.family=mistral",  "--set", "model.num_kv_heads=4",
                                         "--set", "experts.num_experts=4", "--set", "experts.top_k=1",
                                         "--set", "experts.router=switch", "--set", "train.steps=20"};
  const Outcome teacher = train("teacher", experts);
  ASSERT_EQ(teacher.code, 0) << teacher.err;
  std::ofstream(folder_ / "student.toml")
      << "[model]\ninit_from = \"" << path("teacher") << "\"\ninit_dense = true\n[distill]\nteacher = \""
      << path("teacher")
      << "\"\n"
         "[data]\nseq_len = 64\nsynthetic.kind = \"markov\"\nsynthetic.vocab_size = 32\n"
         "[batch]\nglobal_batch_tokens = 512\n[train]\nsteps = 6\nthreads = 1\n[checkpoint]\nevery = 3\n";
  const Outcome check = run({"check", path("student.toml")});
  EXPECT_EQ(check.code, 0) << check.err;
  EXPECT_THAT(check.out, HasSubstr("note: distill.teacher"));
  const Outcome student = run({"train", path("student.toml"), "--out", path("student")});
  ASSERT_EQ(student.code, 0) << student.err;
  EXPECT_THAT(read_all(folder_ / "student/log.txt"),
              AllOf(HasSubstr("distillation: 0.25 of the loss from step 20 of"),
                    HasSubstr("initialised from run.seed: layers.0.mlp.in.weight")));
  EXPECT_THAT(read_all(folder_ / "student/metrics.jsonl"), HasSubstr("distillation_loss"));
  ASSERT_EQ(run({"--quiet", "train", path("student.toml"), "--out", path("half"), "--set", "train.steps=3"}).code, 0);
  const Outcome resumed =
      run({"--quiet", "train", path("half/recipe.toml"), "--out", path("half"), "--resume", "--set", "train.steps=6"});
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_EQ(lines_of(folder_ / "half/metrics.jsonl").back()["loss"],
            lines_of(folder_ / "student/metrics.jsonl").back()["loss"]);
  const Outcome refused = run({"check", path("student.toml"), "--set", "distill.teacher=nobody"});
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, AllOf(HasSubstr("distill.teacher"), HasSubstr("does not exist")));
}

/// Every recipe of recipes/mixtures is planned for GPUs, written, and what was written trains on four ranks of a CPU at
/// sizes for a test: families, routers, losses and expert parallelism as they stand in the file.
TEST_F(TrainCommand, TrainsWhatPlanWroteOfEveryMixture) {
  struct Mixture {
    const char *name, *cluster, *gpus, *length, *rows;
    std::vector<const char*> sets;
  };
  const std::vector<Mixture> mixtures{
      {"mixtral-8x7b", "dgx-h100", "64", "4096", "512", {"data.synthetic.kind=copy"}},
      {"deepseek-v3",
       "deepseek-h800",
       "2048",
       "4096",
       "15360",
       {"data.synthetic.kind=copy", "model.mla.q_lora_rank=16", "model.mla.kv_lora_rank=16",
        "model.mla.qk_rope_head_dim=4", "model.mla.v_head_dim=8", "experts.num_experts=16", "experts.num_groups=4",
        "experts.top_k_groups=2", "experts.first_dense_layers=1"}},
      {"switch-base", "dgx-h100", "16", "512", "256", {"data.synthetic.kind=reverse", "model.num_encoder_layers=2"}},
      {"switch-c", "dgx-h100", "1024", "512", "2048", {"data.synthetic.kind=reverse", "model.num_encoder_layers=2"}},
      {"gshard-600b",
       "dgx-h100",
       "2048",
       "1024",
       "4096",
       {"data.synthetic.kind=reverse", "model.num_encoder_layers=2"}}};
  const std::vector<const char*> small{"run.device=cpu",
                                       "comm.ranks=4",
                                       "layout.dp=4",
                                       "layout.tp=1",
                                       "layout.pp=1",
                                       "layout.cp=1",
                                       "layout.ep=4",
                                       "pipeline.schedule=1f1b",
                                       "layout.sequence_parallel=false",
                                       "model.vocab_size=64",
                                       "model.max_seq_len=32",
                                       "pipeline.virtual_stages=1",
                                       "model.num_heads=4",
                                       "model.num_kv_heads=4",
                                       "model.head_dim=8",
                                       "model.num_layers=2",
                                       "model.hidden_size=32",
                                       "model.ffn_size=32",
                                       "experts.ffn_size=16",
                                       "experts.num_experts=8",
                                       "data.seq_len=16",
                                       "train.threads=1",
                                       "train.steps=3",
                                       "batch.global_batch_tokens=128"};
  for (const Mixture& mixture : mixtures) {
    SCOPED_TRACE(mixture.name);
    const std::string file = path(std::string(mixture.name) + ".toml");
    const Outcome planned = run({"plan", "--model", mixture.name, "--cluster", mixture.cluster, "--gpus", mixture.gpus,
                                 "--seq-len", mixture.length, "--global-batch-size", mixture.rows, "--write", file});
    ASSERT_EQ(planned.code, 0) << planned.err;
    const std::string written = read_all(file);
    EXPECT_THAT(written, AllOf(HasSubstr("device = \"cuda\""), HasSubstr("num_experts = ")));
    EXPECT_EQ(written.find("\nep = 1\n"), std::string::npos) << "experts are sharded";
    std::vector<std::string> words{"--quiet", "train", file, "--out", path(mixture.name), "--ranks", "4"};
    for (const auto* sets : {&small, &mixture.sets}) {
      for (const char* set : *sets) words.insert(words.end(), {"--set", set});
    }
    const Outcome trained = run(words);
    ASSERT_EQ(trained.code, 0) << trained.err;
    const auto metrics = lines_of(folder_ / mixture.name / "metrics.jsonl");
    ASSERT_EQ(metrics.size(), 3U);
    EXPECT_TRUE(metrics.back().contains("experts")) << "loads of experts are told";
    EXPECT_GT(metrics.back()["loss"].get<double>(), 0);
  }
}

}  // namespace
}  // namespace trireme::cli
