// trireme train, eval, generate, convert, inspect and diff as people use them, on recipes/tiny.toml made smaller.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "tests/cli/run.h"
#include "tests/files.h"
#include "trireme/base/log.h"
#include "trireme/formats/checkpoint_folder.h"
#include "trireme/formats/safetensors.h"

namespace trireme::cli {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

std::vector<nlohmann::json> lines_of(const fs::path& path) {
  std::vector<nlohmann::json> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

class TrainCommand : public OwnFolder {
 protected:
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  /// recipes/tiny.toml with 40 steps, one thread, and what else is given.
  std::vector<std::string> words(const std::string& out, const std::vector<std::string>& more = {}) const {
    std::vector<std::string> all{"--quiet", "train", TRIREME_RECIPES "/tiny.toml", "--out", path(out)};
    for (const char* set : {"train.steps=40", "train.threads=1", "train.hash_every=10", "checkpoint.every=10",
                            "batch.global_batch_tokens=512", "eval.every=20", "eval.samples=8"}) {
      all.insert(all.end(), {"--set", set});
    }
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  Outcome train(const std::string& out, const std::vector<std::string>& more = {}) const {
    return run(words(out, more));
  }
  void expect_equal_runs(const std::string& a, const std::string& b) const {
    const Outcome outcome = run({"diff", path(a), path(b)});
    EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.err;
    EXPECT_THAT(outcome.out, HasSubstr("equal to the bit"));
  }

  /// The program as a process, so that it can be killed.
  pid_t start(const std::vector<std::string>& arguments) const {
    const pid_t child = fork();
    if (child != 0) return child;
    const int null = ::open("/dev/null", O_WRONLY);
    dup2(null, 1), dup2(null, 2);
    std::vector<std::string> all{std::getenv("TRIREME_PROGRAM")};
    all.insert(all.end(), arguments.begin(), arguments.end());
    std::vector<char*> pointers;
    for (std::string& word : all) pointers.push_back(word.data());
    pointers.push_back(nullptr);
    execv(pointers[0], pointers.data());
    _exit(127);
  }
  bool wait_for_steps(const std::string& out, std::size_t steps) const {
    for (int i = 0; i < 6000; ++i) {
      std::ifstream file(path(out) + "/metrics.jsonl");
      if (static_cast<std::size_t>(std::count(std::istreambuf_iterator<char>(file), {}, '\n')) >= steps) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return false;
  }
};

TEST_F(TrainCommand, TellsTheMemoryOfAGpuRunWithoutOne) {
  const Outcome outcome = run({"train", TRIREME_RECIPES "/gpt2-124m.toml", "--memory", "--out", path("none")});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("master weights"), HasSubstr("activations"), HasSubstr("at most")));
  EXPECT_FALSE(fs::exists(path("none")));
  const Outcome stages =
      run({"train", TRIREME_RECIPES "/gpt2-124m.toml", "--memory", "--ranks", "2", "--set", "layout.pp=2"});
  EXPECT_EQ(stages.code, 0) << stages.err;
  EXPECT_THAT(stages.out, AllOf(HasSubstr("master weights"), HasSubstr("activations"), HasSubstr("at most")));
}

TEST_F(TrainCommand, TracesLayersAndCallsOfAllRanks) {
  const Outcome outcome = train(
      "traced", {"--ranks", "2", "--trace", path("trace.json"), "--set", "train.steps=2", "--set", "eval.every=0"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  std::ifstream file(path("trace.json"));
  const nlohmann::json all = nlohmann::json::parse(file);
  std::map<std::pair<int, std::string>, int> counts;
  double first = 1e30, last = 0;
  for (const nlohmann::json& event : all.is_array() ? all : all.at("traceEvents")) {
    if (event.at("ph") != "X") continue;
    ++counts[{event.at("pid").get<int>(), event.at("cat").get<std::string>()}];
    first = std::min(first, event.at("ts").get<double>());
    last = std::max(last, event.at("ts").get<double>() + event.at("dur").get<double>());
    EXPECT_GE(event.at("dur").get<double>(), 0);
    EXPECT_EQ(event.at("cat") == "comm", event.at("tid") != 0) << event.dump();
  }
  for (const int rank : {0, 1}) {
    const int passes = counts[{rank, "forward"}];
    EXPECT_GT(passes, 4);
    EXPECT_EQ(passes, (counts[{rank, "backward"}]));
    EXPECT_GT((counts[{rank, "comm"}]), 2);  // at least a sum and the targets of each step
  }
  EXPECT_LT(last - first, 600e6);  // microseconds, all on one clock
}

TEST_F(TrainCommand, LeavesARunBehind) {
  const Outcome outcome = train("run");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("finished 40 steps"), HasSubstr("validation loss")));
  const auto metrics = lines_of(folder_ / "run/metrics.jsonl");
  ASSERT_EQ(metrics.size(), 40U);
  for (std::size_t i = 0; i < metrics.size(); ++i) {
    EXPECT_EQ(metrics[i]["step"], i + 1);
    for (const char* key :
         {"loss", "grad_norm", "lr", "tokens", "tokens_per_s", "mfu", "memory", "seconds", "breakdown"}) {
      EXPECT_TRUE(metrics[i].contains(key)) << key;
    }
    EXPECT_EQ(metrics[i].contains("hash"), (i + 1) % 10 == 0);
    double parts = 0;
    for (const auto& [name, seconds] : metrics[i]["breakdown"].items()) parts += seconds.get<double>();
    EXPECT_NEAR(parts, metrics[i]["seconds"].get<double>(), 1e-9);
  }
  EXPECT_LT(metrics.back()["loss"], metrics.front()["loss"]);
  EXPECT_EQ(formats::list_checkpoints(folder_ / "run/checkpoints"), (std::vector<std::int64_t>{30, 40}));
  EXPECT_TRUE(fs::exists(folder_ / "run/tensorboard"));
  EXPECT_TRUE(fs::exists(folder_ / "run/log.txt"));
  int evals = 0;
  for (const auto& event : lines_of(folder_ / "run/events.jsonl")) evals += event["event"] == "eval";
  EXPECT_EQ(evals, 2);
  // The effective recipe is a recipe, and gives the same run.
  ASSERT_EQ(run({"--quiet", "train", path("run/recipe.toml"), "--out", path("again")}).code, 0);
  expect_equal_runs("run", "again");
}

TEST_F(TrainCommand, KilledAndResumedItIsTheSameRun) {
  ASSERT_EQ(train("whole").code, 0);
  for (const char* ranks : {"1", "2"}) {
    const std::string whole = std::string("whole") + ranks, killed = std::string("killed") + ranks;
    ASSERT_EQ(train(whole, {"--ranks", ranks}).code, 0);
    const pid_t child = start(words(killed, {"--ranks", ranks}));
    ASSERT_TRUE(wait_for_steps(killed, 25));
    ::kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    const Outcome outcome = train(killed, {"--ranks", ranks, "--resume"});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_EQ(lines_of(folder_ / killed / "metrics.jsonl").size(), 40U);
    expect_equal_runs(whole, killed);
  }
}

TEST_F(TrainCommand, InterruptedItSavesAndGoesOn) {
  ASSERT_EQ(train("whole", {"--set", "train.steps=150"}).code, 0);
  for (const int signal : {SIGINT, SIGTERM}) {
    const std::string name = "stopped" + std::to_string(signal);
    const pid_t child = start(words(name, {"--set", "train.steps=150", "--set", "checkpoint.every=0"}));
    ASSERT_TRUE(wait_for_steps(name, 15));
    ::kill(child, signal);
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 130) << "`train && convert` must not go on with half a model";
    const auto saved = formats::list_checkpoints(folder_ / name / "checkpoints");
    ASSERT_EQ(saved.size(), 1U);
    EXPECT_EQ(static_cast<std::size_t>(saved[0]), lines_of(folder_ / name / "metrics.jsonl").size());
    EXPECT_LT(saved[0], 150);
    ASSERT_EQ(train(name, {"--set", "train.steps=150", "--resume"}).code, 0);
    expect_equal_runs("whole", name);
  }
}

TEST_F(TrainCommand, AnotherNumberOfRanksGoesOnWithTheSameSamples) {
  ASSERT_EQ(train("whole", {"--set", "precision.compute=fp64"}).code, 0);
  ASSERT_EQ(train("part", {"--set", "precision.compute=fp64", "--set", "train.steps=20"}).code, 0);
  ASSERT_EQ(train("part", {"--set", "precision.compute=fp64", "--resume", "--ranks", "3"}).code, 0);
  const auto whole = lines_of(folder_ / "whole/metrics.jsonl"), part = lines_of(folder_ / "part/metrics.jsonl");
  ASSERT_EQ(part.size(), 40U);
  for (std::size_t i = 0; i < 40; ++i) {
    EXPECT_NEAR(whole[i]["loss"].get<double>(), part[i]["loss"].get<double>(), 1e-9) << i;
  }
}

TEST_F(TrainCommand, ResumeSaysWhatItFinds) {
  const Outcome fresh = run([&] {
    auto all = words("run", {"--resume"});
    all.erase(all.begin());  // not --quiet
    return all;
  }());
  EXPECT_EQ(fresh.code, 0);
  const Outcome again = train("run", {"--resume"});
  EXPECT_EQ(again.code, 0);
  EXPECT_THAT(again.out, HasSubstr("is finished"));
  EXPECT_EQ(lines_of(folder_ / "run/metrics.jsonl").size(), 40U);
  const Outcome refused = train("run");
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, AllOf(HasSubstr("already holds a run"), HasSubstr("--resume")));
  EXPECT_EQ(lines_of(folder_ / "run/metrics.jsonl").size(), 40U);
}

