// serve/weight_stream.h -- a model larger than its memory: layers stay where the weights are stored, and are loaded
// into an arena while the layers before them compute (ZeRO-Inference, 2207.00032, section 5).
//
//   const StreamPlan plan = plan_stream(units, arena_bytes);      // which layers stay, how many buffers the others
//   share WeightStream stream(model, plan, weights, type);              // the others have no memory:
//   OpenOptions::left_out context.weights = &stream;
//
// A forward pass visits layers in one order, so what is next is known: a thread loads layer after layer, around and
// around, into the next free buffer, and a layer waits for its own. One whole layer is at least being loaded while
// another computes; memory beyond two buffers holds layers for good, since a byte that stays is loaded never and a
// further buffer saves nothing. Passes are all alike: a layer that is skipped is skipped by the loader's buffers too.
// Depends on: base, checkpoint, models, nn.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "trireme/checkpoint/stored_weights.h"
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

class WeightStream final : public nn::WeightSource {
 public:
  /// Borrows the model, whose streamed parameters have no memory.
  WeightStream(models::Model& model, const StreamPlan& plan, std::shared_ptr<const checkpoint::StoredWeights> weights,
               at::ScalarType type);
  ~WeightStream() override;
  WeightStream(const WeightStream&) = delete;
  WeightStream& operator=(const WeightStream&) = delete;

  /// Valid until a parameter of another streamed unit is asked for. Rethrows what stopped the loader.
  const at::Tensor& value(const nn::Param& param) override;

  struct Totals {
    std::int64_t loads = 0, bytes = 0;
    double load_seconds = 0;  ///< that the loader was busy
    double wait_seconds = 0;  ///< that layers waited for it
  };
  Totals totals() const;

 private:
  struct Unit {
    std::string name;
    std::vector<const nn::Param*> params;
  };
  struct Buffer {
    at::Tensor memory;
    std::map<const nn::Param*, at::Tensor> values;
  };
  void load_on();
  void load(const Unit& unit, Buffer& buffer);
  bool holds(std::int64_t number, const nn::Param& param) const;

  std::shared_ptr<const checkpoint::StoredWeights> weights_;  // shared: with who opened the model
  std::vector<Unit> units_;
  std::vector<Buffer> buffers_;
  std::map<const nn::Param*, bool> streamed_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::int64_t used_ = 0;    // the number of the load that layers compute with; units and buffers go around
  std::int64_t loaded_ = 0;  // loads that are done
  bool closing_ = false;
  std::exception_ptr broken_;
  Totals totals_;
  std::thread loader_;
};

}  // namespace trireme::serve
