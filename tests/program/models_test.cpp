// trireme probe and trireme generate from the command line, on directories made by the reference implementation.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "tests/cli/run.h"
#include "trireme/base/plugin.h"
#include "trireme/device/runtime.h"
#include "trireme/formats/safetensors.h"

namespace trireme::cli {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::UnorderedElementsAreArray;

const fs::path kModels = fs::path(TRIREME_FIXTURES) / "models";
constexpr const char* kNames[] = {"gpt2",       "gpt2_bare", "gpt2_untied", "llama",      "llama_biased_tied",
                                  "llama_yarn", "mistral",   "qwen2",       "qwen2_tied", "qwen3",
                                  "bert"};

std::vector<float> floats(const formats::SafetensorsFile& file, const std::string& name) {
  const auto bytes = file.bytes(file.tensor(name));
  std::vector<float> out(bytes.size() / 4);
  std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

class ModelCommands : public testing::Test {
 protected:
  void SetUp() override {
    // One thread: these models are so small that others would only wait.
    Plugin::load("runtime").function<device::RuntimeEntry>(device::kRuntimeEntry)()->set_intra_op_threads(1);
    folder_ = fs::temp_directory_path() / ("trireme_model_commands_" + std::to_string(::getpid()));
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::string write(const std::string& name, const std::string& text) {
    std::ofstream(folder_ / name) << text;
    return (folder_ / name).string();
  }
  Outcome probe(const std::string& model, const std::string& ids, const std::string& tp = "1") {
    return run({"--quiet", "probe", (kModels / model).string(), "--ids", ids, "--out", out_.string(), "--tp", tp});
  }
  fs::path folder_, out_ = fs::temp_directory_path() / ("trireme_probe_" + std::to_string(::getpid()) + ".safetensors");
};

TEST_F(ModelCommands, ProbeWritesWhatTheReferenceComputesOnOneRankAndOnTwo) {
  std::vector<std::pair<std::string, std::string>> cases;  // the model and --tp
  for (const std::string name : kNames) cases.emplace_back(name, "1");
  for (const char* name : {"gpt2", "llama", "mistral", "qwen2_tied", "qwen3"}) cases.emplace_back(name, "2");
  for (const auto& [name, tp] : cases) {
    SCOPED_TRACE(name + " --tp " + tp);
    const Outcome outcome = probe(name, (kModels / "ids.json").string(), tp);
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_THAT(outcome.out, AllOf(HasSubstr("loss "), HasSubstr(out_.string())));
    const formats::SafetensorsFile ours(out_), theirs(kModels / "expected" / (name + ".safetensors"));
    std::vector<std::string> names, expected{"logits", "loss"};
    for (const auto& tensor : ours.header().tensors) names.push_back(tensor.name);
    for (const auto& tensor : theirs.header().tensors) {
      if (tensor.name.starts_with("grad_norm.")) expected.push_back(tensor.name);
    }
    EXPECT_THAT(names, UnorderedElementsAreArray(expected)) << "a tied weight once, foreign tensors never";
    EXPECT_EQ(ours.tensor("logits").shape, theirs.tensor("logits").shape);
    const auto logits = floats(ours, "logits"), expected_logits = floats(theirs, "logits");
    float worst = 0;
    for (std::size_t i = 0; i < logits.size(); ++i) worst = std::max(worst, std::abs(logits[i] - expected_logits[i]));
    EXPECT_LE(worst, 2e-5F);
    EXPECT_NEAR(floats(ours, "loss")[0], floats(theirs, "loss")[0], 1e-5);
    for (const std::string& tensor : expected) {
      if (!tensor.starts_with("grad_norm.")) continue;
      const float norm = floats(theirs, tensor)[0];
      // The bias of BERT's keys has no influence: its gradient is zero but for rounding.
      EXPECT_NEAR(floats(ours, tensor)[0], norm, 1e-4 * norm + 1e-6) << tensor;
    }
  }
  fs::remove(out_);
}

TEST_F(ModelCommands, GenerateContinuesAndIsRepeatable) {
  const std::string ids = write("prompts.json", "[[5, 17, 40], [80], [3, 3, 3, 3, 9, 1]]");
  const std::vector<std::string> greedy = {"--quiet",          "generate", (kModels / "llama").string(), "--ids", ids,
                                           "--max-new-tokens", "5"};
  const Outcome first = run(greedy);
  ASSERT_EQ(first.code, 0) << first.err;
  EXPECT_EQ(std::ranges::count(first.out, '\n'), 3);
  EXPECT_EQ(std::ranges::count(first.out, ','), 3 * 4);
  EXPECT_EQ(run(greedy).out, first.out);
  auto sampled = greedy;
  for (const char* word : {"--temperature", "1.2", "--top-k", "50", "--top-p", "0.9", "--seed", "7"}) {
    sampled.push_back(word);
  }
  const Outcome drawn = run(sampled);
  ASSERT_EQ(drawn.code, 0) << drawn.err;
  EXPECT_NE(drawn.out, first.out);
  EXPECT_EQ(run(sampled).out, drawn.out);
  sampled.back() = "8";
  EXPECT_NE(run(sampled).out, drawn.out);
  auto split = greedy;
  for (const char* word : {"--tp", "2"}) split.push_back(word);
  const Outcome shared = run(split);
  ASSERT_EQ(shared.code, 0) << shared.err;
  EXPECT_EQ(shared.out, first.out);
}

TEST_F(ModelCommands, MistakesAreToldWithTheirFix) {
  struct Case {
    std::string model, ids;
    std::vector<std::string> said;
  };
  const std::string good = (kModels / "ids.json").string();
  for (const auto& [model, ids, said] : std::vector<Case>{
           {"nonesuch", good, {"nonesuch", "config.json"}},
           {"expected", good, {"expected", "config.json"}},
           {"gpt2", (folder_ / "absent.json").string(), {"absent.json"}},
           {"gpt2", write("text.json", "hello"), {"text.json", "byte 0"}},
           {"gpt2", write("flat.json", "[1, 2, 3]"), {"flat.json"}},
           {"gpt2", write("object.json", "{\"ids\": [[1]]}"), {"object.json"}},
           {"gpt2", write("real.json", "[[1, 2.5]]"), {"real.json"}},
           {"gpt2", write("words.json", "[[\"a\", \"b\"]]"), {"words.json"}},
           {"gpt2", write("cut.json", "[[1, 2"), {"cut.json"}},
           {"gpt2", write("more.json", "[[1, 2]] x"), {"more.json"}},
           {"gpt2", write("empty.json", "[]"), {"empty.json", "no tokens", "[[1, 2, 3], [4, 5, 6]]"}},
           {"gpt2", write("ragged.json", "[[1, 2, 3], [4, 5]]"), {"ragged.json", "list 1 has 2", "list 0 has 3"}},
           {"gpt2", write("one.json", "[[1], [2]]"), {"one.json", "two"}},
           {"gpt2", write("large.json", "[[1, 96]]"), {"token 96", "vocabulary of 96"}},
           {"gpt2", write("negative.json", "[[1, -1]]"), {"negative.json", "whole and from 0"}},
       }) {
    const Outcome outcome = probe(model, ids);
    EXPECT_NE(outcome.code, 0) << ids;
    EXPECT_THAT(outcome.out, IsEmpty());
    for (const std::string& part : said) EXPECT_THAT(outcome.err, HasSubstr(part)) << model << " " << ids;
    EXPECT_THAT(outcome.err, testing::Not(HasSubstr("internal"))) << ids;
    EXPECT_FALSE(fs::exists(out_)) << "nothing is left of a probe that failed";
  }
  std::string many = "[[";
  for (int i = 0; i < 65; ++i) many += i == 0 ? "1" : ", 1";
  const Outcome longer = probe("gpt2", write("long.json", many + "]]"));
  EXPECT_THAT(longer.err, AllOf(HasSubstr("position 64"), HasSubstr("64")));
  const Outcome nowhere = run({"--quiet", "probe", (kModels / "gpt2").string(), "--ids", good, "--out",
                               (folder_ / "no" / "such" / "folder.safetensors").string()});
  EXPECT_NE(nowhere.code, 0);
  EXPECT_THAT(nowhere.err, HasSubstr("folder.safetensors"));
}

TEST_F(ModelCommands, GenerateRefusesWhatCannotBe) {
  const std::string ids = write("prompts.json", "[[5, 17, 40]]");
  const auto refused = [&](std::vector<std::string> more) {
    std::vector<std::string> arguments = {"--quiet", "generate", (kModels / "gpt2").string(), "--ids", ids};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome outcome = run(arguments);
    EXPECT_NE(outcome.code, 0);
    EXPECT_THAT(outcome.out, IsEmpty());
    return outcome.err;
  };
  EXPECT_THAT(refused({"--max-new-tokens", "62"}), AllOf(HasSubstr("context of 64 tokens"), HasSubstr("at most 61")));
  EXPECT_THAT(refused({"--top-p", "0"}), HasSubstr("top_p"));
  EXPECT_THAT(refused({"--temperature", "-1"}), HasSubstr("temperature"));
  EXPECT_THAT(refused({"--tp", "3"}), HasSubstr("layout.tp"));
  EXPECT_THAT(refused({"--tp", "0"}), HasSubstr("not positive"));
  EXPECT_THAT(refused({"--device", "tpu"}), AllOf(HasSubstr("cpu"), HasSubstr("cuda")));
  EXPECT_THAT(refused({"--precision", "fp8"}), AllOf(HasSubstr("fp32"), HasSubstr("bf16")));
}

}  // namespace
}  // namespace trireme::cli