TEST_F(TrainCommand, ADamagedCheckpointIsPassedOver) {
  ASSERT_EQ(train("whole").code, 0);
  ASSERT_EQ(train("run", {"--set", "train.steps=30"}).code, 0);
  const fs::path state = folder_ / "run/checkpoints/step-00000030/state.safetensors";
  fs::resize_file(state, fs::file_size(state) - 1);
  ASSERT_EQ(train("run", {"--resume"}).code, 0);
  expect_equal_runs("whole", "run");
}

/// Every checkpoint damaged: nothing goes on by itself, and nothing is removed.
TEST_F(TrainCommand, WithoutAWholeCheckpointItRefusesAndKeepsEverything) {
  ASSERT_EQ(train("run", {"--set", "train.steps=30"}).code, 0);
  const fs::path checkpoints = folder_ / "run/checkpoints";
  const fs::path first = checkpoints / "step-00000020/state.safetensors",
                 second = checkpoints / "step-00000030/state.safetensors";
  fs::resize_file(second, fs::file_size(second) - 1);
  {
    // In the last block, which holds train state behind the weights.
    std::fstream file(first, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(fs::file_size(first)) - 1);
    file.put('x');
  }
  fs::create_directories(checkpoints / "step-00000040.tmp");
  std::map<fs::path, std::uintmax_t> before;
  for (const auto& entry : fs::recursive_directory_iterator(folder_ / "run")) {
    before[entry.path()] = entry.is_regular_file() ? entry.file_size() : 0;
  }
  for (const char* ranks : {"1", "2"}) {
    const Outcome refused = train("run", {"--resume", "--ranks", ranks});
    EXPECT_EQ(refused.code, 2) << ranks;
    EXPECT_THAT(refused.err, AllOf(HasSubstr("all of its 2 checkpoints are damaged"), HasSubstr("step-00000020"),
                                   HasSubstr("step-00000030"), HasSubstr("none of it can be read"),
                                   HasSubstr("tensors are whole"), HasSubstr("--start-over")));
    for (const auto& [path, size] : before) {
      ASSERT_TRUE(fs::exists(path)) << path;
      if (fs::is_regular_file(path) && path.filename() != "lock") {
        EXPECT_EQ(fs::file_size(path), size) << path;
      }
    }
  }
  EXPECT_EQ(lines_of(folder_ / "run/metrics.jsonl").size(), 30U);
  EXPECT_EQ(train("run", {"--start-over"}).code, 2) << "without --resume";

  ASSERT_EQ(train("run", {"--resume", "--start-over"}).code, 0);
  EXPECT_EQ(lines_of(folder_ / "run/metrics.jsonl").size(), 40U);
  for (const auto& [path, size] : before) {
    if (path.filename() == "lock") continue;
    const fs::path aside = folder_ / "run/set-aside-1" / fs::relative(path, folder_ / "run");
    ASSERT_TRUE(fs::exists(aside)) << aside;
    if (fs::is_regular_file(aside)) {
      EXPECT_EQ(fs::file_size(aside), size) << aside;
    }
  }
  ASSERT_EQ(train("whole").code, 0);
  expect_equal_runs("whole", "run");
}

