// checkpoint/saver.h -- saves a run's state again and again, every rank its share, while the run goes on.
//
//   Saver saver(state, world, {});                     on all ranks together, once: plans who writes what, and again
//                                                      where the state's placements have changed
//   saver.begin({.folder = checkpoints, .step = 20});  after a step; from here the state must not change until ...
//   saver.wait_copied();                               ... this returns: call it before the next optimizer step
//   if (all ranks have written()) saver.collect();     on all ranks together
//   if (auto outcome = saver.outcome()) tell(*outcome);
//
// The state does not change during forward and backward, so it is copied then, by threads of this rank that stand back
// behind those that compute; wait_copied() copies what is left. They write the copy to the disk while training goes on.
// When every rank has its part on the disk, rank 0 writes the manifest and renames the folder, again on a thread. One
// save is under way at a time: begin() waits for the one before, which is how a slow disk slows the run down instead of
// filling its memory.
// Depends on: base, comm, formats, layout, nn.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "trireme/base/queue_meter.h"
#include "trireme/checkpoint/part_hash.h"
#include "trireme/checkpoint/save_plan.h"
#include "trireme/checkpoint/store.h"
#include "trireme/comm/group.h"
#include "trireme/formats/part_writer.h"
#include "trireme/nn/state.h"

namespace trireme::checkpoint {

/// Where a save is: what fault injection and tests hook into.
enum class SavePhase : std::uint8_t { kCopy, kWrite, kWritten, kPublish, kPublished };

struct SaverOptions {
  bool background = true;  ///< false: begin() returns when this rank's part is on the disk, and nothing is copied
  int threads = 2;         ///< that copy; twice as many write
  bool hash = true;        ///< the whole state's hash into the manifest
  /// Called by whichever thread gets there.
  std::function<void(SavePhase phase, std::int64_t step)> on_phase = {};
  std::function<void(std::uint64_t begin, std::uint64_t end)> before_write = {};
  /// On rank 0, when one is in its place: to remove older ones.
  std::function<void(const std::filesystem::path& path)> published = {};
};

/// What became of a save. Times are of this rank.
struct SaveOutcome {
  std::int64_t step = 0;
  std::filesystem::path path;
  std::string why;          ///< it failed; empty: it is there
  std::uint64_t bytes = 0;  ///< of all ranks
  double seconds = 0;       ///< from begin() until it was there
  double copy_s = 0, write_s = 0, publish_s = 0;
  double blocked_s = 0;  ///< for which this rank's training stood still
};

class Saver {
 public:
  /// `state` and `group` are borrowed. On all ranks together.
  Saver(const nn::State& state, comm::Group& group, SaverOptions options);
  /// Waits for its threads. A save that was not collected leaves its unfinished folder.
  ~Saver();
  Saver(const Saver&) = delete;
  Saver& operator=(const Saver&) = delete;

  /// On all ranks together. One that is under way is collected first.
  void begin(const SaveRequest& request);
  /// Until the state may change.
  void wait_copied();
  /// Whether one is under way; the same on all ranks.
  bool busy() const { return busy_; }
  /// Whether this rank's part is written, or has failed.
  bool written() const;
  /// On all ranks together: waits for every rank's part and hands the rest to rank 0's thread. False: it failed
  /// somewhere, and its folder was removed.
  bool collect();
  /// On rank 0: what became of each, once, in their order, when it is known; with `wait`, as soon as it is.
  std::optional<SaveOutcome> outcome(bool wait = false);
  /// All of that at once, without a copy; gives the outcome on rank 0.
  std::optional<SaveOutcome> save(const SaveRequest& request);

  /// Saves from begin() until they are published, on other ranks until all are written; blocked: training stood still.
  QueueReading queue() const { return meter_.read(); }

  /// The hash of every tensor and value, on rank 0; empty elsewhere. On all ranks together.
  std::vector<nn::HashShare> hashes();

 private:
  struct Job;
  void make_plan();
  void write_part_of(Job& job);
  PartHash hash_of_part(const std::byte* image, const std::vector<at::Tensor>& hosts) const;
  std::vector<nn::HashShare> add_up(const std::vector<std::vector<std::uint64_t>>& shares) const;
  void publish_job(Job& job);
  void take_published(bool wait);
  void note_blocked(Job& job, std::chrono::steady_clock::time_point start);
  std::vector<formats::PieceOfMemory> pieces(std::vector<at::Tensor>& hosts) const;

  const nn::State& state_;
  comm::Group& group_;
  SaverOptions options_;
  SavePlan plan_;                     // of other ranks without runs
  std::int64_t planned_changes_ = 0;  // State::placement_changes() then
  PartPlan part_;
  std::string prefix_;
  formats::CheckpointManifest layout_;  // rank 0: what every manifest says of tensors
  formats::AlignedMemory staging_;
  bool busy_ = false;
  std::unique_ptr<Job> job_, publishing_;
  std::thread writer_, publisher_;
  std::deque<SaveOutcome> outcomes_;
  QueueMeter meter_;
};

}  // namespace trireme::checkpoint
