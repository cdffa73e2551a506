// bench/gpt_torch.cpp -- a GPT-2 training step: ours, the time of its GEMMs and memory traffic alone, and
// PyTorch.
//
//   build/release/bench/gpt_torch --python PYTHON        three sizes, fp32 and bf16, beside PyTorch eager and compiled
//   build/release/bench/gpt_torch --num-layers 6 --hidden-size 384 ...  one size; without --python: ours and the limit
//   only
//
// All sides run the same step (forward, backward, AdamW) with the same number of threads, a few steps each in turn, so
// that what else the machine does falls on all of them. Medians and the spread (quartiles) are printed.
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randint.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "bench/arguments.h"
#include "bench/peer.h"
#include "bench/times.h"
#include "trireme/base/text.h"
#include "trireme/device/cpu_setup.h"
#include "trireme/models/model.h"
#include "trireme/optim/update.h"

namespace {

using namespace trireme;
using bench::Clock;
using bench::seconds_since;
using bench::Times;

struct Size {
  std::int64_t num_layers, hidden_size, num_heads, seq_len, vocab_size, batch;
  std::string text() const {
    return fmt::format("{}x{} sequence {} vocabulary {} batch {}", num_layers, hidden_size, seq_len, vocab_size, batch);
  }
};
constexpr Size kSizes[] = {{4, 256, 4, 256, 256, 8}, {6, 384, 6, 256, 256, 8}, {12, 768, 12, 1024, 50304, 1}};

double status_mb(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(field + ":")) return std::stod(line.substr(field.size() + 1)) / 1024;
  }
  return 0;
}

// ---- ours

class Ours {
 public:
  Ours(const Size& size, nn::Precision precision, const nn::Recompute& recompute, spec::OptimizerKind optimizer)
      : size_(size) {
    spec::ModelShape shape = spec::family_shape(spec::Family::kGpt2);
    shape.num_layers = size.num_layers;
    shape.hidden_size = size.hidden_size;
    shape.num_heads = shape.num_kv_heads = size.num_heads;
    shape.head_dim = size.hidden_size / size.num_heads;
    shape.ffn_size = 4 * size.hidden_size;
    shape.max_seq_len = size.seq_len;
    shape.vocab_size = size.vocab_size;
    model_ = models::build(shape, {.recompute = recompute});
    nn::initialise(model_->params, precision, 1);
    spec::OptimConfig config;
    config.kind = optimizer;
    config.weight_decay = 0.1;
    config.beta2 = 0.95;
    optimizer_ = optim::make_optimizer(config, model_->params);
    ids_ = at::randint(size.vocab_size, {size.batch, size.seq_len + 1}, at::kLong);
  }

  double step() {
    const auto begin = Clock::now();
    nn::Context context;
    context.training = true;
    context.sequence = nn::plain_sequence(size_.batch, size_.seq_len);
    context.targets = ids_.narrow(1, 1, size_.seq_len).contiguous();
    context.gradient_scale = 1.0 / static_cast<double>(size_.batch * size_.seq_len);
    nn::Tape tape;
    model_->forward({ids_.narrow(1, 0, size_.seq_len).contiguous()}, context, &tape);
    kept_bytes_ = tape.bytes();
    const auto forward = Clock::now();
    model_->backward(context, tape);
    const auto backward = Clock::now();
    optim::update(*optimizer_, {.learning_rate = 1e-3});
    forward_.seconds.push_back(std::chrono::duration<double>(forward - begin).count());
    backward_.seconds.push_back(std::chrono::duration<double>(backward - forward).count());
    update_.seconds.push_back(seconds_since(backward));
    loss_ = context.losses[0].sum / context.losses[0].count;
    return seconds_since(begin);
  }

  double loss() const { return loss_; }
  std::int64_t parameters() const { return model_->params.elements(); }
  std::string breakdown() const {
    return fmt::format("forward {:.1f} ms, backward {:.1f} ms, update {:.1f} ms; {:.0f} MB kept for backward",
                       forward_.median() * 1e3, backward_.median() * 1e3, update_.median() * 1e3,
                       static_cast<double>(kept_bytes_) / 1e6);
  }

 private:
  Size size_;
  std::unique_ptr<models::Model> model_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  at::Tensor ids_;
  std::int64_t kept_bytes_ = 0;
  double loss_ = 0;
  Times forward_, backward_, update_;
};

// ---- the limit

