// bench/trainer_torch.cpp -- what the trainer costs beside the layers: its step, the bare loop, and the program's
// start.
//
//   build/release/bench/trainer_torch [--program build/release/trireme --recipe recipes/tiny.toml]
//
// The bare loop runs the same model on a batch that is already there: forward, backward, update and nothing else. Both
// sides in turns, a few steps each; medians and quartiles. Goals: at most 2 % over the bare loop, at most 1 % of a step
// waiting for data, at most 1 s from the program's start to its first step.
#include <ATen/Parallel.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "bench/arguments.h"
#include "bench/times.h"
#include "trireme/base/cores.h"
#include "trireme/base/text.h"
#include "trireme/comm/rank.h"
#include "trireme/data/open_samples.h"
#include "trireme/device/cpu_setup.h"
#include "trireme/train/engine/feed.h"
#include "trireme/train/engine/trainer.h"

namespace {

using namespace trireme;
using bench::Clock;
using bench::seconds_since;
using bench::Times;

std::string text_of(const Times& times, double scale, const char* unit) {
  return fmt::format("{:.3f} {} ({:.3f}-{:.3f})", times.median() * scale, unit, times.quantile(0.25) * scale,
                     times.quantile(0.75) * scale);
}

spec::Recipe recipe_of(std::int64_t layers, std::int64_t width, spec::Precision precision) {
  spec::Recipe recipe;
  recipe.model.family = spec::Family::kGpt2;
  recipe.model.num_layers = layers;
  recipe.model.hidden_size = width;
  recipe.model.num_heads = recipe.model.num_kv_heads = width / 64;
  recipe.model.head_dim = 64;
  recipe.model.ffn_size = 4 * width;
  recipe.model.max_seq_len = 256;
  recipe.model.vocab_size = 256;
  recipe.data.seq_len = 256;
  recipe.data.synthetic.kind = spec::SyntheticKind::kCopy;
  recipe.data.synthetic.vocab_size = 250;
  recipe.batch.global_batch_tokens = 8 * 256;
  recipe.train.steps = 1'000'000;
  recipe.precision.compute = precision;
  return recipe;
}

/// Forward, backward and update on one batch.
class BareLoop {
 public:
  BareLoop(const spec::Recipe& recipe, const data::Samples& samples)
      : model_(models::build(train::model_shape(recipe))) {
    nn::initialise(model_->params, recipe.precision.compute, 1);
    optimizer_ = optim::make_optimizer(recipe.optim, model_->params);
    batch_ = samples.read(std::vector<std::int64_t>{0, 1, 2, 3, 4, 5, 6, 7});
    targets_ = train::count_targets(batch_);
  }
  double step() {
    const auto begin = Clock::now();
    nn::Context context;
    context.training = true;
    context.gradient_scale = 1 / targets_;
    nn::Tape tape;
    nn::zero_grad(model_->params);
    model_->forward(train::feed(batch_, context, model_->shape), context, &tape);
    model_->backward(context, tape);
    optim::update(*optimizer_, {.learning_rate = 1e-4});
    return seconds_since(begin);
  }

 private:
  std::unique_ptr<models::Model> model_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  data::Batch batch_;
  double targets_ = 0;
};

void compare(std::int64_t layers, std::int64_t width, spec::Precision precision, int rounds) {
  const spec::Recipe recipe = recipe_of(layers, width, precision);
  comm::run_ranks(1, [&](comm::Rank& rank) {
    at::set_num_threads(usable_cores());
    const auto samples = data::open_samples(recipe, data::Split::kTrain);
    train::Trainer trainer(recipe, train::model_shape(recipe), rank.world(), *samples);
    BareLoop bare(recipe, *samples);
    for (int i = 0; i < 3; ++i) trainer.step(), bare.step();
    Times ours, loop, waits;
    for (int round = 0; round < rounds; ++round) {
      for (int i = 0; i < 5; ++i) {
        const auto begin = Clock::now();
        const train::StepReport report = trainer.step();
        ours.seconds.push_back(seconds_since(begin));
        waits.seconds.push_back(report.data_s / ours.seconds.back());
      }
      for (int i = 0; i < 5; ++i) loop.seconds.push_back(bare.step());
    }
    const bool low = precision == spec::Precision::kBf16;
    fmt::print("{}x{} {}: step {}, bare loop {}, ratio {:.4f}; waiting for data {:.3f} % of a step\n", layers, width,
               low ? "bf16" : "fp32", text_of(ours, 1e3, "ms"), text_of(loop, 1e3, "ms"), ours.median() / loop.median(),
               waits.median() * 100);
  });
}

/// Seconds from the start of the process to the end of its first step, less that step.
double start_to_first_step(const std::string& program, const std::string& recipe) {
  const auto folder = std::filesystem::temp_directory_path() / fmt::format("trireme_start_{}", ::getpid());
  std::filesystem::remove_all(folder);
  const auto begin = Clock::now();
  const pid_t child = fork();
  if (child == 0) {
    dup2(::open("/dev/null", O_WRONLY), STDOUT_FILENO);
    execl(program.c_str(), "trireme", "--quiet", "train", recipe.c_str(), "--out", folder.c_str(), "--set",
          "train.steps=1", "--set", "lr_schedule.total=100", "--set", "eval.every=0", nullptr);
    _exit(127);
  }
  // Until the line is there; what comes after (the last checkpoint) is no part of starting.
  std::string line;
  while (line.empty() || line.back() != '}') {
    std::ifstream file(folder / "metrics.jsonl");
    std::getline(file, line);
    if (line.empty()) usleep(500);
    if (seconds_since(begin) > 60) throw std::runtime_error("the program does not start");
  }
  const double seconds = seconds_since(begin);
  int status = 0;
  waitpid(child, &status, 0);
  std::filesystem::remove_all(folder);
  return seconds - nlohmann::json::parse(line)["seconds"].get<double>();
}

}  // namespace

int main(int count, char** words) try {
  std::string program = "build/release/trireme", recipe = "recipes/tiny.toml";
  int rounds = 9;
  bench::Arguments app("The trainer beside the bare loop over its layers");
  app.add_option("--program", program).show_default();
  app.add_option("--recipe", recipe).show_default();
  app.add_option("--rounds", rounds, "turns of each side").show_default();
  if (const std::optional<int> status = app.parse(count, words)) return *status;
  device::keep_host_memory();
  compare(2, 64, spec::Precision::kFp32, rounds);
  compare(4, 256, spec::Precision::kFp32, rounds);
  compare(4, 256, spec::Precision::kBf16, rounds);
  compare(6, 384, spec::Precision::kBf16, rounds);
  Times starts;
  for (int i = 0; i < 9; ++i) starts.seconds.push_back(start_to_first_step(program, recipe));
  fmt::print("program start to first step: {}\n", text_of(starts, 1, "s"));
  return 0;
} catch (const std::exception& error) {
  fmt::print(stderr, "{}\n", error.what());
  return 1;
}
