// trireme train, eval, generate, convert, inspect and diff as people use them, on recipes/tiny.toml made smaller.
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

#include "tests/program/train_command.h"
#include "trireme/base/log.h"
#include "trireme/formats/checkpoint_folder.h"
#include "trireme/formats/safetensors.h"

namespace trireme::cli {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

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
    return run({"--quiet", "generate", model, "--ids", path("ids.json"), "--max-new-tokens", "8"});
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

TEST_F(TrainCommand, StaysWithinTheContextUnlessAsked) {
  ASSERT_EQ(train("run", {"--set", "train.steps=2", "--set", "data.seq_len=32"}).code, 0);
  std::ofstream(folder_ / "ids.json") << "[[1, 2, 3]]";
  const auto generate = [&](std::vector<std::string> more) {
    std::vector<std::string> all{"--quiet",        "generate",         path("run"), "--ids",
                                 path("ids.json"), "--max-new-tokens", "80"};
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
