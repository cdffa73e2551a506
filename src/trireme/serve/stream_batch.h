// serve/stream_batch.h -- how many sequences a step has where weights are streamed (ZeRO-Inference, 2207.00032,
// section 5: the batch is chosen so that layers compute for as long as they load).
//
// A step loads every streamed layer once, whatever the batch. With few sequences it waits for the loads; beyond the
// balance, where it computes for as long as they take, further ones make it longer and hardly give more tokens a
// second.
// Depends on: engine.h, rank_model.h.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "trireme/serve/engine.h"
#include "trireme/serve/rank_model.h"

namespace trireme::serve {

struct BalancedBatch {
  struct Trial {
    std::int64_t sequences = 1;
    double seconds = 0;  ///< of a step
    double rate() const { return static_cast<double>(sequences) / seconds; }
  };
  std::int64_t sequences = 1;
  std::vector<Trial> trials = {};
};
/// Doubles the sequences, up to `most`, until twice in a row that gives hardly more of them a second; the fewest that
/// have 0.7 of the best rate are the balance: loads of L seconds and computing of b seconds a sequence give a batch
/// with b x batch between 0.7 L and 1.4 L. One time that is far off changes nothing.
BalancedBatch balance_batch(std::int64_t most, const std::function<double(std::int64_t sequences)>& step_seconds);
/// By steps of decode of an engine with these options, whose sizes are set for it.
BalancedBatch measure_balanced_batch(models::Model& model, const EngineOptions& options, std::int64_t most);

inline constexpr std::int64_t kDefaultBatch = 16, kMostBalanced = 512;
/// Sequences of a step: as many as `asked` for; of 0 kDefaultBatch, or where weights are streamed the balance, of which
/// `about` gets a line: at most `most`, and no more than the KV cache has memory for with `tokens` each.
std::int64_t batch_of(std::int64_t asked, const RankModel& model, std::int64_t most, std::int64_t tokens,
                      std::string& about);

}  // namespace trireme::serve