TEST_F(TrainCommand, ARefusedRunLeavesNothingBehind) {
  const fs::path before = fs::current_path();
  fs::current_path(folder_);  // where flight recorders of other tests are not
  const Outcome outcome = train("deep/er/run", {"--ranks", "2", "--set", "layout.tp=2", "--set", "model.num_heads=3",
                                                "--set", "model.num_kv_heads=3"});
  EXPECT_NE(outcome.code, 0);
  EXPECT_FALSE(fs::exists(folder_ / "deep"));
  EXPECT_FALSE(fs::exists("flight-0.json"));
  EXPECT_FALSE(fs::exists("flight-1.json"));
  fs::current_path(before);
}

/// A model cut into stages: the same bits after a resume, and a checkpoint that other layouts go on from.
TEST_F(TrainCommand, PipelinesResumeAndChangeTheirLayout) {
  const std::vector<std::string> staged{"--ranks", "4",
                                        "--set",   "layout.pp=2",
                                        "--set",   "train.micro_batch_size=1",
                                        "--set",   "pipeline.schedule=zb-h1",
                                        "--set",   "precision.compute=fp64"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), staged.begin(), staged.end());
    return more;
  };
  ASSERT_EQ(train("whole", staged).code, 0);
  ASSERT_EQ(train("part", with({"--set", "train.steps=20"})).code, 0);
  ASSERT_EQ(train("part", with({"--resume"})).code, 0);
  expect_equal_runs("whole", "part");
  ASSERT_EQ(train("serial", {"--set", "precision.compute=fp64"}).code, 0);
  ASSERT_EQ(train("changed", with({"--set", "train.steps=20"})).code, 0);
  ASSERT_EQ(train("changed", {"--set", "precision.compute=fp64", "--resume", "--ranks", "3"}).code, 0);
  const auto serial = lines_of(folder_ / "serial/metrics.jsonl");
  for (const char* run : {"whole", "changed"}) {
    const auto lines = lines_of(folder_ / run / "metrics.jsonl");
    ASSERT_EQ(lines.size(), 40U);
    for (std::size_t i = 0; i < 40; ++i) {
      EXPECT_NEAR(serial[i]["loss"].get<double>(), lines[i]["loss"].get<double>(), 1e-9) << run << " " << i;
    }
  }
}

