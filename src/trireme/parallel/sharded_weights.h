// parallel/sharded_weights.h -- how weights get from those who keep them to those who compute with them.
//
// With ZeRO 1 and 2 new ones are gathered when the next pass begins; with ZeRO 3 before each unit runs, and let go of
// after; with offload they come from the host first, from a GPU's beside computing. Without any of these there is
// nothing to do.
// Depends on: comm, device, nn.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "trireme/nn/layer.h"
#include "trireme/parallel/bucket.h"
#include "trireme/parallel/host_link.h"

namespace trireme::parallel {

class ShardedWeights {
 public:
  /// What this rank makes of what it owns of a parameter.
  using MakePart = std::function<at::Tensor(const nn::Param& owned)>;
  /// All are borrowed.
  struct Parts {
    const DataParallelOptions& options;
    const std::vector<ShardUnit>& units;
    BucketPlan& plan;
    nn::Params& params;
    HostLink* link = nullptr;  ///< offload from a GPU
  };
  explicit ShardedWeights(const Parts& parts) : parts_(parts) {}

  /// What is owned has new numbers.
  void updated();
  /// Offload from a GPU: an update has done with this one of what is owned, and others follow. Its bucket sets out when
  /// it is complete.
  void updated(const nn::Param& owned);
  /// Offload: what is on the device has, and nobody computes with what is owned before the next updated().
  void changed_on_device();
  /// New weights set out when the next pass begins, not when they are made: what ranks have to tell each other before
  /// it is a few bytes, which would wait behind all of them.
  void send_out();
  /// Until those on their way have arrived.
  void wait();

  // DataParallel's calls of these names.
  void gather_made(int key, const MakePart& make,
                   const std::function<void(const nn::Param& param, const at::Tensor& whole)>& take);
  std::vector<at::Tensor> version_parts(int key) const;
  void make_version(int key, const MakePart& make, std::vector<at::Tensor>& parts) const;
  void use_version(int key, const std::vector<at::Tensor>* parts);

  /// Until it is called again: these units are not run, so nobody fetches their weights ahead. The same on all ranks.
  void skip(std::vector<bool> units) { skipped_ = std::move(units); }
  /// Around each pass of a unit.
  void enter(std::size_t unit, bool backward);
  void leave(std::size_t unit);
  /// A layer that does so by itself; outlived by this object.
  std::unique_ptr<nn::Layer> fetching(std::unique_ptr<nn::Layer> layer, std::size_t unit);

  /// Room for what was gathered for a while: the most so far.
  std::int64_t bytes() const { return pool_.bytes(); }

 private:
  void publish();
  void upload(Bucket& bucket);
  void order_after_upload(Bucket& bucket);
  void make_part(const Bucket& bucket, const MakePart& make, at::Tensor& part) const;
  void gather(Bucket& bucket);
  void release(Bucket& bucket);

  Parts parts_;
  BufferPool pool_;
  std::vector<bool> skipped_;  // units
  bool unsent_ = false;        // those that updated() told of
};

}  // namespace trireme::parallel