/// The step's GEMMs at their shapes, and nothing else. Attention's GEMMs are counted by their FLOPs at the
/// rate of the others, halved by the mask.
class GemmPrecision {
 public:
  GemmPrecision(const Size& s, at::ScalarType type) {
    const std::int64_t rows = s.batch * s.seq_len, h = s.hidden_size;
    for (const auto& [out, in, times] : {Shape{3 * h, h, s.num_layers},
                                         {h, h, s.num_layers},
                                         {4 * h, h, s.num_layers},
                                         {h, 4 * h, s.num_layers},
                                         {s.vocab_size, h, 1}}) {
      const auto x = at::empty({rows, in}, type).fill_(0.5), w = at::empty({out, in}, type).fill_(0.5),
                 y = at::empty({rows, out}, type).fill_(0.5);
      items_.push_back({x, w, y, at::empty({rows, in}, type), at::empty({out, in}, type), times});
      flops_ += 6.0 * static_cast<double>(rows * out * in * times);
    }
    attention_ = 3.5 * 4 * static_cast<double>(s.num_layers * s.batch * s.hidden_size) *
                 static_cast<double>(s.seq_len) * static_cast<double>(s.seq_len + 1) / 2;
  }

  double run() {
    const auto begin = Clock::now();
    for (Item& item : items_) {
      for (std::int64_t i = 0; i < item.times; ++i) {
        at::mm_out(item.y, item.x, item.w.t());
        at::mm_out(item.dx, item.y, item.w);
        at::mm_out(item.dw, item.y.t(), item.x);
      }
    }
    const double seconds = seconds_since(begin);
    return seconds * (1 + attention_ / flops_);
  }
  double flops() const { return flops_ + attention_; }

 private:
  struct Shape {
    std::int64_t out, in, times;
  };
  struct Item {
    at::Tensor x, w, y, dx, dw;
    std::int64_t times;
  };
  std::vector<Item> items_;
  double flops_ = 0, attention_ = 0;
};

/// Unavoidable memory traffic: the update's streams over all parameters, in a loop that does nothing else. Activations
/// of these sizes pass through the caches with the GEMMs.
class Traffic {
 public:
  Traffic(std::int64_t parameters, bool low) : n_(parameters), low_(low) {
    for (auto& array : arrays_) array.assign(static_cast<std::size_t>(n_), 0.1F);
    if (low_) small_.assign(static_cast<std::size_t>(n_), 1);
  }
  double run() {
    const auto begin = Clock::now();
    float *w = arrays_[0].data(), *m = arrays_[1].data(), *v = arrays_[2].data();
    const float* g = arrays_[3].data();
    std::uint16_t* s = small_.data();
    at::parallel_for(0, n_, 1 << 16, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t i = first; i < last; ++i) {
        m[i] = m[i] * 0.9F + g[i];
        v[i] = v[i] * 0.9F + g[i];
        w[i] = w[i] * 0.9F + m[i] + v[i];
      }
      for (std::int64_t i = first; low_ && i < last; ++i) s[i] = static_cast<std::uint16_t>(i);
    });
    return seconds_since(begin);
  }

 private:
  std::int64_t n_;
  bool low_;
  std::vector<float> arrays_[4];
  std::vector<std::uint16_t> small_;
};

// ---- PyTorch

class Peer {
 public:
  Peer(const std::string& python, const Size& s, const std::string& precision, bool compile, int threads)
      : process_(command(python, s, precision, compile, threads)) {}

  std::vector<double> run(int steps) {
    const auto answer = process_.ask(fmt::format("run {}", steps));
    memory_mb_ = answer["peak_mb"].get<double>() - answer["start_mb"].get<double>();
    return answer["seconds"].get<std::vector<double>>();
  }
  double memory_mb() const { return memory_mb_; }

 private:
  static std::vector<std::string> command(const std::string& python, const Size& s, const std::string& precision,
                                          bool compile, int threads) {
    std::vector<std::string> words{python, TRIREME_BENCH_DIR "/peers/gpt.py"};
    const auto add = [&](const char* name, std::int64_t value) {
      words.push_back(fmt::format("--{}={}", name, value));
    };
    add("num-layers", s.num_layers), add("hidden-size", s.hidden_size), add("num-heads", s.num_heads),
        add("seq-len", s.seq_len);
    add("vocab-size", s.vocab_size), add("batch", s.batch), add("threads", threads);
    words.push_back("--precision=" + precision);
    if (compile) words.push_back("--compile");
    return words;
  }

  bench::PeerProcess process_;
  double memory_mb_ = 0;
};

struct Options {
  Size size{0, 0, 0, 256, 256, 8};
  std::string precision, python;
  int threads = 2, rounds = 7, steps = 3;
  bool compile = true;
  nn::Recompute recompute;
  spec::OptimizerKind optimizer = spec::OptimizerKind::kAdamw;
};

std::string cell(const Times& times, double tokens) {
  return fmt::format("{:.0f} ({:.0f}-{:.0f})", tokens / times.median(), tokens / times.quantile(0.75),
                     tokens / times.quantile(0.25));
}

