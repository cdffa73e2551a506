#include "trireme/serve/weight_stream.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/ParallelGuard.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <numeric>

#include "trireme/base/error.h"
#include "trireme/nn/multi_token.h"

namespace trireme::serve {
namespace {

using StreamClock = std::chrono::steady_clock;
constexpr std::int64_t kBuffers = 2;

double seconds_since(StreamClock::time_point begin) {
  return std::chrono::duration<double>(StreamClock::now() - begin).count();
}

bool is_run(const models::NamedLayer& entry) {
  return dynamic_cast<const nn::MultiTokenPrediction*>(entry.layer.get()) == nullptr;
}

std::int64_t local_elements(const nn::Param& param) { return layout::local_elements(param.placement); }

}  // namespace

std::vector<StreamUnit> stream_units(const models::Model& model, std::int64_t bytes_per_element) {
  std::vector<StreamUnit> units;
  for (const models::NamedLayer& entry : model.layers) {
    if (!is_run(entry)) continue;
    StreamUnit& unit = units.emplace_back(StreamUnit{entry.name});
    for (const nn::Param* param : entry.params) unit.bytes += local_elements(*param) * bytes_per_element;
  }
  return units;
}

StreamPlan plan_stream(const std::vector<StreamUnit>& units, std::int64_t arena_bytes) {
  StreamPlan plan;
  const std::int64_t all = std::accumulate(units.begin(), units.end(), std::int64_t{0},
                                           [](std::int64_t sum, const StreamUnit& unit) { return sum + unit.bytes; });
  // Largest first: what stays is not what buffers must be large for.
  std::vector<std::size_t> order(units.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) { return units[a].bytes > units[b].bytes; });
  std::vector<bool> best;
  std::int64_t most = -1;
  // With the `large` largest ones resident, the next decides the buffers; then as many of the others as there is room.
  for (std::size_t large = 0; large <= order.size(); ++large) {
    std::vector<bool> stays(units.size(), false);
    std::int64_t bytes = 0;
    for (std::size_t i = 0; i < large; ++i) stays[order[i]] = true, bytes += units[order[i]].bytes;
    const std::int64_t buffer = large < order.size() ? units[order[large]].bytes : 0;
    if (bytes + kBuffers * buffer > arena_bytes) continue;
    for (std::size_t i = large + 1; i < order.size(); ++i) {
      const std::int64_t more = units[order[i]].bytes;
      if (bytes + more + kBuffers * buffer > arena_bytes) continue;
      stays[order[i]] = true;
      bytes += more;
    }
    if (bytes <= most) continue;
    most = bytes;
    best = stays;
    plan.buffer_bytes = buffer;
  }
  if (most < 0) {
    const std::int64_t least = kBuffers * units[order[0]].bytes;
    throw ConfigError(
        fmt::format("weights of {} bytes cannot be streamed through {}: the largest layer, {}, takes {}, and "
                    "one is loaded while another computes",
                    all, arena_bytes, units[order[0]].name, units[order[0]].bytes),
        fmt::format("give {} bytes or more", least));
  }
  for (std::size_t i = 0; i < units.size(); ++i) {
    (best[i] ? plan.resident : plan.streamed).push_back(units[i].name);
    (best[i] ? plan.resident_bytes : plan.streamed_bytes) += units[i].bytes;
  }
  if (!plan.streamed.empty()) plan.buffers = kBuffers;
  return plan;
}

PinnedBuffer::PinnedBuffer(std::size_t bytes) {
  device::check_cuda(device::cuda_runtime().alloc_pinned(&data_, /*on_gpu=*/nullptr, bytes),
                     "page-locked memory for streamed weights");
}

PinnedBuffer::~PinnedBuffer() { device::cuda_runtime().free_pinned(data_); }

WeightStream::WeightStream(models::Model& model, const StreamPlan& plan,
                           std::shared_ptr<const checkpoint::StoredWeights> weights, const Options& options)
    : weights_(std::move(weights)), options_(options) {
  for (const models::NamedLayer& entry : model.layers) {
    if (std::ranges::find(plan.streamed, entry.name) == plan.streamed.end()) continue;
    StreamedUnit& unit = units_.emplace_back(StreamedUnit{.name = entry.name, .params = {}});
    for (const nn::Param* param : entry.params) {
      if (param->value.numel() > 0) continue;  // of a unit that stays, too: a tied table
      unit.params.push_back(param);
      unit.elements += local_elements(*param);
      streamed_[param] = true;
    }
  }
  std::erase_if(units_, [](const StreamedUnit& unit) { return unit.params.empty(); });
  if (units_.empty()) return;
  const auto element = static_cast<std::int64_t>(c10::elementSize(options_.type));
  const at::TensorOptions there = at::TensorOptions(options_.type).device(options_.device);
  for (std::int64_t i = 0; i < plan.buffers; ++i) {
    buffers_.push_back({.memory = at::empty({plan.buffer_bytes / element}, there), .values = {}, .released = {}});
  }
  if (options_.device.is_cuda()) {
    std::int64_t left = options_.pinned_bytes;
    for (StreamedUnit& unit : units_) {
      if (unit.elements * element > left) continue;
      left -= unit.elements * element;
      unit.host = std::make_unique<PinnedBuffer>(static_cast<std::size_t>(unit.elements * element));
    }
    if (std::ranges::any_of(units_, [](const StreamedUnit& unit) { return unit.host == nullptr; }))
      staging_ = std::make_unique<PinnedBuffer>(static_cast<std::size_t>(plan.buffer_bytes));
    stream_ = std::make_unique<device::SideStream>();
    // The buffers are new, but their memory may have been somebody's whose kernels still run.
    for (Buffer& buffer : buffers_) {
      buffer.released = std::make_unique<device::CudaEvent>(device::kEventOrdering);
      buffer.released->record();
    }
  }
  loader_ = std::thread([this] {
    const c10::ParallelGuard alone(true);  // cores belong to the layers that compute meanwhile
    load_on();
  });
}

