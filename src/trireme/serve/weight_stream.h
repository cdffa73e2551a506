// serve/weight_stream.h -- a model larger than its memory: layers stay where the weights are stored, and are loaded
// into an arena while the layers before them compute (ZeRO-Inference, 2207.00032, section 5).
//
//   const StreamPlan plan = plan_stream(units, arena_bytes);   // which layers stay, how many buffers the others share
//   WeightStream stream(model, plan, weights, {.type = type});  // the others have no memory: OpenOptions::left_out
//   context.weights = &stream;
//
// A forward pass visits layers in one order, so what is next is known: a thread loads layer after layer, around and
// around, into the next free buffer, and a layer waits for its own. One whole layer is at least being loaded while
// another computes; memory beyond two buffers holds layers for good, since a byte that stays is loaded never and a
// further buffer saves nothing. Passes are all alike: a layer that is skipped is skipped by the loader's buffers too.
//
// On a GPU the arena is the GPU's memory. Layers are read once into page-locked memory of the host, as far as that is
// to go, and copied from there on a stream of their own while the current stream computes; the rest is read from where
// it is stored each time, through a page-locked buffer.
// Depends on: base, checkpoint, device, models, nn.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "trireme/base/queue_meter.h"
#include "trireme/checkpoint/stored_weights.h"
#include "trireme/device/stream.h"
#include "trireme/models/model.h"

namespace trireme::serve {

/// An entry of a model's chain, with what its parameters take.
struct StreamUnit {
  std::string name;
  std::int64_t bytes = 0;
};

struct StreamPlan {
  std::vector<std::string> resident = {};  ///< by the chain's order
  std::vector<std::string> streamed = {};
  std::int64_t resident_bytes = 0, streamed_bytes = 0;
  std::int64_t buffers = 0, buffer_bytes = 0;
  std::int64_t arena_bytes() const { return resident_bytes + buffers * buffer_bytes; }
};
/// ConfigError where the two largest units that must be streamed do not fit. Two buffers; of the units as many bytes
/// stay as fit beside them, first those that a buffer for all others would have to be large for.
StreamPlan plan_stream(const std::vector<StreamUnit>& units, std::int64_t arena_bytes);
/// Of a model without memory. Entries that inference does not run (multi-token prediction) are none of them.
std::vector<StreamUnit> stream_units(const models::Model& model, std::int64_t bytes_per_element);

/// Memory of the host that a GPU's copies may come from directly.
class PinnedBuffer {
 public:
  explicit PinnedBuffer(std::size_t bytes);
  ~PinnedBuffer();
  PinnedBuffer(const PinnedBuffer&) = delete;
  PinnedBuffer& operator=(const PinnedBuffer&) = delete;
  void* data() const { return data_; }

 private:
  void* data_ = nullptr;
};

class WeightStream final : public nn::WeightSource {
 public:
  struct Options {
    at::ScalarType type = at::kFloat;  ///< of the values
    at::Device device = at::kCPU;
    std::int64_t pinned_bytes = 0;  ///< GPU: page-locked memory for layers that are then read once
  };
  /// Borrows the model, whose streamed parameters have no memory.
  WeightStream(models::Model& model, const StreamPlan& plan, std::shared_ptr<const checkpoint::StoredWeights> weights,
               const Options& options);
  ~WeightStream() override;
  WeightStream(const WeightStream&) = delete;
  WeightStream& operator=(const WeightStream&) = delete;

  /// Valid until a parameter of another streamed unit is asked for. Rethrows what stopped the loader.
  const at::Tensor& value(const nn::Param& param) override;

  /// False where everything fits into the arena.
  bool streams() const { return !units_.empty(); }

  struct Totals {
    std::int64_t loads = 0, bytes = 0;
    double load_seconds = 0;  ///< that the loader was busy
    double wait_seconds = 0;  ///< that layers waited for it
  };
  Totals totals() const;
  /// Layers in buffers, from when their loading begins until the pass has left them; blocked: a pass waits for one.
  QueueReading queue() const;

 private:
  struct StreamedUnit {
    std::string name;
    std::vector<const nn::Param*> params;
    std::int64_t elements = 0;
    std::unique_ptr<PinnedBuffer> host = {};  // GPU: its values, once they are read
    bool read = false;
  };
  struct Buffer {
    at::Tensor memory;
    std::map<const nn::Param*, at::Tensor> values;
    std::unique_ptr<device::CudaEvent> released;  // GPU: the computing stream's last use of what was there
  };
  void load_on();
  void read(const StreamedUnit& unit, const at::Tensor& memory);
  void copy(StreamedUnit& unit, Buffer& buffer);
  void load(StreamedUnit& unit, Buffer& buffer);
  bool holds(std::int64_t number, const nn::Param& param) const;
  void meter_what_was_left();

  std::shared_ptr<const checkpoint::StoredWeights> weights_;  // shared: with who opened the model
  Options options_;
  std::vector<StreamedUnit> units_;
  std::vector<Buffer> buffers_;
  std::unique_ptr<PinnedBuffer> staging_;       // GPU: for units without memory of their own on the host
  std::unique_ptr<device::SideStream> stream_;  // GPU: of the copies
  std::map<const nn::Param*, bool> streamed_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::int64_t used_ = 0;    // the number of the load that layers compute with; units and buffers go around
  std::int64_t loaded_ = 0;  // loads that are done
  bool closing_ = false;
  std::exception_ptr broken_;
  Totals totals_;
  QueueMeter meter_;
  struct Begun {
    std::int64_t number;
    QueueMeter::Nanoseconds at;
  };
  std::deque<Begun> begun_;  // loads of layers that passes have not left yet
  std::thread loader_;
};

}  // namespace trireme::serve