TEST_F(TrainCommand, EvaluatesConvertsInspectsAndGenerates) {
  ASSERT_EQ(train("run", {"--set", "train.steps=20"}).code, 0);
  const auto eval = [&](const std::vector<std::string>& more) {
    std::vector<std::string> all{"--quiet", "eval", path("run"), "--samples", "8", "--json"};
    all.insert(all.end(), more.begin(), more.end());
    const Outcome outcome = run(all);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return nlohmann::json::parse(outcome.out);
  };
  const auto one = eval({}), two = eval({"--ranks", "3"});
  EXPECT_NEAR(one["loss"].get<double>(), two["loss"].get<double>(), 1e-6);
  for (const auto& event : lines_of(folder_ / "run/events.jsonl")) {
    if (event["event"] == "eval") {
      EXPECT_NEAR(event["loss"].get<double>(), one["loss"].get<double>(), 1e-6);
    }
  }
  EXPECT_TRUE(one.contains("best_loss"));
  const std::string few = "(eval.samples), so that its loss is another one";  // validation took 8
  const auto said = [&](const std::string& samples) {
    set_log_level(LogLevel::kInfo);  // those before were quiet
    testing::internal::CaptureStderr();
    EXPECT_EQ(run({"eval", path("run"), "--samples", samples}).code, 0);
    return testing::internal::GetCapturedStderr();
  };
  EXPECT_THAT(said("9"), HasSubstr("took the first 8 of them " + few));
  EXPECT_THAT(said("8"), testing::Not(HasSubstr(few)));

  ASSERT_EQ(run({"--quiet", "convert", path("run"), path("hf")}).code, 0);
  ASSERT_EQ(run({"--quiet", "convert", path("hf"), path("back"), "--to", "checkpoint"}).code, 0);
  const formats::CheckpointFolder back(folder_ / "back"), original(folder_ / "run/checkpoints/step-00000020");
  int compared = 0;
  for (const auto& [name, tensor] : back.manifest().tensors) {
    EXPECT_TRUE(back.read(name) == original.read(name)) << name;
    ++compared;
  }
  EXPECT_GT(compared, 10);
  EXPECT_EQ(run({"--quiet", "convert", path("run"), path("hf")}).code, 2);  // it is there

  std::ofstream(folder_ / "ids.json") << "[[1, 2, 3]]";
  const auto generate = [&](const std::string& model) {
    return run({"--quiet", "generate", model, "--ids", path("ids.json"), "--tokens", "8"});
  };
  const Outcome ours = generate(path("run"));
  EXPECT_EQ(ours.code, 0) << ours.err;
  EXPECT_EQ(ours.out, generate(path("hf")).out);
  EXPECT_EQ(ours.out, generate(path("back")).out);
  const Outcome text = run({"--quiet", "generate", path("run"), "--prompt", "x"});
  EXPECT_EQ(text.code, 2);
  EXPECT_THAT(text.err, HasSubstr("--tokenizer"));

  EXPECT_THAT(run({"inspect", path("run")}).out, HasSubstr("step-00000020"));
  EXPECT_EQ(run({"inspect", path("run"), "--verify"}).code, 0);
  EXPECT_THAT(run({"inspect", path("run/checkpoints/step-00000020"), "--verify"}).out,
              AllOf(HasSubstr("step    20"), HasSubstr("every tensor has its checksum"), HasSubstr("train/position")));
  EXPECT_THAT(run({"inspect", path("hf")}).out, HasSubstr("llama"));
}

