#include "trireme/train/diagnose/profile.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "trireme/base/log.h"
#include "trireme/base/stopwatch.h"
#include "trireme/base/text.h"
#include "trireme/device/cuda.h"

namespace trireme::train {
namespace {

using torch::profiler::impl::ActivityType;
using Clock = std::chrono::steady_clock;

constexpr const char* kGemms = "GEMMs";
constexpr const char* kAttention = "attention";
constexpr const char* kNorms = "norms";
constexpr const char* kActivations = "activations";
constexpr const char* kLoss = "loss";
constexpr const char* kUpdate = "update";

const std::set<ActivityType>& activities() {
  static const std::set<ActivityType> all{ActivityType::CPU, ActivityType::CUDA};
  return all;
}
torch::profiler::impl::ProfilerConfig settings() {
  return torch::profiler::impl::ProfilerConfig(torch::profiler::impl::ProfilerState::KINETO);
}

/// Seconds of one call, the median of some.
template <typename Call>
double seconds_of(c10::Device device, const Call& call) {
  std::array<double, 5> seconds{};
  call();
  for (double& one : seconds) {
    device::synchronise(device);
    const auto begin = Clock::now();
    for (int i = 0; i < 4; ++i) call();
    device::synchronise(device);
    one = seconds_since(begin) / 4;
  }
  std::ranges::sort(seconds);
  return seconds[2];
}

struct Rates {
  double flops = 0, bytes = 0;  ///< a second
};
Rates measure(c10::Device device) {
  const auto options = at::TensorOptions(at::kBFloat16).device(device);
  constexpr std::int64_t kSize = 8192;
  const at::Tensor a = at::randn({kSize, kSize}, options), b = at::randn({kSize, kSize}, options);
  at::Tensor c = at::empty({kSize, kSize}, options);
  const double product = seconds_of(device, [&] { at::mm_out(c, a, b); });
  const double copy = seconds_of(device, [&] { c.copy_(a); });
  return {.flops = 2.0 * kSize * kSize * kSize / product, .bytes = 2.0 * static_cast<double>(c.nbytes()) / copy};
}

/// The least time of a step's kernels of each kind; those that are missing have no formula here.
std::map<std::string, double> limits(const ProfiledSteps& steps, const spec::ModelShape& shape, const Rates& rates) {
  const double rows = steps.tokens / static_cast<double>(steps.sequence);
  const spec::FlopCount flops = spec::count_flops(shape, steps.sequence);
  const double layers = static_cast<double>(shape.num_layers + shape.num_encoder_layers),
               hidden = static_cast<double>(shape.hidden_size);
  const double wide = 2 * steps.tokens;  // bytes of a 16-bit column
  // A norm of a sum reads and writes two tensors each way; an activation its input and output, and backward both and
  // the gradient; a gated one has two inputs.
  const double ffn = static_cast<double>(shape.ffn_size) * (shape.gated ? 8 : 6);
  return {{kGemms, 3 * rows * (flops.projections + flops.head) / rates.flops},
          {kAttention, 3.5 * rows * flops.attention / rates.flops},
          {kNorms, layers * wide * 2 * 8 * hidden / rates.bytes},
          {kActivations, layers * wide * ffn / rates.bytes},
          {kLoss, wide * 2 * static_cast<double>(shape.vocab_size) / rates.bytes},
          {kUpdate, static_cast<double>(steps.parameter_bytes) / rates.bytes}};
}

}  // namespace

std::string kind_of_kernel(const std::string& name) {
  struct Rule {
    const char *part, *kind;
  };
  // The first that fits: names of the more special come first.
  static constexpr Rule kRules[] = {
      {"Memcpy", "copies"},
      {"Memset", "copies"},
      {"cudnn", kAttention},
      {"flash", kAttention},
      {"fmha", kAttention},
      {"attention", kAttention},
      {"cross_entropy", kLoss},
      {"slice_", kLoss},
      {"round_tiles", "8-bit rounding"},
      {"largest_of", "8-bit rounding"},
      {"fold_kernel", "sums over ranks"},
      {"forward_held", kNorms},
      {"backward_held", kNorms},
      {"forward_any", kNorms},
      {"backward_any", kNorms},
      {"Slopes", kActivations},
      {"gated_", kActivations},
      {"column_sums", "bias gradients"},
      {"add_blocks", "bias gradients"},
      {"embedding", "embedding"},
      {"rotary", "rotary"},
      {"dropout", "dropout"},
      {"adam", kUpdate},
      {"squares", kUpdate},
      {"lamb", kUpdate},
      {"gpu::(anonymous namespace)::forward<", kActivations},
      {"gpu::(anonymous namespace)::backward<", kActivations},
      {"nvjet", kGemms},
      {"gemm", kGemms},
      {"xmma", kGemms},
      {"cutlass", kGemms},
      {"splitKreduce", kGemms},
      {"sort", "embedding"},
      {"RadixSort", "embedding"},
  };
  for (const Rule& rule : kRules) {
    if (name.find(rule.part) != std::string::npos) return rule.kind;
  }
  return "others";
}

std::string short_kernel_name(const std::string& name) {
  const std::size_t end = std::min(name.find('<'), name.find('('));
  std::string text = name;
  // "void trireme::kernels::gpu::(anonymous namespace)::forward_held<...>(...)"
  const std::size_t hidden = name.find("(anonymous namespace)::");
  if (hidden != std::string::npos) {
    text = name.substr(hidden + 23);
    text = text.substr(0, std::min(text.find('<'), text.find('(')));
  } else if (end != std::string::npos && end > 0) {
    text = name.substr(0, end);
  }
  if (text.starts_with("void ")) text = text.substr(5);
  return text.size() > 60 ? text.substr(0, 57) + "..." : text;
}

void StepProfile::start() {
  device::synchronise(device_);
  torch::autograd::profiler::prepareProfiler(settings(), activities());
  torch::autograd::profiler::enableProfiler(settings(), activities());
}

std::string StepProfile::stop(const ProfiledSteps& steps, const spec::ModelShape& shape,
                              const std::filesystem::path& trace) {
  device::synchronise(device_);
  const auto result = torch::autograd::profiler::disableProfiler();
  result->save(trace.string());
  std::map<std::string, KernelTime> kernels, kinds;
  double all = 0;
  for (const auto& event : result->events()) {
    if (event.deviceType() != c10::DeviceType::CUDA || event.durationNs() == 0) continue;
    if (event.name().starts_with("layer ")) continue;  // a layer's span over its kernels
    const double seconds = static_cast<double>(event.durationNs()) * 1e-9;
    for (auto& [name, into] :
         {std::pair<std::string, std::map<std::string, KernelTime>*>{short_kernel_name(event.name()), &kernels},
          {kind_of_kernel(event.name()), &kinds}}) {
      KernelTime& time = (*into)[name];
      time.name = name;
      time.kind = kind_of_kernel(event.name());
      ++time.calls;
      time.seconds += seconds;
    }
    all += seconds;
  }
  const double count = static_cast<double>(steps.steps);
  if (kernels.empty()) return fmt::format("no kernels ran; the trace is in {}", trace.string());
  const auto sorted = [](const std::map<std::string, KernelTime>& times) {
    std::vector<KernelTime> list;
    for (const auto& [name, time] : times) list.push_back(time);
    std::ranges::sort(list, [](const KernelTime& a, const KernelTime& b) { return a.seconds > b.seconds; });
    return list;
  };
  const Rates rates = measure(device_);
  const auto least = limits(steps, shape, rates);
  const auto ms = [](double seconds) { return fmt::format("{:.3f}", seconds * 1e3); };
  TextTable by_kind({{"kind"}, {"calls a step"}, {"ms a step"}, {"share"}, {"limit ms"}, {"reached"}});
  for (const KernelTime& time : sorted(kinds)) {
    const double each = time.seconds / count;
    const auto found = least.find(time.name);
    by_kind.add({time.name, fmt::format("{:.0f}", static_cast<double>(time.calls) / count), ms(each),
                 fmt::format("{:.1f} %", 100 * time.seconds / all), found == least.end() ? "" : ms(found->second),
                 found == least.end() ? "" : fmt::format("{:.0f} %", 100 * found->second / each)});
  }
  TextTable by_name({{"kernel"}, {"kind"}, {"calls a step"}, {"us a call"}, {"ms a step"}});
  std::size_t shown = 0;
  for (const KernelTime& time : sorted(kernels)) {
    if (++shown > 20) break;
    by_name.add({time.name, time.kind, fmt::format("{:.0f}", static_cast<double>(time.calls) / count),
                 fmt::format("{:.1f}", time.seconds / static_cast<double>(time.calls) * 1e6),
                 ms(time.seconds / count)});
  }
  return fmt::format(
      "{} steps of {} ms, in which kernels and copies ran for {} ms: {:.1f} % of the time nothing ran\n{}\n{}\n"
      "limits: a GEMM of 8192 x 8192 ran at {:.0f} TFLOP/s, a copy at {:.2f} TB/s; the trace, for ui.perfetto.dev, "
      "is in {}",
      steps.steps, ms(steps.seconds / count), ms(all / count), 100 * std::max(0.0, 1 - all / steps.seconds),
      by_kind.text(), by_name.text(), rates.flops / 1e12, rates.bytes / 1e12, trace.string());
}

ProfileWindow::ProfileWindow(std::int64_t count, std::int64_t last, Trainer& trainer, std::filesystem::path trace)
    : count_(count), trainer_(trainer), trace_(std::move(trace)) {
  constexpr std::int64_t kWarmSteps = 3;  // libraries choose kernels and memory settles
  if (count_ <= 0) return;
  const std::int64_t step = trainer.position().step;
  first_ = step + kWarmSteps;
  if (trainer.recipe().run.device == spec::DeviceKind::kCpu) {
    throw ConfigError("--profile shows what a GPU does, but run.device is \"cpu\"", "leave it out");
  }
  if (first_ + count_ > last) {
    throw ConfigError(
        fmt::format("--profile {} begins after {} steps, but {} are left", count_, kWarmSteps, last - step),
        fmt::format("set train.steps = {}", first_ + count_));
  }
}

void ProfileWindow::before_step() {
  if (count_ <= 0 || profile_ || trainer_.position().step != first_) return;
  profile_ = std::make_unique<StepProfile>(trainer_.device());
  profile_->start();
  began_ = std::chrono::steady_clock::now();
}

void ProfileWindow::after_step() {
  if (!profile_ || trainer_.position().step != first_ + count_) return;
  const spec::Recipe& recipe = trainer_.recipe();
  const std::int64_t parameters = spec::count_parameters(trainer_.shape()).total();
  // Norm and update read the gradient each; masters and moments are read and written, 16-bit weights written.
  const std::int64_t gradient = spec::has_narrow_gradients(recipe.precision) ? 2 : 4;
  const std::int64_t streams = 2 * gradient + 8 + 8 * spec::moments_of(recipe.optim) + 2;
  log_info("{}", profile_->stop({.steps = count_,
                                 .tokens = static_cast<double>(
                                     spec::batch_at(recipe.lr_schedule, recipe.batch, trainer_.position().tokens)),
                                 .sequence = recipe.data.seq_len,
                                 .seconds = seconds_since(began_),
                                 .parameter_bytes = parameters * streams},
                                trainer_.shape(), trace_));
  profile_.reset();
  first_ = -1;
}

}  // namespace trireme::train