/// One size in one precision, in this process. Memory is this process's peak beyond what it had after loading the
/// libraries.
void compare(const Size& size, const std::string& precision, const Options& options) {
  const double start_mb = status_mb("VmRSS");
  const auto kind = precision == "bf16" ? nn::Precision::kBf16 : nn::Precision::kFp32;
  const double tokens = static_cast<double>(size.batch * size.seq_len);
  Ours ours(size, kind, options.recompute, options.optimizer);
  for (int i = 0; i < 2; ++i) ours.step();
  const double memory_mb = status_mb("VmHWM") - start_mb;  // before the limit's own arrays
  GemmPrecision gemms(size, nn::compute_type(kind));
  Traffic traffic(ours.parameters(), kind == nn::Precision::kBf16);
  std::unique_ptr<Peer> eager, compiled;
  if (!options.python.empty()) {
    eager = std::make_unique<Peer>(options.python, size, precision, false, options.threads);
    if (options.compile) compiled = std::make_unique<Peer>(options.python, size, precision, true, options.threads);
    eager->run(2);
    if (compiled) compiled->run(2);
  }
  gemms.run(), traffic.run();
  Times mine, limit, theirs, theirs_compiled;
  for (int round = 0; round < options.rounds; ++round) {
    for (int i = 0; i < options.steps; ++i) mine.seconds.push_back(ours.step());
    limit.seconds.push_back(gemms.run() + traffic.run());
    const auto append = [&](Peer* peer, Times& times) {
      if (!peer) return;
      for (const double s : peer->run(options.steps)) times.seconds.push_back(s);
    };
    append(eager.get(), theirs);
    append(compiled.get(), theirs_compiled);
  }
  fmt::print("{}, {}, {} threads, {} parameters\n", size.text(), precision, options.threads, ours.parameters());
  TextTable table({{"side"}, {"tokens/s (quartiles)"}, {"GFLOP/s"}, {"ours is"}, {"memory MB"}});
  const auto row = [&](const std::string& name, const Times& times, double memory) {
    table.add({name, cell(times, tokens), fmt::format("{:.0f}", gemms.flops() / times.median() / 1e9),
               fmt::format("{:.2f}x", times.median() / mine.median()),
               memory > 0 ? fmt::format("{:.0f}", memory) : "-"});
  };
  row("ours", mine, memory_mb);
  row("limit", limit, 0);
  if (eager) row("PyTorch eager", theirs, eager->memory_mb());
  if (compiled) row("PyTorch compiled", theirs_compiled, compiled->memory_mb());
  fmt::print("{}  {}; loss {:.4f}\n\n", table.text(), ours.breakdown(), ours.loss());
  std::fflush(stdout);
}

/// Each comparison in a process of its own: peaks of memory do not mix.
void compare_apart(const Size& size, const std::string& precision, const Options& options) {
  const pid_t child = fork();
  if (child == 0) {
    at::set_num_threads(options.threads);
    device::keep_host_memory();
    compare(size, precision, options);
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  if (status != 0) throw std::runtime_error("a comparison failed");
}

}  // namespace

int main(int count, char** words) try {
  Options options;
  bench::Arguments app("A GPT-2 training step beside its limit and PyTorch");
  app.add_option("--python", options.python, "a Python with torch, for the peer; without: ours and the limit only");
  app.add_option("--num-layers", options.size.num_layers, "one size instead of the three");
  app.add_option("--hidden-size", options.size.hidden_size);
  app.add_option("--num-heads", options.size.num_heads);
  app.add_option("--seq-len", options.size.seq_len);
  app.add_option("--vocab-size", options.size.vocab_size);
  app.add_option("--batch", options.size.batch);
  app.add_option("--precision", options.precision, "fp32 or bf16; both when not given");
  app.add_option("--threads", options.threads).show_default();
  app.add_option("--rounds", options.rounds, "turns of each side").show_default();
  app.add_option("--steps", options.steps, "steps in a turn").show_default();
  app.add_flag("!--no-compile", options.compile, "leave out torch.compile");
  std::map<std::string, spec::OptimizerKind> optimizers;
  for (const auto& [name, kind] : spec::enum_names(std::type_identity<spec::OptimizerKind>())) {
    optimizers[std::string(name)] = kind;
  }
  cli::add_choice(app, "--optimizer", options.optimizer, optimizers, "of our side: adamw, lamb, lars, ...");
  cli::add_choice(app, "--recompute", options.recompute.kind,
                  std::map<std::string, nn::RecomputeKind>{{"none", nn::RecomputeKind::kNone},
                                                           {"selective", nn::RecomputeKind::kSelective},
                                                           {"full", nn::RecomputeKind::kFull},
                                                           {"every", nn::RecomputeKind::kEvery},
                                                           {"sqrt", nn::RecomputeKind::kSqrt}},
                  "none, selective, full, every or sqrt: what backward recomputes");
  if (const std::optional<int> status = app.parse(count, words)) return *status;
  std::vector<Size> sizes(std::begin(kSizes), std::end(kSizes));
  if (options.size.num_layers > 0) sizes = {options.size};
  for (const Size& size : sizes) {
    for (const std::string precision : {"fp32", "bf16"}) {
      if (options.precision.empty() || options.precision == precision) compare_apart(size, precision, options);
    }
  }
  return 0;
} catch (const std::exception& error) {
  fmt::print(stderr, "{}\n", error.what());
  return 1;
}
