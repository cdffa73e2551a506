// Wrong recipes, key by key, and wrong command lines: what needs no tensors. tests/program/bad_inputs_test.cpp has the
// others.
#include <fmt/format.h>

#include <limits>
#include <map>
#include <set>

#include "tests/cli/bad_inputs.h"
#include "trireme/base/config.h"
#include "trireme/base/text.h"
#include "trireme/spec/recipe.h"

namespace trireme::cli {
namespace {

const std::string kTiny = TRIREME_RECIPES "/tiny.toml";

/// A value that no key of this kind takes; empty: any text will do.
std::string wrong_value(const config::Field& field) {
  switch (field.kind) {
    case config::Kind::kBool:
      return "maybe";
    case config::Kind::kWhole:
      return "many";
    case config::Kind::kReal:
      return "fast";
    case config::Kind::kChoice:
      return "nonsense";
    case config::Kind::kDuration:
      return "soon";
    case config::Kind::kText:
      return "";
  }
  return "";
}

/// A value just below the smallest; empty: there is none.
std::string below(const config::Field& field) {
  if (!field.low || field.list) return "";
  if (field.kind == config::Kind::kReal) return fmt::format("{}", field.low->real - 1);
  if (field.kind != config::Kind::kWhole || field.low->whole < -1000) return "";
  return std::to_string(field.low->whole - 1);
}

template <typename Visit>
void visit_fields(const config::Schema& schema, const std::string& path, const Visit& visit) {
  for (const config::Field& field : schema.fields) visit(path + field.name, field);
  for (const config::Part& part : schema.parts) {
    if (!part.list) visit_fields(*part.schema, path + part.name + ".", visit);
  }
}

/// Every key that the resolved recipe gives a value, with it.
std::map<std::string, std::string> values_in_use() {
  std::map<std::string, std::string> values;
  std::string section;
  for (std::string line : split(run({"recipe", "show", kTiny}).out, '\n')) {
    line = line.substr(0, line.find("  #"));
    line.erase(line.find_last_not_of(' ') + 1);
    if (line.starts_with("[") && line.ends_with("]")) section = line.substr(1, line.size() - 2) + ".";
    const std::size_t equals = line.find(" = ");
    if (line.starts_with("[") || equals == std::string::npos) continue;
    std::string value = line.substr(equals + 3);
    if (value.size() > 1 && value.front() == '"' && value.back() == '"') value = value.substr(1, value.size() - 2);
    values[section + line.substr(0, line.find(' '))] = value;
  }
  return values;
}

/// The key with a value that fits: the one in use, else none, which unsets it.
std::string fitting(const std::map<std::string, std::string>& values, const std::string& key) {
  const auto found = values.find(key);
  return key + "=" + (found == values.end() ? "" : found->second);
}

/// Every key of a recipe, with a value of the wrong type and one that is too small; the fix is a value that fits.
TEST_F(BadInputs, ValuesOfEveryKeyAreRefusedByName) {
  const auto values = values_in_use();
  std::size_t cases = 0;
  visit_fields(spec::recipe_schema(), "", [&](const std::string& key, const config::Field& field) {
    for (const std::string& value : {wrong_value(field), below(field)}) {
      if (value.empty()) continue;
      const std::string set = fmt::format("{}={}", key, value);
      expect_refused({.name = set,
                      .words = {"check", kTiny, "--set", set},
                      .named = key,
                      .fixed = {"check", kTiny, "--set", fitting(values, key)}});
      ++cases;
    }
  });
  EXPECT_GT(cases, 150U);
}

/// Names of other programs, misspelt keys, keys in the wrong section: the message has the right one.
TEST_F(BadInputs, UnknownKeysLeadToOurs) {
  const auto values = values_in_use();
  std::set<std::string> fields;
  visit_fields(spec::recipe_schema(), "", [&](const std::string& key, const config::Field&) { fields.insert(key); });
  std::size_t cases = 0;
  for (const auto& [name, key] : spec::recipe_schema().foreign) {
    BadInput input{.name = name,
                   .words = {"check", kTiny, "--set", fmt::format("train.{}=1", name)},
                   .named = fmt::format("did you mean \"{}\"?", key)};
    // Some lead to a section, which has no value of its own.
    if (fields.contains(key)) input.fixed = {"check", kTiny, "--set", fitting(values, key)};
    expect_refused(input);
    ++cases;
  }
  EXPECT_GT(cases, 150U);
  visit_fields(spec::recipe_schema(), "", [&](const std::string& key, const config::Field& field) {
    if (field.name.size() < 6) return;
    std::string misspelt = key;
    std::swap(misspelt[key.size() - 2], misspelt[key.size() - 3]);
    if (misspelt == key) return;
    expect_refused({.name = misspelt,
                    .words = {"check", kTiny, "--set", fmt::format("{}=1", misspelt)},
                    .named = fmt::format("did you mean \"{}\"?", key),
                    .fixed = {"check", kTiny, "--set", fitting(values, key)}});
  });
}

TEST_F(BadInputs, CommandLinesSayWhatIsWrong) {
  write_all(folder_ / "not.toml", "[model\nfamily = \n");
  write_all(folder_ / "text.txt", "a text of some words\n");
  write_all(folder_ / "empty.json", "");
  write_all(folder_ / "broken.json", "{\"version\": ");
  write_all(folder_ / "garbage.shard", "not a shard at all, but long enough to hold a header of some kind\n");
  std::filesystem::create_directories(folder_ / "empty");
  std::filesystem::copy_file(kTiny, folder_ / "tiny.toml");
  ASSERT_EQ(run(filled({"tokenize", "{}/text.txt", "--tokenizer", "bytes", "--out", "{}/good"})).code, 0);
  const std::vector<BadInput> inputs = {
      {"no command", {"trian"}, "did you mean \"train\"?", {"recipe", "docs"}},
      {"no subcommand", {"recipe"}, "trireme recipe needs a command", {"recipe", "docs"}},
      {"unknown option", {"recipe", "show", "--sett", "a=b"}, "did you mean \"--set\"?", {"recipe", "show"}},
      {"unknown option of check",
       {"check", kTiny, "--rank", "2"},
       "did you mean \"--ranks\"?",
       {"check", kTiny, "--ranks", "2"}},
      {"an option twice",
       {"check", kTiny, "--ranks", "1", "--ranks", "2"},
       "--ranks",
       {"check", kTiny, "--ranks", "2"}},
      {"no recipe", {"check"}, "FILE", {"check", kTiny}},
      {"missing recipe", {"check", "{}/none.toml"}, "{}/none.toml", {"check", kTiny}},
      {"misspelt recipe", {"check", "{}/tinny.toml"}, "did you mean \"tiny.toml\"?", {"check", "{}/tiny.toml"}},
      {"a folder", {"check", "{}"}, "it is a folder", {"check", kTiny}},
      {"not TOML", {"check", "{}/not.toml"}, "not TOML", {"check", kTiny}},
      {"set without a value",
       {"check", kTiny, "--set", "train.steps"},
       "there is no value",
       {"check", kTiny, "--set", "train.steps=5"}},
      {"set of a section",
       {"check", kTiny, "--set", "train=1"},
       "is a section",
       {"check", kTiny, "--set", "train.steps=1"}},
      {"set of an entry",
       {"check", kTiny, "--set", "data.sources.0.path=x"},
       "[[data.sources]] has no entries",
       {"check", kTiny}},
      {"ranks that are not a number", {"check", kTiny, "--ranks", "two"}, "two", {"check", kTiny, "--ranks", "2"}},
      {"no ranks", {"check", kTiny, "--ranks", "0"}, "--ranks", {"check", kTiny, "--ranks", "1"}},
      {"tp that does not divide",
       {"check", kTiny, "--set", "comm.ranks=3", "--set", "layout.tp=2"},
       "layout",
       {"check", kTiny, "--set", "comm.ranks=4", "--set", "layout.tp=2"}},
      {"heads that do not divide",
       {"check", kTiny, "--set", "model.num_heads=5", "--set", "model.head_dim="},
       "set model.num_heads = 4",
       {"check", kTiny, "--set", "model.num_heads=4", "--set", "model.head_dim="}},
      {"key-value heads that do not divide",
       {"check", kTiny, "--set", "model.num_kv_heads=3"},
       "set model.num_kv_heads = 2",
       {"check", kTiny, "--set", "model.num_kv_heads=2"}},
      {"an odd head with RoPE",
       {"check", kTiny, "--set", "model.head_dim=15"},
       "set model.head_dim = 16",
       {"check", kTiny, "--set", "model.head_dim=16"}},
      {"an encoder beside Llama",
       {"check", kTiny, "--set", "model.num_encoder_layers=2"},
       "set model.num_encoder_layers = 0",
       {"check", kTiny, "--set", "model.num_encoder_layers=0"}},
      {"sequences beyond the context",
       {"check", kTiny, "--set", "data.seq_len=128"},
       "set data.seq_len = 64",
       {"check", kTiny, "--set", "data.seq_len=64"}},
      {"more synthetic tokens than rows",
       {"check", kTiny, "--set", "data.synthetic.vocab_size=64"},
       "set model.vocab_size = 64",
       {"check", kTiny, "--set", "data.synthetic.vocab_size=64", "--set", "model.vocab_size=64"}},
      {"steps and tokens",
       {"check", kTiny, "--set", "train.tokens=1M"},
       "train.tokens",
       {"check", kTiny, "--set", "train.tokens=1M", "--set", "train.steps="}},
      {"a wider model than 63 bits count",
       {"check", kTiny, "--set", "model.hidden_size=4611686018427387904"},
       "model.hidden_size",
       {"check", kTiny}},
      {"partial without a model to begin from",
       {"check", kTiny, "--set", "model.init_partial=true"},
       "model.init_partial",
       {"check", kTiny, "--set", "model.init_partial=false"}},
      {"nesterov without momentum",
       {"check", kTiny, "--set", "optim.kind=sgd", "--set", "optim.nesterov=true", "--set", "optim.momentum=0"},
       "set optim.momentum = 0.9",
       {"check", kTiny, "--set", "optim.kind=sgd", "--set", "optim.nesterov=true", "--set", "optim.momentum=0.9"}},
      {"loss scale without fp16",
       {"check", kTiny, "--set", "precision.loss_scale.initial=8"},
       "set precision.compute = \"fp16\"",
       {"check", kTiny, "--set", "precision.loss_scale.initial=8", "--set", "precision.compute=fp16"}},
      {"FP8 beside fp32",
       {"check", kTiny, "--set", "precision.gemm=fp8"},
       "set precision.compute = \"bf16\"",
       {"check", kTiny, "--set", "precision.gemm=fp8", "--set", "precision.compute=bf16"}},
      {"accumulation that does not divide",
       {"check", kTiny, "--set", "train.gradient_accumulation_steps=3"},
       "set batch.global_batch_tokens = 1920",
       {"check", kTiny, "--set", "train.gradient_accumulation_steps=3", "--set", "batch.global_batch_tokens=1920"}},
      {"cosine without an end",
       {"check", kTiny, "--set", "lr_schedule.total=", "--set", "train.steps="},
       "or train.steps, with which it ends",
       {"check", kTiny, "--set", "lr_schedule.total="}},
      {"a new recipe on nothing",
       {"recipe", "new", "--data", "{}/none.txt", "-o", "{}/new.toml"},
       "{}/none.txt does not exist",
       {"recipe", "new", "--data", "{}/text.txt", "-o", "{}/new1.toml"}},
      {"a new recipe of no family",
       {"recipe", "new", "--family", "lama", "--data", "{}/text.txt", "-o", "{}/new.toml"},
       "did you mean \"llama\"?",
       {"recipe", "new", "--family", "llama", "--data", "{}/text.txt", "-o", "{}/new2.toml"}},
      {"a new recipe of a family that reads no plain text",
       {"recipe", "new", "--family", "bert", "--data", "{}/text.txt", "-o", "{}/new.toml"},
       "bert",
       {"recipe", "new", "--family", "gpt2", "--data", "{}/text.txt", "-o", "{}/new3.toml"}},
      {"a new recipe that is too small",
       {"recipe", "new", "--params", "10", "--data", "{}/text.txt", "-o", "{}/new.toml"},
       "ask for at least",
       {"recipe", "new", "--params", "1M", "--data", "{}/text.txt", "-o", "{}/new4.toml"}},
      {"a new recipe of no size",
       {"recipe", "new", "--params", "big", "--data", "{}/text.txt", "-o", "{}/new.toml"},
       "big",
       {"recipe", "new", "--params", "2M", "--data", "{}/text.txt", "-o", "{}/new5.toml"}},
      {"inspect nothing", {"inspect", "{}/nothing"}, "{}/nothing does not exist", {"inspect", "{}/good"}},
      {"inspect an empty folder",
       {"inspect", "{}/empty"},
       "{}/empty holds nothing that is known",
       {"inspect", "{}/good"}},
      {"inspect garbage", {"inspect", "{}/garbage.shard"}, "{}/garbage.shard", {"inspect", "{}/good"}},
      {"inspect an empty tokenizer", {"inspect", "{}/empty.json"}, "{}/empty.json", {"inspect", "{}/good"}},
      {"inspect a broken tokenizer", {"inspect", "{}/broken.json"}, "{}/broken.json", {"inspect", "{}/good"}},
      {"tokenize without a tokenizer",
       {"tokenize", "{}/text.txt", "--out", "{}/shards"},
       "--tokenizer",
       {"tokenize", "{}/text.txt", "--tokenizer", "bytes", "--out", "{}/shards1"}},
      {"tokenize with a missing tokenizer",
       {"tokenize", "{}/text.txt", "--tokenizer", "{}/t.json", "--out", "{}/shards"},
       "there is no tokenizer {}/t.json",
       {"tokenize", "{}/text.txt", "--tokenizer", "bytes", "--out", "{}/shards2"}},
      {"tokenize a missing text",
       {"tokenize", "{}/none.txt", "--tokenizer", "bytes", "--out", "{}/shards"},
       "{}/none.txt",
       {"tokenize", "{}/text.txt", "--tokenizer", "bytes", "--out", "{}/shards3"}},
      {"train a tokenizer of 9",
       {"tokenize", "train", "{}/text.txt", "--vocab-size", "9", "-o", "{}/t.json"},
       "ask for 257 or more",
       {"tokenize", "train", "{}/text.txt", "--vocab-size", "257", "-o", "{}/t257.json"}},
      {"diff of no runs", {"diff", "{}/a", "{}/b"}, "{}/a", {}},
      {"diff within a negative tolerance", {"diff", "{}/a", "{}/b", "--tolerance", "-1"}, "--tolerance", {}},
      {"report of no run", {"report", "{}/none", "-o", "{}/page.html"}, "{}/none", {}},
      {"a schedule of no kind",
       {"schedule", "show", "--kind", "1f1bb", "--stages", "2", "--microbatches", "4"},
       "did you mean \"1f1b\"?",
       {"schedule", "show", "--kind", "1f1b", "--stages", "2", "--microbatches", "4"}},
      {"plan without a model",
       {"plan", "--cluster", "dgx-h100"},
       "model",
       {"plan", "--model", "llama3-8b", "--cluster", "dgx-h100", "--gpus", "8"}},
      {"plan for no model",
       {"plan", "--model", "llama9-8b", "--cluster", "dgx-h100"},
       "llama9-8b",
       {"plan", "--model", "llama3-8b", "--cluster", "dgx-h100", "--gpus", "8"}},
      {"plan on no cluster",
       {"plan", "--model", "llama3-8b", "--cluster", "dgx-h101"},
       "dgx-h101",
       {"plan", "--model", "llama3-8b", "--cluster", "dgx-h100", "--gpus", "8"}},
      {"supervise what is no training", {"supervise", "--", "sleep", "1"}, "is no `trireme train`", {}},
      {"supervise without ranks",
       {"supervise", "--", "trireme", "train", kTiny, "--ranks", "{ranks}"},
       "--ranks does not say how many",
       {}},
      {"convert to nothing", {"convert", "{}/empty"}, "INTO is required", {}},
      {"reshard into no files", {"convert", "reshard", "{}/empty", "{}/x", "--parts", "0"}, "--parts", {}},
      {"reshard what is none", {"convert", "reshard", "{}/empty", "{}/x"}, "{}/empty is no checkpoint", {}},
      {"a log level of no kind",
       {"check", kTiny, "--set", "log.level=loud"},
       "log.level",
       {"check", kTiny, "--set", "log.level=info"}},
      {"an algorithm of no kind",
       {"check", kTiny, "--set", "comm.algorithm=rign"},
       "did you mean \"ring\"?",
       {"check", kTiny, "--set", "comm.algorithm=ring"}},
  };
  for (const BadInput& input : inputs) expect_refused(input);
}

}  // namespace
}  // namespace trireme::cli