TEST_F(TrainCommand, InspectSaysByItsExitCodeThatACheckpointIsDamaged) {
  ASSERT_EQ(train("run", {"--set", "train.steps=20"}).code, 0);
  const fs::path state = folder_ / "run/checkpoints/step-00000020/state.safetensors";
  std::fstream file(state, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(static_cast<std::streamoff>(fs::file_size(state)) / 2);
  file.put('x');
  file.close();
  const Outcome outcome = run({"inspect", path("run"), "--verify"});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.out, HasSubstr("damaged"));
  EXPECT_EQ(run({"inspect", path("run/checkpoints/step-00000020"), "--verify"}).code, 1);
}

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
  EXPECT_THAT(log, HasSubstr("model: llama, 1 layers, hidden_size 32, 2 heads of 16, ffn_size 112, vocab_size 256"));
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

TEST_F(TrainCommand, DiffsRunsOfDifferentLayoutsByTheirNumbers) {
  ASSERT_EQ(train("one", {"--set", "precision.compute=fp64"}).code, 0);
  ASSERT_EQ(train("two", {"--ranks", "2", "--set", "precision.compute=fp64"}).code, 0);
  ASSERT_EQ(train("other", {"--set", "precision.compute=fp64", "--set", "optim.learning_rate=1e-3"}).code, 0);
  EXPECT_EQ(run({"diff", path("one"), path("two")}).code, 1) << "not to the bit";
  const Outcome near = run({"diff", path("one"), path("two"), "--tolerance", "1e-9"});
  EXPECT_EQ(near.code, 0) << near.out;
  EXPECT_THAT(near.out, AllOf(HasSubstr("are within 1e-09"), HasSubstr("loss"), HasSubstr("optim/"),
                              HasSubstr("more tensors"), HasSubstr("recipe: comm.ranks: (unset) and 2")));
  const Outcome far = run({"diff", path("one"), path("other"), "--tolerance", "1e-9"});
  EXPECT_EQ(far.code, 1);
  EXPECT_THAT(far.out, AllOf(HasSubstr("NOT within"), HasSubstr("recipe: optim.learning_rate: 0.003 and 0.001")));
  const auto json = nlohmann::json::parse(run({"diff", path("one"), path("two"), "--tolerance", "0", "--json"}).out);
  EXPECT_FALSE(json["within"]);
  EXPECT_GT(json["tensors"].size(), 20U);
  EXPECT_LT(json["metrics"]["loss"]["relative"].get<double>(), 1e-9);
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

TEST_F(TrainCommand, StaysWithinTheContextUnlessAsked) {
  ASSERT_EQ(train("run", {"--set", "train.steps=2", "--set", "data.seq_len=32"}).code, 0);
  std::ofstream(folder_ / "ids.json") << "[[1, 2, 3]]";
  const auto generate = [&](std::vector<std::string> more) {
    std::vector<std::string> all{"--quiet", "generate", path("run"), "--ids", path("ids.json"), "--tokens", "80"};
    all.insert(all.end(), more.begin(), more.end());
    return run(all);
  };
  const Outcome refused = generate({});
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, AllOf(HasSubstr("context of 64 tokens"), HasSubstr("at most 61 new tokens")));
  EXPECT_EQ(generate({"--beyond-context"}).code, 0);
  std::ofstream(folder_ / "text.txt") << std::string(3000, '\x03');
  const auto eval = [&](std::vector<std::string> more) {
    std::vector<std::string> all{"eval", path("run"), "--data", path("text.txt"), "--tokenizer", "bytes"};
    all.insert(all.end(), more.begin(), more.end());
    return run(all);
  };
  // 32 tokens, as the run had: a text of 256 symbols is none for 32, but the length is told before.
  EXPECT_THAT(eval({}).err, testing::Not(HasSubstr("context of 64")));
  EXPECT_EQ(eval({"--seq-len", "128"}).code, 2);
  EXPECT_THAT(eval({"--seq-len", "128"}).err, AllOf(HasSubstr("context of 64"), HasSubstr("--beyond-context")));
}

