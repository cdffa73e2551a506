// Wrong inputs of commands that need tensors: recipes that only a run finds wrong, and damaged files.
#include <cstdlib>
#include <fstream>

#include "tests/cli/bad_inputs.h"
#include "trireme/formats/checkpoint_folder.h"

namespace trireme::cli {
namespace {

namespace fs = std::filesystem;

const std::string kTiny = TRIREME_RECIPES "/tiny.toml";

class BadRuns : public BadInputs {
 protected:
  void SetUp() override {
    ::setenv("CUDA_VISIBLE_DEVICES", "", 1);  // one of them asks for a GPU where there is none
    ASSERT_EQ(run(filled({"--quiet", "train", kTiny, "--out", "{}/run", "--set", "train.steps=2", "--set",
                          "train.threads=1", "--set", "eval.every=0"}))
                  .code,
              0);
    ASSERT_EQ(run(filled({"--quiet", "convert", "{}/run", "{}/hf"})).code, 0);
    write_all(folder_ / "text.txt", std::string(3000, 'a') + std::string(3000, 'b'));
    write_all(folder_ / "ids.json", "[[1, 2, 3]]");
    write_all(folder_ / "large-ids.json", "[[1, 2, 3000]]");
    write_all(folder_ / "no-ids.json", "{\"a\": 1}");
    fs::create_directories(folder_ / "empty");
    write_all(folder_ / "file", "a file\n");
  }
  /// tiny.toml for two steps, to {}/out, with these keys set.
  static std::vector<std::string> train(const std::vector<std::string>& sets, const std::string& out = "{}/out") {
    std::vector<std::string> words{"--quiet", "train", kTiny, "--out", out};
    for (const char* set :
         {"train.steps=2", "train.threads=1", "eval.every=0", "batch.global_batch_tokens=512", "checkpoint.every=0"}) {
      words.insert(words.end(), {"--set", set});
    }
    for (const std::string& set : sets) words.insert(words.end(), {"--set", set});
    return words;
  }
  /// The same with a fix; each in a folder of its own.
  std::vector<std::string> fixed(const std::vector<std::string>& sets) {
    return train(sets, "{}/fixed" + std::to_string(++fixes_));
  }
  int fixes_ = 0;
};

TEST_F(BadRuns, OfTrainSayWhatIsWrong) {
  const std::vector<std::string> text{"data.synthetic.kind=", "data.tokenizer=bytes", "model.vocab_size="};
  const auto with = [](std::vector<std::string> sets, const std::vector<std::string>& more) {
    sets.insert(sets.end(), more.begin(), more.end());
    return sets;
  };
  const std::vector<BadInput> inputs = {
      {"no length", train({"train.steps="}), "set train.steps = 1000, or train.tokens", fixed({"train.steps=3"})},
      {"no data", train({"data.synthetic.kind=", "data.synthetic.vocab_size=16"}), "names no data",
       fixed({"data.synthetic.kind=markov"})},
      {"no model", train({"model.family="}), "model", fixed({})},
      {"a batch of no whole sequences", train({"batch.global_batch_tokens=1000"}),
       "set batch.global_batch_tokens = 960 (15 sequences)", fixed({"batch.global_batch_tokens=960"})},
      {"a batch below a sequence", train({"batch.global_batch_tokens=10"}), "set batch.global_batch_tokens = 64",
       fixed({"batch.global_batch_tokens=64"})},
      {"a batch of 64G tokens", train({"batch.global_batch_tokens=64G"}), "of memory, and this machine has",
       fixed({"batch.global_batch_tokens=512"})},
      {"a batch of 1P tokens", train({"batch.global_batch_tokens=1P"}), "of memory, and this machine has", fixed({})},
      {"a model of a trillion parameters",
       train({"model.hidden_size=65536", "model.num_layers=512", "model.head_dim=", "model.ffn_size="}),
       "of memory, and this machine has", fixed({})},
      {"100,000 ranks", train({"comm.ranks=100000"}), "100000 ranks", fixed({"comm.ranks=2"})},
      {"more ranks than sequences need",
       train({"comm.ranks=2", "layout.tp=2", "model.num_kv_heads=1", "model.num_heads=1", "model.head_dim=64"}), "tp",
       fixed({"comm.ranks=2", "layout.tp=2"})},
      {"layers that stages do not divide", train({"comm.ranks=8", "layout.pp=8", "train.micro_batch_size=1"}), "pp",
       fixed({"comm.ranks=4", "layout.pp=4", "train.micro_batch_size=1"})},
      {"a tokenizer that is not there", train(with({"data.synthetic.kind="}, {"data.tokenizer={}/none.json"})), "data",
       fixed({})},
      {"out is a file", train({}, "{}/file"), "{}/file is a file", fixed({})},
      {"out below a file", train({}, "{}/file/run"), "{}/file/run", fixed({})},
      {"out cannot be made", train({}, "/proc/trireme/run"), "/proc/trireme/run", fixed({})},
      {"out holds a run", train({}, "{}/run"), "already holds a run", fixed({})},
      {"start over without resume", with(train({}), {"--start-over"}), "add --resume", fixed({})},
      {"a misspelt option", with(train({}), {"--rank", "2"}), "did you mean \"--ranks\"?",
       with(fixed({}), {"--ranks", "2"})},
      {"an option twice", with(train({}), {"--ranks", "1", "--ranks", "2"}), "--ranks",
       with(fixed({}), {"--ranks", "2"})},
      {"no ranks", with(train({}), {"--ranks", "0"}), "--ranks", with(fixed({}), {"--ranks", "1"})},
      {"profile of nothing", with(train({}), {"--profile", "-1"}), "--profile", fixed({})},
      {"a fault of no kind", with(train({}), {"--inject", "explode"}), "explode", fixed({})},
      {"validation without any", train({"eval.every=1", "data.validation_fraction=0"}), "data.validation_fraction",
       fixed({"eval.every=1"})},
      {"freeze nothing", train({"train.freeze=[layres.*]"}), "layres.*", fixed({"train.freeze=[layers.*]"})},
      {"a group of nothing", train({"optim.groups.0.pattern=x"}), "[[optim.groups]] has no entries", fixed({})},
      {"begin from nothing", train({"model.init_from={}/none"}), "{}/none does not exist",
       fixed({"model.init_from={}/hf"})},
      {"begin from an empty folder", train({"model.init_from={}/empty"}), "{}/empty holds no model",
       fixed({"model.init_from={}/run"})},
      {"begin from other heads", train({"model.init_from={}/hf", "model.num_heads=2"}), "model.num_heads = 2",
       fixed({"model.init_from={}/hf"})},
      {"begin from fewer layers", train({"model.init_from={}/hf", "model.num_layers=2"}), "model.num_layers = 2",
       fixed({"model.init_from={}/hf", "model.num_layers=2", "model.init_partial=true"})},
      {"begin from another vocabulary", train({"model.init_from={}/hf", "model.vocab_size=40"}),
       "model.init_resize_vocab = true",
       fixed({"model.init_from={}/hf", "model.vocab_size=40", "model.init_resize_vocab=true"})},
      {"begin from another family", train({"model.init_from={}/hf", "model.family=gpt2"}), "holds a llama",
       fixed({"model.init_from={}/hf"})},
      {"beyond the context of what was begun from",
       train({"model.init_from={}/hf", "model.max_seq_len=", "data.seq_len=128"}), "context is 64 tokens",
       fixed({"model.init_from={}/hf", "model.max_seq_len=128", "data.seq_len=128"})},
      {"a GPU where there is none", train({"run.device=cuda"}), "run.device", fixed({"run.device=cpu"})},
      {"a memory limit", train({"train.memory_gb=0.000001"}), "memory", fixed({"train.memory_gb=8"})},
  };
  for (const BadInput& input : inputs) expect_refused(input);
}

TEST_F(BadRuns, OfOtherCommandsSayWhatIsWrong) {
  const std::vector<BadInput> inputs = {
      {"eval of nothing",
       {"eval", "{}/none"},
       "{}/none does not exist",
       {"--quiet", "eval", "{}/run", "--samples", "2"}},
      {"eval of an empty folder",
       {"eval", "{}/empty"},
       "{}/empty holds no model",
       {"--quiet", "eval", "{}/run", "--samples", "2"}},
      {"eval of a published model without data", {"eval", "{}/hf"}, "say what to evaluate on", {}},
      {"eval of missing data",
       {"eval", "{}/run", "--data", "{}/none.shard"},
       "{}/none.shard",
       {"--quiet", "eval", "{}/run", "--samples", "2"}},
      {"eval of data beyond the vocabulary",
       {"eval", "{}/run", "--data", "{}/text.txt", "--tokenizer", "bytes"},
       "vocab_size",
       {"--quiet", "eval", "{}/run", "--samples", "2"}},
      {"eval beyond the context",
       {"eval", "{}/run", "--data", "{}/text.txt", "--tokenizer", "bytes", "--seq-len", "128"},
       "context of 64",
       {"--quiet", "eval", "{}/run", "--samples", "2"}},
      {"eval with a tokenizer and no data",
       {"eval", "{}/run", "--tokenizer", "bytes"},
       "give --data FILE",
       {"--quiet", "eval", "{}/run", "--samples", "2"}},
      {"eval in no precision",
       {"eval", "{}/run", "--precision", "fp7"},
       "fp7",
       {"--quiet", "eval", "{}/run", "--samples", "2", "--precision", "fp32"}},
      {"eval with tp that does not divide",
       {"eval", "{}/run", "--tp", "3"},
       "tp",
       {"--quiet", "eval", "{}/run", "--samples", "2"}},
      {"generate with nothing",
       {"generate"},
       "there is no model",
       {"--quiet", "generate", "{}/run", "--ids", "{}/ids.json", "--max-new-tokens", "2"}},
      {"generate from nothing",
       {"generate", "{}/none", "--ids", "{}/ids.json"},
       "{}/none does not exist",
       {"--quiet", "generate", "{}/run", "--ids", "{}/ids.json", "--max-new-tokens", "2"}},
      {"generate without a tokenizer",
       {"generate", "{}/run", "--prompt", "x"},
       "--tokenizer",
       {"--quiet", "generate", "{}/run", "--ids", "{}/ids.json", "--max-new-tokens", "2"}},
      {"generate from ids that are no list",
       {"generate", "{}/run", "--ids", "{}/no-ids.json"},
       "{}/no-ids.json",
       {"--quiet", "generate", "{}/run", "--ids", "{}/ids.json", "--max-new-tokens", "2"}},
      {"generate from ids that are not there",
       {"generate", "{}/run", "--ids", "{}/none.json"},
       "{}/none.json",
       {"--quiet", "generate", "{}/run", "--ids", "{}/ids.json", "--max-new-tokens", "2"}},
      {"generate from ids beyond the vocabulary",
       {"generate", "{}/run", "--ids", "{}/large-ids.json"},
       "token 3000 is outside the model's vocabulary of 32",
       {"--quiet", "generate", "{}/run", "--ids", "{}/ids.json", "--max-new-tokens", "2"}},
      {"generate beyond the context",
       {"generate", "{}/run", "--ids", "{}/ids.json", "--max-new-tokens", "100"},
       "ask for at most 61 new tokens",
       {"--quiet", "generate", "{}/run", "--ids", "{}/ids.json", "--max-new-tokens", "61"}},
      {"generate from all and none",
       {"generate", "{}/run", "--ids", "{}/ids.json", "--prompt", "x"},
       "give one of them",
       {"--quiet", "generate", "{}/run", "--ids", "{}/ids.json", "--max-new-tokens", "2"}},
      {"generate at a negative temperature",
       {"generate", "{}/run", "--ids", "{}/ids.json", "--temperature", "-1"},
       "--temperature",
       {"--quiet", "generate", "{}/run", "--ids", "{}/ids.json", "--max-new-tokens", "2", "--temperature", "1"}},
      {"generate from no probability",
       {"generate", "{}/run", "--ids", "{}/ids.json", "--top-p", "0"},
       "top_p 0",
       {"--quiet", "generate", "{}/run", "--ids", "{}/ids.json", "--max-new-tokens", "2", "--top-p", "0.9"}},
      {"convert nothing", {"convert", "{}/none", "{}/out"}, "{}/none does not exist", {"convert", "{}/run", "{}/fine"}},
      {"convert an empty folder",
       {"convert", "{}/empty", "{}/out"},
       "{}/empty holds no model",
       {"convert", "{}/run", "{}/fine2"}},
      {"convert onto something",
       {"convert", "{}/run", "{}/hf"},
       "{}/hf is already there",
       {"convert", "{}/run", "{}/fine3"}},
      {"convert to no type",
       {"convert", "{}/run", "{}/out", "--dtype", "F12"},
       "F12",
       {"convert", "{}/run", "{}/fine4", "--dtype", "F32"}},
      {"convert below a file", {"convert", "{}/run", "{}/file/out"}, "{}/file/out", {"convert", "{}/run", "{}/fine5"}},
      {"verify of nothing",
       {"verify", "{}/none.toml"},
       "{}/none.toml",
       {"--quiet", "verify", kTiny, "--ranks", "2", "--steps", "1"}},
      {"verify against no layout", {"verify", kTiny, "--against", "qq=2"}, "qq", {}},
      {"probe of nothing",
       {"probe", "{}/none", "--ids", "{}/ids.json", "--out", "{}/p.safetensors"},
       "{}/none",
       {"--quiet", "probe", "{}/hf", "--ids", "{}/ids.json", "--out", "{}/p.safetensors"}},
  };
  for (const BadInput& input : inputs) expect_refused(input);
}

/// A byte that changed, a file that is shorter or not there: named, whichever it is.
TEST_F(BadRuns, OfDamagedFilesNameTheFile) {
  const fs::path checkpoint = folder_ / "run/checkpoints/step-00000002";
  const auto damage = [&](const fs::path& file, const std::string& how) {
    if (how == "gone") {
      fs::remove(file);
    } else if (how == "empty") {
      fs::resize_file(file, 0);
    } else if (how == "shorter") {
      fs::resize_file(file, fs::file_size(file) / 2);
    } else {
      std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
      const auto middle = static_cast<std::streamoff>(fs::file_size(file) / 2);
      stream.seekg(middle);
      const char byte = static_cast<char>(stream.get() ^ 0x55);
      stream.seekp(middle);
      stream.put(byte);
    }
  };
  std::size_t cases = 0;
  for (const char* name : {"state.safetensors", "manifest.json", "recipe.toml"}) {
    for (const char* how : {"gone", "empty", "shorter", "changed"}) {
      const std::string kept = read_all(checkpoint / name);
      damage(checkpoint / name, how);
      for (const std::vector<std::string>& words :
           {std::vector<std::string>{"inspect", checkpoint.string(), "--verify"},
            {"convert", "{}/run", "{}/out"},
            train({"train.steps=4"}, "{}/run")}) {
        std::vector<std::string> all = words;
        if (words[1] == "train") all.emplace_back("--resume");
        const bool known = words[0] == "convert";
        expect_refused({.name = fmt::format("{} {} {}", words[0], name, how),
                        .words = all,
                        .named = known ? "run" : "step-00000002"});
        ++cases;
      }
      write_all(checkpoint / name, kept);
    }
  }
  EXPECT_EQ(cases, 36U);
  EXPECT_EQ(run(filled({"inspect", checkpoint.string(), "--verify"})).code, 0) << "all is as it was";
}

}  // namespace
}  // namespace trireme::cli