WeightStream::~WeightStream() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  if (loader_.joinable()) loader_.join();
}

void WeightStream::read(const StreamedUnit& unit, const at::Tensor& memory) {
  std::int64_t at = 0;
  for (const nn::Param* param : unit.params) {
    const std::int64_t count = local_elements(*param);
    at::Tensor to = memory.narrow(0, at, count).view(nn::local_shape(param->placement));
    if (layout::held_elements(param->placement) != count) to.zero_();  // padding
    weights_->read_into(*param, to);
    at += count;
  }
}

/// From the host's memory, read into it where that has not been done, behind what still uses the buffer.
void WeightStream::copy(StreamedUnit& unit, Buffer& buffer) {
  void* const host = unit.host ? unit.host->data() : staging_->data();
  if (!unit.read) {
    read(unit, at::from_blob(host, {unit.elements}, at::TensorOptions(options_.type)));
    unit.read = unit.host != nullptr;
  }
  buffer.released->make_wait(stream_->get());
  const auto bytes = static_cast<std::size_t>(unit.elements) * c10::elementSize(options_.type);
  device::check_cuda(device::cuda_runtime().memcpy_async(buffer.memory.mutable_data_ptr(), host, bytes, stream_->get()),
                     "a layer's weights on their way to the GPU");
  device::CudaEvent arrived;
  arrived.record(stream_->get());
  arrived.synchronise();
}

void WeightStream::load(StreamedUnit& unit, Buffer& buffer) {
  buffer.values.clear();
  if (stream_) {
    copy(unit, buffer);
  } else {
    read(unit, buffer.memory);
  }
  std::int64_t at = 0;
  for (const nn::Param* param : unit.params) {
    const std::int64_t count = local_elements(*param);
    buffer.values.emplace(param, buffer.memory.narrow(0, at, count).view(nn::local_shape(param->placement)));
    at += count;
  }
}

void WeightStream::load_on() {
  try {
    if (options_.device.is_cuda()) device::use_cuda(options_.device.index());
    for (std::int64_t number = 0;; ++number) {
      StreamedUnit& unit = units_[static_cast<std::size_t>(number) % units_.size()];
      Buffer& buffer = buffers_[static_cast<std::size_t>(number) % buffers_.size()];
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return closing_ || number < used_ + static_cast<std::int64_t>(buffers_.size()); });
        if (closing_) return;
        begun_.push_back({number, QueueMeter::now()});
        meter_.arrive(begun_.back().at);
      }
      const auto begin = StreamClock::now();
      load(unit, buffer);
      const std::lock_guard lock(mutex_);
      ++loaded_;
      meter_what_was_left();  // a layer that is skipped is left before it is there
      ++totals_.loads;
      totals_.load_seconds += seconds_since(begin);
      for (const auto& [param, value] : buffer.values) totals_.bytes += static_cast<std::int64_t>(value.nbytes());
      changed_.notify_all();
    }
  } catch (...) {
    const std::lock_guard lock(mutex_);
    broken_ = std::current_exception();
    changed_.notify_all();
  }
}

bool WeightStream::holds(std::int64_t number, const nn::Param& param) const {
  const StreamedUnit& unit = units_[static_cast<std::size_t>(number) % units_.size()];
  return std::ranges::find(unit.params, &param) != unit.params.end();
}

const at::Tensor& WeightStream::value(const nn::Param& param) {
  if (!streamed_.contains(&param)) return param.value;
  std::unique_lock lock(mutex_);
  if (!holds(used_, param)) {
    const std::int64_t before = used_;
    do {
      // What was launched until now is all that computes with this buffer's layer.
      if (stream_) buffers_[static_cast<std::size_t>(used_) % buffers_.size()].released->record();
      ++used_;
      TRIREME_CHECK(used_ <= before + static_cast<std::int64_t>(units_.size()), "no layer that is streamed has {}",
                    param.name);
    } while (!holds(used_, param));
    meter_what_was_left();
    changed_.notify_all();
  }
  if (loaded_ <= used_) {
    const auto begin = StreamClock::now();
    changed_.wait(lock, [&] { return loaded_ > used_ || broken_; });
    totals_.wait_seconds += seconds_since(begin);
    meter_.block(std::chrono::duration_cast<std::chrono::nanoseconds>(StreamClock::now() - begin).count());
  }
  if (loaded_ <= used_) std::rethrow_exception(broken_);
  return buffers_[static_cast<std::size_t>(used_) % buffers_.size()].values.at(&param);
}

WeightStream::Totals WeightStream::totals() const {
  const std::lock_guard lock(mutex_);
  return totals_;
}

void WeightStream::meter_what_was_left() {
  while (!begun_.empty() && begun_.front().number < std::min(used_, loaded_)) {
    meter_.depart(begun_.front().at);
    begun_.pop_front();
  }
}

QueueReading WeightStream::queue() const {
  const std::lock_guard lock(mutex_);
  return meter_.read();
}

}  // namespace trireme::serve