TEST_F(TrainCommand, ManyLayersAreBuiltWithProgress) {
  const auto said = [&](const std::string& out, const std::string& layers) {
    std::vector<std::string> all{"train", TRIREME_RECIPES "/tiny.toml", "--out", path(out)};
    for (const std::string& set :
         {"model.num_layers=" + layers, std::string("model.hidden_size=8"), std::string("model.num_heads=1"),
          std::string("model.num_kv_heads=1"), std::string("model.head_dim=8"), std::string("model.ffn_size=8"),
          std::string("train.steps=1"), std::string("train.threads=1"), std::string("eval.every=0"),
          std::string("batch.global_batch_tokens=64"), std::string("checkpoint.every=0")}) {
      all.insert(all.end(), {"--set", set});
    }
    testing::internal::CaptureStderr();
    EXPECT_EQ(run(all).code, 0);
    return testing::internal::GetCapturedStderr();
  };
  EXPECT_THAT(said("deep", "520"), HasSubstr("building the model"));
  EXPECT_THAT(said("usual", "2"), testing::Not(HasSubstr("building the model")));
}

TEST_F(TrainCommand, WhatCannotFitIsRefusedAtOnce) {
  const auto begin = std::chrono::steady_clock::now();
  const auto refused = [&](const std::vector<std::string>& more, const std::string& why) {
    const Outcome outcome = train("huge", more);
    EXPECT_EQ(outcome.code, 2) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr(why));
    EXPECT_FALSE(fs::exists(folder_ / "huge"));
  };
  refused({"--set", "batch.global_batch_tokens=64G"}, "of memory, and this machine has");
  refused({"--set", "batch.global_batch_tokens=1P"}, "of memory, and this machine has");
  refused({"--set", "model.hidden_size=65536", "--set", "model.num_layers=512", "--set", "model.head_dim="},
          "of memory, and this machine has");
  refused({"--ranks", "100000"}, "100000 ranks");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(8));
}

