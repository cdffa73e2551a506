// serve/pipeline_step.h -- an inference step over pipeline stages, in micro-batches of sequences.
//
// Every rank has the whole plan and a stage's layers with their part of the KV cache. Sequences are dealt out to
// micro-batches, so that a stage works on one while the next works on the one before; the last stage's logits go to
// all, and everybody draws the same tokens from them. A step with prompts in it has more micro-batches than one of
// decode alone (DeepSpeed Inference's hybrid schedule, 2207.00032): many shorten the wait for the first, while in
// decode each of them reads the stage's weights once more. A decode step has at most as many as sequences.
// Depends on: comm, models, nn.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "trireme/comm/group.h"
#include "trireme/models/model.h"
#include "trireme/nn/kv_cache.h"

namespace trireme::serve {

struct PipelineRanks {
  comm::Group* group = nullptr;    ///< along pp, in the order of the stages; borrowed
  std::int64_t micros = 2;         ///< micro-batches of a step with prompts in it
  std::int64_t decode_micros = 2;  ///< of one of decode alone
};

/// Sequences of a micro-batch: a stretch of the plan's.
struct MicroRange {
  std::size_t first = 0, count = 0;
  bool operator==(const MicroRange&) const = default;
};
/// At most `micros` stretches, with about as many tokens each; none is empty.
std::vector<MicroRange> deal_out(std::span<const std::int64_t> query_lens, std::int64_t micros);

struct PipelineStep {
  std::span<const nn::SequenceStep> sequences;
  std::span<const std::int64_t> ids;     ///< of all of them, one after the other
  std::span<const std::int64_t> wanted;  ///< rows whose logits are wanted, ascending
  bool decodes = false;                  ///< there is no token of a prompt among them
};
/// Logits of the wanted rows, float [rows, vocabulary] on the host; undefined where none are. `prepare` says what a
/// batch and its context are to be like. By all ranks of the group.
at::Tensor pipeline_logits(models::Model& stage, nn::KvCache& cache, const PipelineRanks& ranks,
                           const PipelineStep& step,
                           const std::function<void(nn::KvBatch& batch, nn::Context& context)>& prepare);

}  // namespace trireme::serve