TEST_F(TrainCommand, MistakesAreNamed) {
  const auto error = [&](const std::vector<std::string>& arguments) {
    const Outcome outcome = run(arguments);
    EXPECT_NE(outcome.code, 0);
    return outcome.err;
  };
  EXPECT_THAT(error({"train", path("none.toml")}), HasSubstr("none.toml"));
  EXPECT_THAT(error({"train", TRIREME_RECIPES "/tiny.toml", "--out", path("x"), "--set", "train.steps=many"}),
              HasSubstr("train.steps"));
  EXPECT_THAT(
      error({"train", TRIREME_RECIPES "/tiny.toml", "--out", path("x"), "--set", "batch.global_batch_tokens=1000"}),
      HasSubstr("batch.global_batch_tokens"));
  EXPECT_FALSE(fs::exists(folder_ / "x/metrics.jsonl"));
  EXPECT_THAT(error({"train", TRIREME_RECIPES "/tiny.toml", "--out", "/proc/nowhere/run"}), HasSubstr("/proc/nowhere"));
  EXPECT_THAT(error({"train", TRIREME_RECIPES "/models/gpt2-124m.toml", "--out", path("y")}), HasSubstr("train.steps"));
  EXPECT_THAT(error({"eval", path("nothing")}), HasSubstr("does not exist"));
  EXPECT_THAT(error({"eval", folder_.string()}), HasSubstr("holds no model"));
  EXPECT_THAT(error({"generate", path("nothing"), "--ids", "x"}), HasSubstr("x"));
  EXPECT_THAT(error({"convert", path("nothing"), path("z")}), HasSubstr("does not exist"));
  EXPECT_THAT(error({"inspect", path("nothing")}), HasSubstr("does not exist"));
  EXPECT_THAT(error({"inspect", folder_.string()}), HasSubstr("nothing that is known"));
  EXPECT_THAT(error({"train", TRIREME_RECIPES "/tiny.toml", "--ranks", "0"}), HasSubstr("--ranks"));
}

TEST_F(TrainCommand, AStateThatDivergesIsSavedAndNamed) {
  const Outcome outcome = train(
      "run", {"--set", "optim.learning_rate=1e30", "--set", "optim.grad_clip_norm=0", "--set", "lr_schedule.warmup=0"});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("training diverged"), HasSubstr("at step"), HasSubstr("first in"),
                                 HasSubstr("diverged-step-")));
  bool saved = false;
  for (const auto& entry : fs::directory_iterator(folder_ / "run")) {
    if (!entry.path().filename().string().starts_with("diverged-step-")) continue;
    EXPECT_EQ(run({"inspect", entry.path().string(), "--verify"}).code, 0);
    saved = true;
  }
  EXPECT_TRUE(saved);
}

}  // namespace
}  // namespace trireme::cli
